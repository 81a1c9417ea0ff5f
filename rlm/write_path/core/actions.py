"""The actions that the write path's core wants done, as values. `RemoteWalLogManager` carries them out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.offset_ranges import OffsetRange
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.trial import Finding
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.reading.log_task import TaskOutcome
from rlm.write_path.uploads.segment_queue import MetaQueueItem, UploadedSegment


@dataclass(frozen=True, slots=True)
class Watch:
    """Report appends in this directory from now on."""

    partition: TopicIdPartition
    directory: Path


@dataclass(frozen=True, slots=True)
class Release:
    """Stop watching and reading the log, and notify the listeners."""

    led: LedPartition


@dataclass(frozen=True, slots=True)
class AskAnew:
    """Ask for new assignments after this delay."""

    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TellTruncated:
    """Notify the listeners that the log was truncated: what was uploaded from this offset on is dead."""

    partition: TopicIdPartition
    offset: int


@dataclass(frozen=True, slots=True)
class TellStored:
    """Notify the listeners of a stored object, with those of its parts that still belong to their logs."""

    segment: UploadedSegment


@dataclass(frozen=True, slots=True)
class TellLeftOut:
    """Notify responses that wait for links that some links will not come."""


@dataclass(frozen=True, slots=True)
class TellSettled:
    """Report that the log of a hurried upload had nothing left to upload."""

    partition: TopicIdPartition


@dataclass(frozen=True, slots=True)
class DeclareGaps:
    """Declare offsets that the log no longer has, and no object either."""

    assignment: Assignment
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class DeclareNotWanted:
    """Declare offsets that were left out of objects: they went inline, and nothing needs them stored."""

    assignment: Assignment
    ranges: tuple[OffsetRange, ...]
    leader_epoch: int = -1
    """The newest epoch of what was left out; negative: that of the log on disk."""


@dataclass(frozen=True, slots=True)
class CountQueued:
    """Count what a task has read and put into the upload queue."""

    outcome: TaskOutcome


@dataclass(frozen=True, slots=True)
class CountLeftOut:
    """Count what was read of a log and left out of objects."""

    assignment: Assignment
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CountLook:
    """Count a trial's look that ended, with what it found."""

    topic: str
    found: Finding


@dataclass(frozen=True, slots=True)
class CountStored:
    """Count a stored object, and how long its items waited and the upload took."""

    segment: UploadedSegment
    """Includes parts that are not wanted any more."""
    started_s: float | None
    """None for what was passed over, whose times mean nothing."""
    now_s: float


@dataclass(frozen=True, slots=True)
class CountReadFailure:
    """Count a log that could not be read."""

    close_unread: bool = False
    """Also close segment files that are not being read, because descriptors are lacking."""


@dataclass(frozen=True, slots=True)
class PassOver:
    """Continue reading at the followers' position, and give the offsets before it to the backlog."""

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
    | CountLook
    | CountQueued
    | CountStored
    | CountReadFailure
    | PassOver
)


@dataclass(frozen=True, slots=True)
class Read:
    """Read one log with its task."""

    led: LedPartition
    seen_s: float
    """When the oldest append that it has to read was noticed."""


@dataclass(frozen=True, slots=True)
class Reads:
    """Carry out the actions, then read the logs, at most `budget_bytes` together, and report what each read found."""

    first: Sequence[PassOver]
    reads: Sequence[Read]
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class Upload:
    """Make one object of these queued items, and report the outcome."""

    items: list[MetaQueueItem]
    started_s: float
