"""The part of a log that was passed over and is stored beside the new records."""

from dataclasses import dataclass, field

from metadata_topic.records.offset_ranges import OffsetRange
from rlm.write_path.assignment import Assignment
from rlm.write_path.reading.log_task import LogTask
from rlm.write_path.uploads.segment_queue import MetaQueueItem


@dataclass(frozen=True, slots=True)
class BacklogLimits:
    """Limits of the backlog's uploads, beside the uploads for links."""

    object_bytes: int
    """remote.wal.log.manager.combiner.task.upload.bytes"""
    bytes_per_s: int
    """remote.wal.log.manager.backlog.max.bytes.per.second"""
    retry_s: float
    retry_max_s: float


@dataclass(slots=True)
class PassedOver:
    """The offsets of one log that were passed over and are not stored yet. Other threads may read its properties."""

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
        """The first offset that is not stored; None: all are."""
        left = self.left
        return left[0][0] if left else None

    @property
    def offsets(self) -> int:
        """How many offsets are not stored. The log may have no record at some of them."""
        return sum(end - begin for begin, end in self.left)

    @property
    def held_bytes(self) -> int:
        """Bytes that were read and are not stored."""
        return sum(len(item.records) for item in self.items)

    def looked(self) -> None:
        """Update `left` after the task ran, or items were stored."""
        unread = self.task.missing
        if not self.items:
            self.left = unread
            return
        read_to = self.items[-1].last_offset + 1
        self.left = ((self.items[0].first_offset, read_to), *unread)
