"""What the write path's core wants done, as values. `rlm.write_path.effects` does it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.offset_ranges import OffsetRange
from rlm.write_path.assignment import Assignment
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.reading.log_task import TaskOutcome
from rlm.write_path.uploads.segment_queue import MetaQueueItem
from rlm.write_path.uploads.uploaded_segment import UploadedSegment


@dataclass(frozen=True, slots=True)
class Watch:
    """Tell of appends in this directory from now on."""

    partition: TopicIdPartition
    directory: Path


@dataclass(frozen=True, slots=True)
class Release:
    """Watch and read the log no more, and tell the listeners."""

    led: LedPartition


@dataclass(frozen=True, slots=True)
class AskAnew:
    """Ask to be assigned anew, after so long."""

    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TellTruncated:
    """Tell the listeners that what was uploaded from this offset on is dead."""

    partition: TopicIdPartition
    offset: int


@dataclass(frozen=True, slots=True)
class TellStored:
    """Tell the listeners of an object, with what of it is still wanted."""

    segment: UploadedSegment


@dataclass(frozen=True, slots=True)
class TellLeftOut:
    """Tell who waits for links that some will not come."""


@dataclass(frozen=True, slots=True)
class TellSettled:
    """Tell that nothing of a hurried log was left to upload."""

    partition: TopicIdPartition


@dataclass(frozen=True, slots=True)
class DeclareGaps:
    """Tell what of the log cannot be had any more."""

    assignment: Assignment
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class DeclareNotWanted:
    """Tell what of the log was left out of objects, as nobody wants it stored."""

    assignment: Assignment
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class CountQueued:
    """Count what a task has read: it waits for its upload."""

    outcome: TaskOutcome


@dataclass(frozen=True, slots=True)
class CountLeftOut:
    """Count what was read and is in no object, as nobody wants it stored."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class CountStored:
    """Count an object, and how long its items waited and took."""

    segment: UploadedSegment
    """With what is not wanted any more, too."""
    started_s: float | None
    """None: of what was passed over, whose times tell nothing."""
    now_s: float


@dataclass(frozen=True, slots=True)
class CountReadFailure:
    """Count a log that could not be read."""

    close_unread: bool = False
    """Close segment files that are not being read, too, as descriptors are lacking."""


@dataclass(frozen=True, slots=True)
class PassOver:
    """Read on where the log's followers are, and hand what lies between to the backlog."""

    led: LedPartition


Action = (
    Watch
    | Release
    | AskAnew
    | TellTruncated
    | TellStored
    | TellLeftOut
    | TellSettled
    | DeclareGaps
    | DeclareNotWanted
    | CountLeftOut
    | CountQueued
    | CountStored
    | CountReadFailure
    | PassOver
)


@dataclass(frozen=True, slots=True)
class Read:
    """Run one task."""

    led: LedPartition
    seen_s: float
    """When the oldest append that it is to read was noticed."""


@dataclass(frozen=True, slots=True)
class Reads:
    """Do the actions, then run the tasks, for at most so many bytes altogether, and tell what each found."""

    first: Sequence[PassOver]
    reads: Sequence[Read]
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class Upload:
    """Make one object of the items, and tell what it came to."""

    items: list[MetaQueueItem]
    started_s: float
    bytes_per_s: float | None = None
    """What was appended on the average since the upload before began; None: that was long ago."""
    known_bytes: int = 0
    """All that `Pacing` was told of by then as read, or as left unread."""
