"""The interface of a led log's task for the write path's core, and the outcome of its runs, without any IO."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.offset_ranges import OffsetRange
from rlm.write_path.uploads.segment_queue import MetaQueueItem

ReadError = LogDirectoryError | MalformedFileError
"""Errors of a task's run: the disk, or a broken leader-epoch-checkpoint."""


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What one read of a log by its task found."""

    items: tuple[MetaQueueItem, ...]
    read_bytes: int
    next_offset: int
    """The first offset that was not read yet; negative when the log has not been found."""
    backlog_bytes: int
    """Bytes beyond what was read, known only if something was read. Too high while ranges are missing."""
    truncated_at: int | None
    """The log was cut at this offset: what was uploaded from there on is dead."""
    gaps: tuple[Gap, ...]
    """Ranges that should be read and cannot be had any more."""
    deleted: bool

    @property
    def more(self) -> bool:
        """Whether the log has more to read now."""
        return self.backlog_bytes > 0


class LogTask(Protocol):
    """Reads one led log. `RLMWalTask` implements it."""

    @property
    def topic_id_partition(self) -> TopicIdPartition: ...

    @property
    def directory(self) -> Path: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def missing(self) -> tuple[OffsetRange, ...]: ...

    def also_read(self, ranges: Iterable[OffsetRange]) -> None: ...

    def pass_over(self, offset: int) -> "LogTask | None": ...

    def run(self, max_bytes: int, seen_s: float, now_s: float) -> TaskOutcome: ...

    def run_cached(self, max_bytes: int, seen_s: float, now_s: float) -> TaskOutcome | None: ...

    def unread_bytes(self) -> int: ...

    def close(self) -> None: ...


Run = tuple[LogTask, float]
"""A task, and when the oldest append that it has to read was noticed."""
Outcome = TaskOutcome | ReadError | None
"""None: the budget did not reach this task."""
