"""A partition led by this broker with remote.wal.storage.enable, and how far its upload is."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from metadata_topic.records.offset_ranges import OffsetRange, joined_ranges
from rlm.write_path.assignment import Assignment
from rlm.write_path.core.led_views import StoredLog
from rlm.write_path.reading.log_task import LogTask, TaskOutcome
from rlm.write_path.uploads.segment_queue import MetaQueueItem

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class PassedOver:
    """The offsets of one log that reading skipped and that are not stored yet. Any thread may read its properties."""

    assignment: Assignment
    task: LogTask
    since_s: float
    """When it was passed over."""
    items: list[MetaQueueItem] = field(default_factory=list)
    """Items that were read and are not stored."""
    left: tuple[OffsetRange, ...] = ()
    """Ascending ranges that are not stored, including those of the items."""

    @property
    def first_offset(self) -> int | None:
        """The first offset that is not stored; None if all are."""
        left = self.left
        return left[0][0] if left else None

    @property
    def offsets(self) -> int:
        """How many offsets are not stored. The log may have no record at some of them."""
        return sum(end - begin for begin, end in self.left)

    @property
    def held_bytes(self) -> int:
        """Bytes that were read and wait to be stored."""
        return sum(len(item.records) for item in self.items)

    def update(self) -> None:
        """Recalculate `left`, after the task has read or items were stored."""
        unread = self.task.missing
        if not self.items:
            self.left = unread
            return
        read_to = self.items[-1].last_offset + 1
        self.left = ((self.items[0].first_offset, read_to), *unread)


_ENDED_S: Final = 10.0
_GROWING_S: Final = 600.0
"""That is 41 bytes a partition, before compression: with 1,000 partitions 0.7 % of 10 KB/s."""
_MANY: Final = 100


class LeftOut:
    """Ranges of one led log that were left out of objects: they went inline, and nothing needs them stored.

    Sans-IO. Each range is a pause between linked stretches. They are declared, so that nobody takes them for lost.
    Nothing depends on a declaration being in time: what was not declared yet is read again when the log is resumed, and
    left out again. So a complete range is declared after some seconds, and a growing one every ten minutes.
    """

    def __init__(self) -> None:
        self._ranges: list[OffsetRange] = []
        self._grows_from = -1
        """End of the range that grows; negative: what was read last was kept."""
        self._told_s: float | None = None
        """None: nothing was left out yet."""
        self._has_news = False
        self.leader_epoch = -1
        """The newest epoch of a batch that was left out; negative: none was read."""

    def grow(self, begin: int, end: int, leader_epoch: int) -> None:
        """Add a range that was just read and left out. Offsets in front of it that have no record belong to it."""
        if self._grows_from >= 0:
            begin = min(begin, self._grows_from)
        self._grows_from = end
        self.add_range(begin, end, leader_epoch)

    def add_range(self, begin: int, end: int, leader_epoch: int = -1) -> None:
        """Add a range that was left out without being read now: it was queued before, or skipped."""
        self._ranges = joined_ranges([*self._ranges, (begin, end)])
        self._has_news = True
        self.leader_epoch = max(self.leader_epoch, leader_epoch)

    def stop_growing(self) -> None:
        """End the growing range, because the records behind it are stored."""
        self._grows_from = -1

    def truncate(self, offset: int) -> None:
        """Cut the ranges at the offset where the log was truncated."""
        self._ranges = [(begin, min(end, offset)) for begin, end in self._ranges if begin < offset]
        self._grows_from = min(self._grows_from, offset)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to declare ranges (`take`)."""
        if not self._has_news:
            return False
        if self._told_s is None:
            self._told_s = now_s
        is_ended = self._grows_from < 0 or len(self._ranges) > 1
        return len(self._ranges) >= _MANY or now_s - self._told_s >= (_ENDED_S if is_ended else _GROWING_S)

    def take(self, now_s: float) -> tuple[OffsetRange, ...]:
        """Return the ranges to declare since the last call; a growing range continues where the last one ended."""
        ranges = tuple(self._ranges) if self._has_news else ()
        self._ranges, self._has_news, self._told_s = [], False, now_s
        return ranges


