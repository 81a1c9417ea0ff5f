"""The write path's core: which logs are led, and what reading and uploading them resulted in. Sans-IO.

It takes events with their (monotonic) time, and returns the actions to do, in order (`actions`). Its `pacing` says what
to do next, and when. It starts nothing, waits for nothing and touches no file, so a plain loop can drive it.

A log's batches are queued in its order, and again after a failed upload. Nothing is read while the queue is full.
`LedPartition.uploaded_offset` never counts a batch that is not stored. A read or an upload that was begun for a former
assignment changes nothing.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Final

import structlog

from kafka_log.errors import LogDirectoryError
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.offset_ranges import NO_END
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.link_policy import LinkDecider, LinkMode
from rlm.write_path.core.actions import (
    Action,
    AskAnew,
    CountLeftOut,
    CountLook,
    CountQueued,
    CountReadFailure,
    CountStored,
    DeclareGaps,
    DeclareNotWanted,
    Read,
    Release,
    TellLeftOut,
    TellSettled,
    TellStored,
    TellTruncated,
    Upload,
    Watch,
)
from rlm.write_path.core.backlog import Backlog
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.core.pacing import LogManagerLimits, Pacing
from rlm.write_path.reading.log_task import LogTask, Outcome, ReadError, TaskOutcome
from rlm.write_path.uploads.segment_queue import MetaQueueItem, RemoteSegmentQueue, UploadedSegment

log = structlog.get_logger(__name__)


class Unwanted:
    """Leaves records out of objects that nothing needs stored, and declares them.

    If links do not pay, bytes go inline; they are stored only if something else needs them (`Assignment.is_kept`, a
    hurried upload). `LeftOut` has the ranges left out of one log.
    """

    def __init__(
        self,
        led: Mapping[TopicIdPartition, LedPartition],
        queue: RemoteSegmentQueue,
        pacing: Pacing,
        decider: LinkDecider,
    ) -> None:
        self._led = led
        self._queue = queue
        self._pacing = pacing
        self._decider = decider

    def leave_out(self, led: LedPartition, outcome: TaskOutcome, now_s: float) -> TaskOutcome:
        """Return the outcome of a read without the records that nothing needs stored."""
        if not outcome.items:
            return outcome
        wanted_from = self._wanted_from(led, now_s)
        if not wanted_from:
            led.left_out.stop_growing()
            return outcome
        kept = []
        for item in outcome.items:
            wanted = item.keep_from(wanted_from)
            begin = item.first_offset
            end = item.last_offset + 1 if wanted is None else wanted.first_offset
            if begin < end:
                led.left_out.grow(begin, end, item.leader_epoch)
                self._pacing.commit.left_out(now_s)
            if wanted is not None:
                led.left_out.stop_growing()
                kept.append(wanted)
        return replace(outcome, items=tuple(kept))

    def drop_queued(self, now_s: float) -> Sequence[Action]:
        """Remove records from the queue, before an upload, that links do not pay for and nothing else needs."""
        taken = self._queue.take_out(lambda item: self._is_unwanted(item, now_s))
        if not taken:
            return ()
        for item in taken:
            led = self._led[item.topic_id_partition]
            if (part := led.unstored_part(item)) is not None:
                led.item_left_out(part)
        self._pacing.commit.left_out(now_s)
        counted = [CountLeftOut(self._led[item.topic_id_partition].assignment, len(item.records)) for item in taken]
        return *counted, TellLeftOut()

    def declare(self, led: LedPartition, now_s: float, *, is_last: bool = False) -> Sequence[Action]:
        """Declare the ranges left out of one log, if due or if these are the last."""
        if not (is_last or led.left_out.is_due(now_s)):
            return ()
        ranges = led.left_out.take(now_s)
        return (DeclareNotWanted(led.assignment, ranges),) if ranges else ()

    def declare_all(self, now_s: float) -> Sequence[Action]:
        """Declare all ranges left out, when nothing is read any more."""
        return [action for led in self._led.values() for action in self.declare(led, now_s, is_last=True)]

    def _wanted_from(self, led: LedPartition, now_s: float) -> int:
        """Return the offset from which on the log is stored; NO_END: nothing of it, because nobody wants it."""
        if led.assignment.is_kept or led.assignment.topic_id_partition in self._pacing.hurried:
            return 0
        return led.held_by_followers if self._decider.mode_of(led.assignment, now_s) is LinkMode.LINK else NO_END

    def _is_unwanted(self, item: MetaQueueItem, now_s: float) -> bool:
        led = self._led.get(item.topic_id_partition)
        return led is not None and self._wanted_from(led, now_s) > item.last_offset


_LOOK_AGAIN_S: Final = 1.0
"""After so long, the start of a log's upload is looked for again."""
_NOBODY: Final = -1
"""The follower in shadow."""
_TAKEN_ON_AT_ONCE: Final = 32
"""Finding where a log's upload continues takes some tenths of a millisecond."""


