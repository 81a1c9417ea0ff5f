"""Who is told what of a led log is not uploaded. Event loop only."""

from collections.abc import Iterable
from typing import Protocol

from kafka_log.tail_events import Gap
from metadata_topic.records.offset_ranges import OffsetRange
from rlm.write_path.assignment import Assignment
from rlm.write_path.reading.resume_point import ResumePoint


class GapListener(Protocol):
    """Who wants to know what is not uploaded."""

    def resumed(self, assignment: Assignment, resume: ResumePoint) -> None:
        """The partition is taken on, and its upload goes on or begins there."""

    def found(self, assignment: Assignment, gaps: Iterable[Gap]) -> None:
        """Of what was to be uploaded, this cannot be had any more."""

    def not_wanted(self, assignment: Assignment, ranges: Iterable[OffsetRange]) -> None:
        """This was left out of objects, as nobody wants it stored."""


class _NoGaps:
    def resumed(self, assignment: Assignment, resume: ResumePoint) -> None:
        pass

    def found(self, assignment: Assignment, gaps: Iterable[Gap]) -> None:
        pass

    def not_wanted(self, assignment: Assignment, ranges: Iterable[OffsetRange]) -> None:
        pass


NO_GAPS: GapListener = _NoGaps()
"""Tells nobody."""
