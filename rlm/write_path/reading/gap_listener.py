"""Notified of the parts of a led log that are not uploaded. Event loop only."""

from collections.abc import Iterable
from typing import Protocol

from kafka_log.tail_events import Gap
from metadata_topic.records.offset_ranges import OffsetRange
from rlm.write_path.assignment import Assignment
from rlm.write_path.reading.resume_point import ResumePoint


class GapListener(Protocol):
    """Receives what is not uploaded."""

    def resumed(self, assignment: Assignment, resume: ResumePoint) -> None:
        """Called when the partition is taken on, and its upload continues or begins there."""

    def found(self, assignment: Assignment, gaps: Iterable[Gap]) -> None:
        """Called with ranges that should be uploaded and cannot be had any more."""

    def not_wanted(self, assignment: Assignment, ranges: Iterable[OffsetRange]) -> None:
        """Called with ranges that were left out of objects because nobody wants them stored."""


class _NoGaps:
    def resumed(self, assignment: Assignment, resume: ResumePoint) -> None:
        pass

    def found(self, assignment: Assignment, gaps: Iterable[Gap]) -> None:
        pass

    def not_wanted(self, assignment: Assignment, ranges: Iterable[OffsetRange]) -> None:
        pass


NO_GAPS: GapListener = _NoGaps()
"""A listener that does nothing."""
