"""Chooses the next action of the write path from the read schedule, the upload schedule and the free queue space.

Sans-IO. `PartitionSchedule` says when each log is due, `LinkDecider` when the next upload starts, which depends on for
whom it is, and when a trial wants to know what was appended.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import Final

from kafka_log.topic_partition import TopicIdPartition
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.cadence import CommitLimits, Load, Urgency
from rlm.write_path.commit.link_policy import Decision, LinkDecider
from rlm.write_path.commit.trial import Finding, Sample
from rlm.write_path.core.actions import PassOver, Read, Reads, Upload
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.core.partition_schedule import PartitionSchedule, ScheduleIntervals
from rlm.write_path.uploads.segment_queue import MetaQueueItem, ReadingOrder, RemoteSegmentQueue, reading_order


@dataclass(frozen=True, slots=True)
class LogManagerLimits:
    """Limits of the write path: sizes, counts and times."""

    commit: CommitLimits
    queue_bytes: int
    read_bytes: int
    """The most bytes that tasks running together read."""
    link_wait_max_s: float
    """An upload that takes longer counts as failing: nobody waits for its links."""
    open_files: int
    backlog_bytes_per_s: int
    """remote.wal.log.manager.backlog.max.bytes.per.second"""
    in_shadow: bool = False
    """Whether no follower fetches from here, so that what is read shows what followers would fetch."""
    schedule: ScheduleIntervals = field(default_factory=ScheduleIntervals)
    task_threads: int = 2
    """KIP-1176's remote.wal.log.manager.thread.pool.size: threads that read active segments from disk."""
    queue_items: int = 4096
    """KIP-1176's remote.wal.log.manager.combiner.queue.size."""


FAR_BEHIND_OBJECTS: Final = 8
"""A log with more than so many objects' bytes to read continues at its followers' position: links before that are
useless."""
_PARTITIONS_PER_RUN: Final = 256
"""So many due partitions are read at a time."""


@dataclass(frozen=True, slots=True)
class UploadNow:
    """A step: read the logs that are due, then start an upload of what is queued."""


@dataclass(frozen=True, slots=True)
class Look:
    """A step: read the logs that are due, then call `Pacing.look`."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A step: wait for this time or until an event; None: only for an event."""

    delay_s: float | None


Step = UploadNow | Look | Wait