class WritePathCore:
    """The core of one agent's write path: events come in, `Action`s go out."""

    def __init__(self, limits: LogManagerLimits, decider: LinkDecider) -> None:
        self.led: dict[TopicIdPartition, LedPartition] = {}
        self.queue = RemoteSegmentQueue(limits.queue_items, limits.queue_bytes)
        self.pacing = Pacing(limits, decider, self.led, self.queue)
        self.unwanted = Unwanted(self.led, self.queue, self.pacing, decider)
        self.put_off: dict[TopicIdPartition, str] = {}
        """Partitions that were not taken on, and why."""
        self.backlog = Backlog(limits.commit, limits.backlog_bytes_per_s, self.void)
        self._decider = decider
        self.in_shadow = limits.in_shadow
        self._to_take_on: deque[Assignment] = deque()
        self._unknown: set[TopicIdPartition] = set()

    # Which partitions.

    def assigned(self, assignments: Iterable[Assignment]) -> Sequence[Action]:
        """Set the partitions to upload: exactly these. New ones come through `to_take_on`."""
        wanted = {assignment.topic_id_partition: assignment for assignment in assignments}
        self._decider.set_led(wanted.values())
        released = [known for known in self.led if known not in wanted]
        if released or wanted.keys() - self.led.keys():
            log.info("led_partitions_changed", before=len(self.led), released=len(released), now=len(wanted))
        actions = [action for partition in released for action in self._released(self.led[partition])]
        for partition in self.put_off.keys() - wanted.keys():
            del self.put_off[partition]
        self._to_take_on.clear()
        for partition, assignment in wanted.items():
            led = self.led.get(partition)
            if led is not None and led.assignment.directory == assignment.directory:
                led.assignment = assignment
                continue
            if led is not None:
                actions.append(self._release(partition))
            self._to_take_on.append(assignment)
        return actions

    def to_take_on(self) -> list[Assignment]:
        """Remove and return the next few assignments that are new; few, so that relaying is not held up."""
        return [self._to_take_on.popleft() for _ in range(min(len(self._to_take_on), _TAKEN_ON_AT_ONCE))]

    @property
    def has_to_take_on(self) -> bool:
        """Whether `to_take_on` has more partitions."""
        return bool(self._to_take_on)

    def stopping(self) -> None:
        """Take on no more partitions."""
        self._to_take_on.clear()

    def taken_on(self, assignment: Assignment, task: LogTask) -> Sequence[Action]:
        """Start with a new partition, whose task reads from where the upload of the log continues."""
        partition = assignment.topic_id_partition
        self.put_off.pop(partition, None)
        self._unknown.discard(partition)
        self.led[partition] = LedPartition(assignment, task)
        self.pacing.schedule.add(partition)
        return (Watch(partition, assignment.directory),)

    def resume_unknown(self, assignment: Assignment, reason: str) -> Sequence[Action]:
        """Put a partition off, because it is not known now where its upload continues."""
        partition = assignment.topic_id_partition
        self.put_off[partition] = reason
        log.warning("resume_offset_unknown", partition=str(partition), error=reason, consequence="inline")
        return (AskAnew(_LOOK_AGAIN_S),)

    def not_led(self, partition: TopicIdPartition) -> Sequence[Action]:
        """Ask for new assignments, once, because a follower fetches a partition that is not known as led here."""
        if partition in self._unknown:
            return ()
        self._unknown.add(partition)
        return (AskAnew(),)

    def void(self, partition: TopicIdPartition) -> Sequence[Action]:
        """Release a log that is not the one that was known, and ask for assignments, to begin at its resume point."""
        return self._release(partition), AskAnew()

    def find(self, topic_id: bytes | None, partition: int) -> TopicIdPartition | None:
        """Return the partition, if it is led here."""
        if topic_id is None:
            return None
        wanted = TopicIdPartition(TopicId(topic_id), partition)
        return wanted if wanted in self.led else None

    def _released(self, led: LedPartition) -> Iterator[Action]:
        # Nobody resumes a log whose topic is disabled now. Only the batches' own epoch is sure to be the one in which
        # they were left out: the log on disk may have another leader's by now.
        epoch, ranges = led.left_out.leader_epoch, led.left_out.take(0.0)
        if ranges and epoch >= 0:
            yield DeclareNotWanted(led.assignment, ranges, epoch)
        yield self._release(led.assignment.topic_id_partition)

    def _release(self, partition: TopicIdPartition) -> Release:
        led = self.led.pop(partition)
        self.pacing.forget(partition)
        self.queue.discard(partition)
        return Release(led)

    # What reads came to.

    def read_done(self, read: Read, outcome: Outcome, now_s: float) -> Sequence[Action]:
        """Handle the outcome of a read; None: the budget ended before."""
        led, schedule = read.led, self.pacing.schedule
        partition = led.assignment.topic_id_partition
        if self.led.get(partition) is not led:  # released meanwhile, and perhaps taken on again
            schedule.succeeded(partition, now_s, more=True)
            return ()
        if outcome is None:
            self.pacing.left_unread(partition, read.seen_s)
            schedule.succeeded(partition, now_s, more=True)
            return ()
        led.is_failing = isinstance(outcome, ReadError)
        if isinstance(outcome, ReadError):
            led.append_seen_s = read.seen_s
            log.warning("log_read_failed", partition=str(partition), error=str(outcome))
            schedule.failed(partition, now_s)
            return (CountReadFailure(isinstance(outcome, LogDirectoryError) and outcome.lacks_descriptors),)
        schedule.succeeded(partition, now_s, outcome.more)
        return self._found(led, outcome, now_s)

    def _found(self, led: LedPartition, outcome: TaskOutcome, now_s: float) -> Sequence[Action]:
        partition = led.assignment.topic_id_partition
        actions: list[Action] = []
        if outcome.truncated_at is not None:
            actions.append(self._truncated(led, outcome.truncated_at))
            if led.passed_over is not None and led.passed_over.left:
                return [*actions, *self.void(partition)]
        led.read_batches += sum(len(item.batches) for item in outcome.items)
        if outcome.gaps:
            actions.append(DeclareGaps(led.assignment, outcome.gaps))
        read_bytes = sum(len(item.records) for item in outcome.items)
        if self.in_shadow and outcome.items:
            self.pacing.fetched(_NOBODY, partition, outcome.items[0].first_offset, read_bytes, now_s)
        outcome = self.unwanted.leave_out(led, outcome, now_s)
        if left_out_bytes := read_bytes - sum(len(item.records) for item in outcome.items):
            actions.append(CountLeftOut(led.assignment, left_out_bytes))
        actions += self.unwanted.declare(led, now_s)
        self.pacing.put(outcome.items, now_s)
        led.log_read(outcome)
        if outcome.more:
            self.pacing.left_unread(partition, now_s)
            self.pacing.commit.left_unread(partition, outcome.backlog_bytes)
        actions.append(CountQueued(outcome))
        appended = led.came_to_end(outcome, now_s)
        if appended is not None:
            self._decider.appended(led.assignment, *appended, now_s)
        if partition in self.pacing.hurried and led.is_settled:
            actions.append(TellSettled(partition))
        if outcome.deleted:  # if it exists again, it is assigned and taken on again
            actions.append(self._release(partition))
        return actions

    def _truncated(self, led: LedPartition, offset: int) -> Action:
        partition = led.assignment.topic_id_partition
        log.info("log_truncated", partition=str(partition), offset=offset)
        self.queue.discard(partition, offset)
        led.truncated(offset)
        return TellTruncated(partition, offset)

    def look(self, unread_bytes: Callable[[LedPartition], int], now_s: float) -> Sequence[Action]:
        """Give the trials their samples, after due logs were read. During a look no response waits for links."""
        found = [CountLook(*one) for one in self.pacing.look(unread_bytes, now_s)]
        return (*found, TellLeftOut()) if self._decider.trials.is_looking else found

    # What uploads came to.

    def upload_stored(self, upload: Upload, segment: UploadedSegment, now_s: float) -> Sequence[Action]:
        """Handle a stored object. The log may have been truncated, or its leadership lost, meanwhile."""
        self.pacing.commit.stored(upload.started_s)
        self._decider.price.uploaded(now_s - upload.started_s, len(segment.entries))
        of_items = segment.digests or repeat((), len(segment.items))
        live = [
            (part, entry, of_item[: len(part.batches)])  # a truncation leaves an item's first batches
            for item, entry, of_item in zip(segment.items, segment.entries, of_items, strict=True)
            if (part := self._unstored_part(item)) is not None
        ]
        for item, _, _ in live:
            self.led[item.topic_id_partition].item_stored(item)
        items, entries = tuple(item for item, _, _ in live), tuple(entry for _, entry, _ in live)
        digests = tuple(of_item for _, _, of_item in live) if segment.digests else ()
        told = TellStored(replace(segment, items=items, entries=entries, digests=digests))
        return told, CountStored(segment, upload.started_s, now_s)

    def upload_failed(self, upload: Upload, now_s: float) -> None:
        """Put the items back into the queue after a failed upload; the object may exist all the same."""
        self.pacing.commit.failed(upload.started_s, now_s)
        self.queue.put_back(part for item in upload.items if (part := self._unstored_part(item)) is not None)

    def backlog_stored(self, segment: UploadedSegment) -> Sequence[Action]:
        """Handle a stored object of the backlog."""
        stored = dict.fromkeys(item.topic_id_partition for item in segment.items)
        settled = [TellSettled(partition) for partition in stored if partition in self.pacing.hurried]
        return CountStored(segment, None, segment.stored_s), *settled

    def _unstored_part(self, item: MetaQueueItem) -> MetaQueueItem | None:
        led = self.led.get(item.topic_id_partition)
        return led.unstored_part(item) if led is not None else None
