"""The load produced to one broker, and the resulting logs, for `perf.cost.world`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafka_log.record_batch import BatchSpan
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.offset_ranges import OffsetRange
from metadata_topic.settings.topic_settings import LinkPolicy
from rlm.write_path.assignment import Assignment
from rlm.write_path.reading.log_task import LogTask, TaskOutcome
from rlm.write_path.uploads.segment_queue import MetaQueueItem

FOLLOWER_IDS: Final = (2, 3)
"""The followers' ids; each is in a zone of its own."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load produced to one broker."""

    bytes_per_s: float
    """The average over all time."""
    burst_s: float = 0.0
    """The active part of each period; 0: steady."""
    period_s: float = 0.0
    acks_all: bool = False
    """Whether each producer waits for the followers before its next batch."""
    partitions: int = 12
    request_bytes: int = 0
    """The request size of one producer that sends requests without waiting, which the broker takes one by one, as with
    librdkafka. 0: there is none; `acks_all` must be set with it."""

    @property
    def peak_bytes_per_s(self) -> float:
        """The rate while records are produced."""
        return self.bytes_per_s * (self.period_s / self.burst_s if self.burst_s else 1.0)

    @property
    def batch_bytes(self) -> int:
        """The bytes that producers send in 5 ms, from 1 KB to a default batch; 128 KB if they wait for each."""
        if self.request_bytes:
            return self.request_bytes
        return int(min(max(self.peak_bytes_per_s * 0.005, 1000), 128_000 if self.acks_all else 16_000))

    @property
    def producers(self) -> int:
        """The number of producers; waiting ones must be enough to reach the rate with rounds of 40 ms."""
        if self.request_bytes:
            return 1
        return max(6, int(self.peak_bytes_per_s * 0.04 / self.batch_bytes) + 1) if self.acks_all else 6

    def active_from(self, now_s: float) -> float:
        """Return the time from now on at which something may be produced."""
        if not self.burst_s or now_s % self.period_s < self.burst_s:
            return now_s
        return (now_s // self.period_s + 1) * self.period_s


class ProducedLog:
    """One partition: batches of one size and one record, so an offset determines the position of its bytes."""

    def __init__(self, number: int, batch_bytes: int) -> None:
        self.partition = TopicIdPartition(TopicId(b"c" * 16), number)
        self.batch_bytes = batch_bytes
        self.end = 0
        self.object_of: dict[int, int] = {}
        """By offset, the sequence of the object that holds it."""
        self.high_watermark_waits: list[tuple[int, Callable[[], None]]] = []

    def spans(self, begin: int, end: int) -> tuple[BatchSpan, ...]:
        size = self.batch_bytes
        return tuple(BatchSpan(at, at, 0, 0, size * (at - begin), size * (at - begin + 1)) for at in range(begin, end))


class ProducedTask:
    """A LogTask on a produced log."""

    def __init__(self, log: ProducedLog, content: memoryview) -> None:
        self._log = log
        self._content = content
        self.topic_id_partition, self.directory = log.partition, Path(f"c-{log.partition.partition}")
        self.next_offset = 0
        self.missing: tuple[OffsetRange, ...] = ()

    def run(self, max_bytes: int, seen_s: float, now_s: float) -> TaskOutcome:
        log, begin = self._log, self.next_offset
        end = min(log.end, begin + max(max_bytes // log.batch_bytes, 1))
        self.next_offset, size = end, (end - begin) * log.batch_bytes
        items = (
            (MetaQueueItem(log.partition, log.spans(begin, end), self._content[:size], seen_s, now_s),) if size else ()
        )
        return TaskOutcome(items, size, end, self.unread_bytes(), None, (), deleted=False)

    run_cached = run

    def unread_bytes(self) -> int:
        return (self._log.end - self.next_offset) * self._log.batch_bytes

    def also_read(self, ranges: object) -> None: ...

    def pass_over(self, offset: int) -> LogTask | None:
        return None

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Assigned:
    """The link policy and retention of the load's partitions."""

    policy: LinkPolicy = LinkPolicy.COST
    is_kept: bool = False
    object_life_s: float = 3600.0

    def to(self, partition: TopicIdPartition) -> Assignment:
        return Assignment(
            partition,
            "load",
            Path(f"load-{partition.partition}"),
            self.policy,
            20,
            False,
            frozenset(FOLLOWER_IDS),
            self.is_kept,
            self.object_life_s,
        )
