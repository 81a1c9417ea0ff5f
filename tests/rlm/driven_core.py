"""The write path's core in a plain loop that does at once, or later, what it wants."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kafka_log.batch_digests import batch_digests
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.cadence import Cadence, CommitLimits
from rlm.write_path.commit.link_policy import LinkDecider
from rlm.write_path.commit.price import Outlook, Price
from rlm.write_path.core.actions import Action, TellStored, Upload
from rlm.write_path.core.pacing import LogManagerLimits, Look, UploadNow, Wait
from rlm.write_path.core.partition_schedule import ScheduleIntervals
from rlm.write_path.core.write_path_core import WritePathCore
from rlm.write_path.uploads.segment_queue import UploadedSegment
from tests.rlm.plain_log import BATCH_BYTES, PlainLog, PlainTask, batches_of, partition

LIMITS = LogManagerLimits(
    CommitLimits(
        interval_s=0.025, archive_interval_s=100.0, upload_bytes=2 * BATCH_BYTES, max_in_flight=3, retry_s=0.5,
        retry_max_s=4.0,
    ),
    schedule=ScheduleIntervals(process_s=60.0, retry_s=1.0, retry_max_s=4.0),
    task_threads=1,
    queue_items=8,
    queue_bytes=6 * BATCH_BYTES,
    read_bytes=4 * BATCH_BYTES,
    link_wait_max_s=0.5,
    open_files=4,
    backlog_bytes_per_s=1000,
)  # fmt: skip


def price(break_even_bytes: float, wait_max_s: float) -> Price:
    """Objects pay from this size, whatever their entries."""
    return Price(lambda _led: Outlook(break_even_bytes, 0.0, 1.0), wait_max_s)


class Driven:
    """A core, what it leads, and a loop that does at once, or later, what it wants."""

    def __init__(self, break_even_bytes: int = 10**9, **changes: Any) -> None:
        limits = replace(LIMITS, **changes)
        self.decider = LinkDecider(price(break_even_bytes, 0.025), Cadence(limits.commit), has_trials=False)
        self.core = WritePathCore(limits, self.decider)
        self.now_s = 1000.0
        self.logs = [PlainLog(number) for number in range(3)]
        self.actions: list[Action] = []
        self.uploads: list[Upload] = []
        self.reading: list[Callable[[], None]] = []
        """What reads that are under way have found, to be told."""
        self.stored: set[bytes] = set()
        self.told: list[tuple[int, bytes]] = []
        """Offsets and batches that listeners were told of as stored, in that order."""
        self.objects = 0

    def assign(self, *numbers: int, policy: LinkPolicy = LinkPolicy.ALWAYS, is_kept: bool = True) -> None:
        self._do(
            self.core.assigned(
                Assignment(partition(n), "t", Path(f"t-{n}"), policy, 20, False, frozenset({2, 3}), is_kept)
                for n in numbers
            )
        )
        while self.core.has_to_take_on:
            for assignment in self.core.to_take_on():
                task = PlainTask(self.logs[assignment.topic_id_partition.partition])
                self._do(self.core.taken_on(assignment, task))

    def append(self, number: int, count: int = 1) -> None:
        self.logs[number].append(count)
        self.core.pacing.append_seen(partition(number), self.now_s)

    def begin_reads(self) -> None:
        reads = self.core.pacing.reads(self.now_s)
        if reads is None:
            return
        assert not self.reading, "reads are awaited before the next ones"
        self._do(reads.first)
        left = reads.budget_bytes
        for read in reads.reads:
            outcome = read.led.task.run(left, read.seen_s, self.now_s) if left > 0 else None
            left -= outcome.read_bytes if outcome is not None else 0
            self.reading.append(lambda read=read, outcome=outcome: self._do(  # type: ignore[misc]
                self.core.read_done(read, outcome, self.now_s)
            ))  # fmt: skip

    def end_reads(self) -> None:
        ended, self.reading = self.reading, []
        for tell in ended:
            tell()

    def read(self) -> None:
        self.begin_reads()
        self.end_reads()

    def begin_upload(self) -> None:
        if not self.core.pacing.commit.is_full and (upload := self.core.pacing.next_upload(self.now_s)) is not None:
            self.uploads.append(upload)

    def end_upload(self, which: int = 0, *, succeeds: bool = True) -> None:
        upload = self.uploads.pop(which % len(self.uploads))
        if not succeeds:
            self.core.upload_failed(upload, self.now_s)
            return
        self.objects += 1
        items = tuple(upload.items)
        self.stored |= {raw for item in items for _, raw in batches_of(item)}
        entries = tuple(item.metadata_entry() for item in items)
        digests = tuple(batch_digests(item.records, item.batches) for item in items)
        segment_id = CombinedSegmentId(1, 1, self.objects)
        segment = UploadedSegment(segment_id, items, entries, 1, self.now_s, digests=digests)
        self._do(self.core.upload_stored(upload, segment, self.now_s))

    def settle(self) -> None:
        """As the product's loop does it, while nothing fails."""
        self.end_reads()
        for _ in range(300):
            match self.core.pacing.next_step(self.now_s):
                case UploadNow():
                    self.read()
                    self._do(self.core.unwanted.drop_queued(self.now_s))
                    self.begin_upload()
                case Look():
                    self.read()
                    self._do(self.core.look(lambda _led: 0, self.now_s))
                case Wait() if self.uploads:
                    self.now_s += 0.01
                    while self.uploads:
                        self.end_upload()
                case Wait(delay_s):
                    due_s = self.core.pacing.schedule.next_time_s()
                    if not len(self.core.queue) and (due_s is None or due_s > self.now_s):
                        return
                    assert delay_s is not None, "nothing would go on"
                    self.now_s += delay_s
        raise AssertionError("it does not come to an end")

    def uploaded(self, number: int) -> int:
        return self.core.led[partition(number)].uploaded_offset

    def taken(self, kind: type[Action]) -> list[Action]:
        """The actions of this kind since the last call."""
        found = [action for action in self.actions if isinstance(action, kind)]
        self.actions = [action for action in self.actions if not isinstance(action, kind)]
        return found

    def _do(self, actions: Sequence[Action]) -> None:
        self.actions += actions
        for action in actions:
            if isinstance(action, TellStored):
                segment = action.segment
                digests = tuple(batch_digests(item.records, item.batches) for item in segment.items)
                assert segment.digests == digests, "each batch is told with its own digest"
                self.told += [batch for item in segment.items for batch in batches_of(item)]
