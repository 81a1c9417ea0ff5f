"""Logs in memory and the tasks that read them, for the write path's cores."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from kafka_log.record_batch import BatchSpan
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.offset_ranges import OffsetRange
from rlm.write_path.reading.log_task import TaskOutcome
from rlm.write_path.uploads.segment_queue import MetaQueueItem

BATCH_BYTES = 100


def partition(number: int) -> TopicIdPartition:
    return TopicIdPartition(TopicId(b"p" * 16), number)


@dataclass
class PlainLog:
    """Batches of one offset each, no two alike."""

    number: int
    batches: list[bytes] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    written: int = 0

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.written += 1
            self.batches.append(f"{self.number}/{self.written}".encode().ljust(BATCH_BYTES))
            self.epochs.append(len(self.cuts))

    def cut(self, offset: int) -> None:
        """A new leader lacks what is from this offset on."""
        del self.batches[offset:], self.epochs[offset:]
        self.cuts.append(offset)

    def item(self, begin: int, end: int) -> MetaQueueItem:
        records = memoryview(b"".join(self.batches[begin:end]))
        spans = tuple(
            BatchSpan(at, at, self.epochs[at], 0, BATCH_BYTES * (at - begin), BATCH_BYTES * (at - begin + 1))
            for at in range(begin, end)
        )
        return MetaQueueItem(partition(self.number), spans, records, 0.0, 0.0)


class PlainTask:
    def __init__(self, log: PlainLog, begin: int = 0, end: int | None = None) -> None:
        """To `end` alone, or all that comes."""
        self.topic_id_partition, self.directory = partition(log.number), Path(f"t-{log.number}")
        self.next_offset = begin
        self._log, self._end, self._cuts_seen = log, end, len(log.cuts)

    @property
    def missing(self) -> tuple[OffsetRange, ...]:
        return ((self.next_offset, self._end),) if self._end is not None and self.next_offset < self._end else ()

    def run(self, max_bytes: int, seen_s: float, now_s: float) -> TaskOutcome:
        cuts = [cut for cut in self._log.cuts[self._cuts_seen :] if cut < self.next_offset]
        self._cuts_seen = len(self._log.cuts)
        begin = min([self.next_offset, *cuts])
        log_end = len(self._log.batches) if self._end is None else self._end
        end = min(begin + max(max_bytes // BATCH_BYTES, 1), log_end)
        bounds = [at for at in range(begin + 1, end) if self._log.epochs[at] != self._log.epochs[at - 1]]
        edges = [begin, *bounds, end]
        items = tuple(self._log.item(*edge) for edge in pairwise(edges) if edge[0] < edge[1])
        self.next_offset = end
        return TaskOutcome(
            items, (end - begin) * BATCH_BYTES, end, (log_end - end) * BATCH_BYTES,
            min(cuts) if cuts else None, (), deleted=False,
        )  # fmt: skip

    run_cached = run

    def also_read(self, ranges: Iterable[OffsetRange]) -> None:
        raise AssertionError("a core reads nothing")

    def pass_over(self, offset: int) -> "PlainTask | None":
        raise AssertionError("a core reads nothing")

    def unread_bytes(self) -> int:
        raise AssertionError("a core reads nothing")

    def close(self) -> None:
        raise AssertionError("a core closes nothing")


def batches_of(item: MetaQueueItem) -> list[tuple[int, bytes]]:
    return [(span.base_offset, bytes(item.records[span.start : span.end])) for span in item.batches]
