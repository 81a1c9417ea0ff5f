"""Chooses the next action of the write path from the read schedule, the upload schedule and the free queue space.

Sans-IO. `PartitionSchedule` says when each log is due, `GroupCommit` when the next object pays, which depends on for
whom it is (`LinkDecider`).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Final

from kafka_log.topic_partition import TopicIdPartition
from rlm.write_path.commit.group_commit import GATHER_RECENT_S, CommitLimits, GroupCommit, Load, Step, Urgency
from rlm.write_path.commit.link_policy import LinkDecider, LinkMode
from rlm.write_path.commit.partition_schedule import PartitionSchedule, ScheduleIntervals
from rlm.write_path.core.actions import PassOver, Read, Reads, Upload
from rlm.write_path.core.led_partition import BacklogLimits, LedPartition
from rlm.write_path.uploads.segment_queue import ReadingOrder, RemoteSegmentQueue, reading_order


@dataclass(frozen=True, slots=True)
class LogManagerLimits:
    """Limits of the write path."""

    schedule: ScheduleIntervals
    commit: CommitLimits
    task_threads: int
    queue_items: int
    queue_bytes: int
    read_bytes: int
    """The most bytes that tasks running together read."""
    link_wait_max_s: float
    """An upload that takes longer counts as failing: nobody waits for its links."""
    open_files: int
    backlog: BacklogLimits
    in_shadow: bool = False
    """Whether no follower fetches from here, so that what is read shows what followers would fetch."""


FAR_BEHIND_OBJECTS: Final = 8
"""A log with more than so many objects' bytes to read continues at its followers' position: links before that are
useless."""
_PARTITIONS_PER_RUN: Final = 256
"""So many due partitions are read at a time."""


class Pacing:
    """Takes appends as events, and says what to do next. All times are monotonic seconds."""

    def __init__(
        self,
        limits: LogManagerLimits,
        decider: LinkDecider,
        led: Mapping[TopicIdPartition, LedPartition],
        queue: RemoteSegmentQueue,
    ) -> None:
        """Read `led` and `queue`, which others fill."""
        self._limits = limits
        self._decider = decider
        self._led = led
        self._queue = queue
        self.commit = GroupCommit(limits.commit, decider.producers)
        self.schedule = PartitionSchedule(limits.schedule)
        self._appended: dict[TopicIdPartition, None] = {}
        """Partitions with noticed but unread appends, in order, so that a run can be repeated."""
        self.hurried: set[TopicIdPartition] = set()
        self.read_bytes = 0
        """Bytes read from all logs since the start."""
        self._started_s = -math.inf
        """When the last upload began."""

    def forget(self, partition: TopicIdPartition) -> None:
        """Forget a partition that is not led here any more."""
        self._appended.pop(partition, None)
        self.hurried.discard(partition)
        self.schedule.remove(partition)

    # What happened.

    def append_seen(self, partition: TopicIdPartition, now_s: float, *, is_told: bool = True) -> bool:
        """Record an append to the log, or an assumed one (`is_told` False). Returns whether the log is led here."""
        led = self._led.get(partition)
        if led is None:
            return False
        if led.append_seen_s is None:
            led.append_seen_s = now_s
            self._appended[partition] = None
        if is_told:
            self._decider.producers.append_seen(now_s)
        self.schedule.wake(partition, now_s)
        return True

    def left_unread(self, partition: TopicIdPartition, seen_s: float) -> None:
        """Record that a run's budget ended before the log: the rest is as urgent as a new append."""
        self._led[partition].append_seen_s = seen_s
        self._appended[partition] = None

    def links_wanted(self, partitions: Iterable[TopicIdPartition], now_s: float) -> None:
        """Record that followers wait for these partitions' links."""
        for partition in partitions:
            led = self._led.get(partition)
            if led is not None and led.is_settled:
                self.append_seen(partition, now_s, is_told=False)

    def hurry(self, partition: TopicIdPartition, now_s: float, *, hurried: bool) -> None:
        """Upload what the log holds as soon as possible, however little it is, until `hurried` is False."""
        if hurried and self.append_seen(partition, now_s, is_told=False):
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
        if led.at_end_s is not None and offset >= led.uploaded_offset and self._decider.may_link(led.assignment):
            self._decider.fetched(follower_id, size, now_s)

    def came_freely(self, partition: TopicIdPartition, size: int, now_s: float) -> None:
        """Record bytes from producers that do not wait, see `LinkDecider`."""
        if partition in self._led:
            self._decider.came_freely(partition, size, now_s)

    # What others ask.

    def mode_of(self, led: LedPartition, size: int, now_s: float) -> LinkMode:
        """Return how `size` bytes should travel to a follower that waits for them now."""
        return self._decider.mode_of(led.assignment, size, now_s)

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

    def appended(self) -> Iterable[LedPartition]:
        """Return the logs with noticed but unread appends."""
        return (self._led[partition] for partition in self._appended)

    # What next.

    def next_step(self, now_s: float) -> Step:
        """Return what to do now: `reads` and `next_upload`, gather appends, or wait."""
        due_s = self.schedule.next_time_s()
        if due_s is None or self._queue.is_full:
            due_s = math.inf
        has_work = len(self._queue) or due_s <= now_s  # asking for the urgency without any work would keep links in use
        self.commit.spacing_s = self._decider.spacing_s
        urgency = self._urgency(now_s) if has_work else Urgency.ARCHIVE
        expected_bytes, full_bytes = self._decider.expected_bytes(now_s), self._decider.full_object_bytes
        load = Load(
            self._queue.size_bytes,
            due_s,
            bool(self._appended),
            expected_bytes,
            urgency,
            self._decider.bytes_per_s(now_s),
            self._decider.paying_bytes,
            self._decider.wanted_within_s,
            self._decider.wanted_freely,
            full_bytes,
        )
        return self.commit.next_step(load, now_s)

    def round_is_gathered(self) -> bool:
        """Whether all producers that waited for the last object have appended again."""
        return self.commit.is_round(self._queue.size_bytes)

    def gathered_pays(self, now_s: float) -> bool:
        """Whether to upload early what was gathered and read."""
        return self._urgency(now_s) is Urgency.LINKS or self._queue.size_bytes >= self._decider.paying_bytes

    def check_interval(self, now_s: float) -> None:
        """Check what the interval has brought: links by cost end here if that is far too little."""
        size_bytes = self._queue.size_bytes
        if size_bytes and self._urgency(now_s) in (Urgency.PAYING_LINKS, Urgency.BOUNDED_LINKS):
            self._decider.producers.are_held_up(size_bytes, self._decider.paying_bytes, now_s)

    def reads(self, now_s: float) -> Reads | None:
        """Return the logs to read that are due and fit into the queue; None: none."""
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
        """Return the upload to start with what is queued; None while quota or spacing hold it back."""
        if not len(self._queue) or self.commit.held_back_s(now_s):
            return None
        if self.commit.is_too_soon(self._queue.size_bytes, now_s):
            return None
        return self._upload(now_s)

    def last_uploads(self, now_s: float) -> Iterable[Upload]:
        """Yield the last uploads when nothing is read any more, ignoring the quota, unless the last one just failed."""
        while len(self._queue) and not self.commit.back_off_s(now_s) and not self.commit.is_full:
            yield self._upload(now_s)

    def _upload(self, now_s: float) -> Upload:
        items = self._queue.drain(self._limits.commit.upload_bytes, partial(_reading_order, self._led))
        size_bytes = sum(len(item.records) for item in items)
        self._decider.producers.uploading(size_bytes, self._decider.paying_bytes, now_s)
        since_s, self._started_s = now_s - self._started_s, now_s
        self.commit.started(now_s, size_bytes)
        is_recent = 0 < since_s <= GATHER_RECENT_S
        known_bytes = self.read_bytes + self.commit.unread_bytes
        return Upload(items, now_s, size_bytes / since_s if is_recent else None, known_bytes)

    def stored(self, upload: Upload, unread_bytes: int, now_s: float) -> None:
        """Record that the upload is stored, and how many noticed bytes were not read yet."""
        appended_bytes = max(self.read_bytes + unread_bytes - upload.known_bytes, 0)
        rate = upload.bytes_per_s
        upload_s = now_s - upload.started_s
        self._decider.producers.stored(upload_s, appended_bytes, None if rate is None else rate * upload_s, now_s)

    def _urgency(self, now_s: float) -> Urgency:
        """Return how the upload of what is queued and appended is wanted."""
        if any(one in self._appended or not self._led[one].is_settled for one in self.hurried):
            return Urgency.LINKS
        waiting = chain(self._queue.first_partition(), islice(self._appended, _PARTITIONS_PER_RUN))
        led = (self._led.get(partition) for partition in waiting)
        return self._decider.judge_urgency((known.assignment for known in led if known is not None), now_s)


def _reading_order(led: Mapping[TopicIdPartition, LedPartition], partition: TopicIdPartition) -> ReadingOrder:
    known = led.get(partition)
    return reading_order(partition, None if known is None else known.assignment.remote_followers)