_AT_END_BYTES: Final = 64 * 1024
"""A log with no more than this left to read counts as read to its end: so much may be appended meanwhile."""


@dataclass(slots=True)
class LedPartition:
    """How far one led log is read, queued and uploaded: three offsets with three names.

    Changed in the event loop only; the plain attributes may be read on any thread.
    """

    assignment: Assignment
    task: LogTask
    append_seen_s: float | None = None
    """When the oldest append that was not read yet was noticed."""
    is_failing: bool = False
    """Whether the last run of the task could not read the log."""
    queued_offset: int = -1
    """The first offset that was not put into the queue; negative before the first run of the task."""
    uploaded_offset: int = -1
    """Every batch of this assignment below this offset is stored, except what was passed over or left out."""
    at_end_s: float | None = None
    """When the task last reached the log's end; None: not yet."""
    since_end_bytes: int = 0
    """Bytes that it has read since."""
    to_end_bytes: int = 0
    """Bytes that it has read before, since it first reached the log's end."""
    read_batches: int = 0
    oldest_unstored_s: float | None = None
    backlog_bytes: int = 0
    """Bytes in the log beyond what was read, as of the last run of the task."""
    followers_offset: int = -1
    """The highest offset from which a follower got records."""
    passed_over: PassedOver | None = None
    """What was last left behind for `BacklogUploads`; it may be stored by now."""
    left_out: LeftOut = field(default_factory=LeftOut)
    """The offsets that nobody wants stored."""
    fetch_offsets: dict[int, int] = field(default_factory=dict)
    """By follower, the offset from which it last got records: it has everything below."""
    pending_bytes: int = 0
    """Bytes that are queued or being uploaded."""
    _unstored: dict[int, MetaQueueItem] = field(default_factory=dict)
    """Items that are queued or being uploaded, by first offset, ascending."""

    @property
    def stored_offset(self) -> int:
        """Every batch of this assignment below this offset is stored, or recorded as not wanted."""
        passed_over = None if self.passed_over is None else self.passed_over.first_offset
        return self.uploaded_offset if passed_over is None else min(self.uploaded_offset, passed_over)

    @property
    def held_by_followers(self) -> int:
        """All followers in other zones have everything below this offset; 0 if one has not fetched yet, or none are
        known."""
        followers = self.assignment.remote_followers or ()
        return min((self.fetch_offsets.get(one, 0) for one in followers), default=0)

    @property
    def is_settled(self) -> bool:
        """Whether everything that was read is stored."""
        return not self._unstored

    def log_read(self, outcome: TaskOutcome) -> None:
        """Record a read whose items were put into the queue. After a truncation, call `truncated` first."""
        for item in outcome.items:
            self._unstored[item.first_offset] = item
            self.pending_bytes += len(item.records)
        self.queued_offset = outcome.next_offset
        self.backlog_bytes = outcome.backlog_bytes
        self._unstored_changed()

    def came_to_end(self, outcome: TaskOutcome, now_s: float) -> tuple[int, float] | None:
        """If the task has reached the log's end, return the bytes appended and since when; else None.

        None also at the end of the first pass over an old log: what is read to catch up says nothing about the rate.
        """
        self.since_end_bytes += outcome.read_bytes
        if outcome.backlog_bytes > _AT_END_BYTES:
            return None
        size, since_s = self.since_end_bytes, self.at_end_s
        self.since_end_bytes, self.at_end_s = 0, now_s
        if since_s is None:
            return None
        self.to_end_bytes += size
        return size, since_s

    def is_far_behind(self, far_bytes: int) -> bool:
        """Whether more than `far_bytes` lie between what was read and the followers' position."""
        return self.backlog_bytes > far_bytes and self.followers_offset > self.task.next_offset >= 0

    def unstored_part(self, item: MetaQueueItem) -> MetaQueueItem | None:
        """Return the part of the item that must still be stored, without what is truncated or of an earlier
        assignment."""
        current = self._unstored.get(item.first_offset)
        return current if current is not None and current.records.obj is item.records.obj else None

    def item_stored(self, item: MetaQueueItem) -> None:
        """Record that the result of `unstored_part` is stored."""
        self._remove(item)
        self._unstored_changed()

    def item_left_out(self, item: MetaQueueItem) -> None:
        """Record that a queued item is left out of objects."""
        self._remove(item)
        self.left_out.add_range(item.first_offset, item.last_offset + 1, item.leader_epoch)
        self._unstored_changed()

    def truncated(self, offset: int) -> None:
        """Handle a truncation of the log: batches that reach `offset` or beyond are void."""
        for item in list(self._unstored.values()):
            kept = item.keep_below(offset)
            if kept is None:
                self._remove(item)
            elif kept is not item:
                self._unstored[item.first_offset] = kept
                self.pending_bytes -= len(item.records) - len(kept.records)
        self.followers_offset = min(self.followers_offset, offset)
        self.fetch_offsets = {one: min(fetched, offset) for one, fetched in self.fetch_offsets.items()}
        self.left_out.truncate(offset)
        self._unstored_changed()

    def stored_log(self) -> StoredLog:
        assignment = self.assignment
        return StoredLog(
            assignment.topic_id_partition, assignment.directory, self.stored_offset, assignment.link_policy
        )

    def status(self, now_s: float, *, is_pretended: bool = False) -> "PartitionStatus":
        """Return the status for `describe`; on any thread. `is_pretended`: shadow mode, where nothing is really
        stored."""
        oldest_s = self.oldest_unstored_s if self.oldest_unstored_s is not None else self.append_seen_s
        passed_over = self.passed_over
        if passed_over is not None and passed_over.left:
            oldest_s = passed_over.since_s
        return PartitionStatus(
            self.assignment.topic,
            self.assignment.topic_id_partition.partition,
            max(self.queued_offset, 0),
            0 if is_pretended else max(self.stored_offset, 0),
            self.pending_bytes + self.backlog_bytes,
            0 if oldest_s is None else round((now_s - oldest_s) * 1000),
            0 if passed_over is None else passed_over.offsets,
        )

    def _unstored_changed(self) -> None:
        first = next(iter(self._unstored.values()), None)
        self.uploaded_offset = self.queued_offset if first is None else first.first_offset
        self.oldest_unstored_s = None if first is None else first.seen_s

    def _remove(self, item: MetaQueueItem) -> None:
        del self._unstored[item.first_offset]
        self.pending_bytes -= len(item.records)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The state of a led partition as `remote-wal describe` shows it."""

    topic: str
    partition: int
    log_end_offset: int
    uploaded_offset: int
    lag_bytes: int
    lag_age_ms: int
    """Age of the oldest byte that is not stored; 0 when there is none. For what was passed over, the time since
    then.
    """
    backlog_offsets: int = 0
    """Offsets that were passed over and are not stored yet; `lag_bytes` does not include them."""


@dataclass(frozen=True, slots=True)
class WritePathLoad:
    """What the write path of an agent holds: bytes, uploads, open files."""

    queued_bytes: int
    """Bytes that were read and are in no upload under way."""
    uploads: int
    """Uploads under way, except those of what was passed over (`LedPartition.passed_over`)."""
    open_files: int


_NAMED = 20


def log_unfinished(partitions: Iterable[LedPartition], now_s: float) -> None:
    """Log which records stay only in the logs when uploading ends; the next incarnation continues there."""
    unfinished = [status for led in partitions if (status := led.status(now_s)).lag_bytes]
    if unfinished:
        log.warning(
            "uploads_unfinished",
            partitions=len(unfinished),
            lag_bytes=sum(status.lag_bytes for status in unfinished),
            from_offsets={f"{one.topic}-{one.partition}": one.uploaded_offset for one in unfinished[:_NAMED]},
            consequence="uploaded when an agent takes the partitions on again",
        )