class Pacing:
    """Takes appends as events and returns the next step of the write path. All times are monotonic seconds."""

    def __init__(
        self,
        limits: LogManagerLimits,
        decider: LinkDecider,
        led: Mapping[TopicIdPartition, LedPartition],
        queue: RemoteSegmentQueue,
    ) -> None:
        """`led` and `queue` are read here, and filled by the caller."""
        self._limits = limits
        self._decider = decider
        self._led = led
        self._queue = queue
        self.commit = decider.cadence
        self.schedule = PartitionSchedule(limits.schedule)
        self._appended: dict[TopicIdPartition, None] = {}
        """Partitions with noticed but unread appends, in order, so that a run can be repeated."""
        self.hurried: set[TopicIdPartition] = set()
        self._newest_s = -math.inf
        """When records were last queued."""

    def forget(self, partition: TopicIdPartition) -> None:
        """Forget a partition that is not led here any more."""
        self._appended.pop(partition, None)
        self.hurried.discard(partition)
        self.schedule.remove(partition)

    # What happened.

    def append_seen(self, partition: TopicIdPartition, now_s: float) -> bool:
        """Record an append to the log, seen or assumed. Returns whether the log is led here."""
        led = self._led.get(partition)
        if led is None:
            return False
        if led.append_seen_s is None:
            led.append_seen_s = now_s
            self._appended[partition] = None
        self.schedule.wake(partition, now_s)
        return True

    def put(self, items: Sequence[MetaQueueItem], now_s: float) -> None:
        """Queue items that were read."""
        self._queue.put(items)
        if items:
            self._newest_s = now_s

    def left_unread(self, partition: TopicIdPartition, seen_s: float) -> None:
        """Record that the budget ended before this log was read to its end: the rest is as urgent as a new append."""
        self._led[partition].append_seen_s = seen_s
        self._appended[partition] = None

    def links_wanted(self, partitions: Iterable[TopicIdPartition], now_s: float) -> None:
        """Record that followers wait for these partitions' links."""
        for partition in partitions:
            led = self._led.get(partition)
            if led is not None and led.is_settled:
                self.append_seen(partition, now_s)

    def hurry(self, partition: TopicIdPartition, now_s: float, *, hurried: bool) -> None:
        """Upload the log's records as soon as possible, however few, from now on; `hurried=False` ends that."""
        if hurried and self.append_seen(partition, now_s):
            self.hurried.add(partition)
        else:
            self.hurried.discard(partition)

    def fetched(self, follower_id: int, partition: TopicIdPartition, offset: int, size: int, now_s: float) -> None:
        """Record that a follower is about to get `size` bytes from this offset on, by link or inline."""
        led = self._led.get(partition)
        if led is None:
            return
        led.followers_offset = max(led.followers_offset, offset)
        led.fetch_offsets[follower_id] = offset
        if led.at_end_s is not None and offset >= led.uploaded_offset:
            self._decider.fetched(led.assignment, follower_id, size, now_s)

    # What others ask.

    def upload_expected(self, partition: TopicIdPartition, offset: int, now_s: float) -> bool:
        """Whether the batch at this offset will soon be stored: not yet stored, not far behind, nothing failing."""
        led = self._led.get(partition)
        return (
            led is not None
            and not led.is_failing
            and offset >= led.uploaded_offset
            and led.backlog_bytes <= 2 * self._limits.commit.upload_bytes
            and self.commit.is_prompt(self._limits.link_wait_max_s, now_s)
        )

    # What next.

    def next_step(self, now_s: float) -> Step:
        """Return what to do now: `look`, `reads` and `next_upload`, or wait."""
        look_s = self._decider.look_s(now_s)
        if look_s <= now_s:
            return Look()
        delay_s = min(self.decide(now_s).start_at, look_s) - now_s
        if delay_s <= 0:
            return UploadNow()
        return Wait(None if delay_s == math.inf else delay_s)

    def decide(self, now_s: float) -> Decision:
        """Return how what is queued and appended travels, and when its upload starts."""
        due_s = self.schedule.next_time_s()
        if due_s is None or self._queue.is_full:
            due_s = math.inf
        urgency, has_work = Urgency.ARCHIVE, len(self._queue) or due_s <= now_s
        if has_work and any(one in self._appended or not self._led[one].is_settled for one in self.hurried):
            urgency = Urgency.LINKS
        of, since_s = self._waiting(now_s) if has_work else ((), now_s)
        load = Load(of, self._queue.size_bytes, due_s, urgency, since_s, newest_s=self._newest_s)
        return self._decider.decide(now_s, load)

    def _waiting(self, now_s: float) -> tuple[Iterable[Assignment], float]:
        """Return the partitions of what waits for an upload, and since when."""
        waiting = chain(*(islice(one, _PARTITIONS_PER_RUN) for one in (self._queue.partitions, self._appended)))
        led = [self._led[one] for one in waiting if one in self._led]
        since = (one.oldest_unstored_s if one.oldest_unstored_s is not None else one.append_seen_s for one in led[:1])
        return (one.assignment for one in led), next((one for one in since if one is not None), now_s)

    def look(self, unread_bytes: Callable[[LedPartition], int], now_s: float) -> Sequence[tuple[str, Finding]]:
        """Give the trials their samples, after due logs were read. Returns topic and finding of looks that ended.

        `unread_bytes` returns how many bytes of a log are not read yet.
        """
        samples, wanted = dict[str, Sample](), set(self._decider.trials.wanted(now_s))
        for led in self._led.values() if wanted else ():
            if (topic := led.assignment.topic) in wanted:
                before = samples.get(topic, Sample(now_s, 0, 0))
                size_bytes = before.size_bytes
                if led.at_end_s is not None:
                    size_bytes += led.to_end_bytes + led.since_end_bytes + unread_bytes(led)
                samples[topic] = Sample(now_s, size_bytes, before.batches + led.read_batches)
        return self._decider.look({one: samples.get(one, Sample(now_s, 0, 0)) for one in wanted}, now_s)

    def reads(self, now_s: float) -> Reads | None:
        """Return the logs that are due, to be read as far as the queue has space; None: there are none."""
        if self._queue.is_full:
            return None
        due = self.schedule.take_due(now_s, min(_PARTITIONS_PER_RUN, self._queue.free_items))
        if not due:
            return None
        self.commit.read()
        reads, passed_over = list[Read](), list[PassOver]()
        for partition in due:
            led = self._led[partition]
            in_order = partition in self.hurried or led.assignment.is_durable
            if not in_order and led.is_far_behind(FAR_BEHIND_OBJECTS * self._limits.commit.upload_bytes):
                passed_over.append(PassOver(led))
            reads.append(Read(led, now_s if led.append_seen_s is None else led.append_seen_s))
            led.append_seen_s = None
            self._appended.pop(partition, None)
        return Reads(passed_over, reads, min(self._limits.read_bytes, max(self._queue.free_bytes, 1)))

    def next_upload(self, now_s: float) -> Upload | None:
        """Return the upload of queued items to start now; None if they are to wait, by what was just read."""
        if not len(self._queue) or self.decide(now_s).start_at > now_s:
            return None
        return self._upload(now_s)

    def last_uploads(self, now_s: float) -> Iterable[Upload]:
        """Yield the uploads at shutdown, when nothing is read any more; ignores the quota, unless the last upload
        failed."""
        while len(self._queue) and not self.commit.back_off_s(now_s) and not self.commit.is_full:
            yield self._upload(now_s)

    def _upload(self, now_s: float) -> Upload:
        items = self._queue.drain(self._limits.commit.upload_bytes, partial(_reading_order, self._led))
        size_bytes = sum(len(item.records) for item in items)
        of = {one: self._led[one].assignment for item in items if (one := item.topic_id_partition) in self._led}
        self._decider.uploading(of.values(), size_bytes, now_s)
        self.commit.started(now_s, size_bytes)
        return Upload(items, now_s)


def _reading_order(led: Mapping[TopicIdPartition, LedPartition], partition: TopicIdPartition) -> ReadingOrder:
    known = led.get(partition)
    return reading_order(partition, None if known is None else known.assignment.remote_followers)
