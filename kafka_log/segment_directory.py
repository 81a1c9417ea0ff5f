"""Knows the segments in a partition directory, at the price of one or two stats while nothing changes.

The directory's modification time says whether to list it again. Before Linux 6.13 that time advances in ticks of some
milliseconds, so a second change within a tick does not show. Two measures compensate for it: after a change the
directory is listed a few times more, and the file that the next roll will create, named by the log end offset, is
checked separately.

A path does not say whose log is there: a topic may have been recreated under its old name, even before the first look.
So if the topic's id is known, it is compared with the directory's own.
"""

import os
from bisect import bisect_right
from pathlib import Path

from kafka_log.broker_files.partition_metadata import read_partition_metadata
from kafka_log.errors import MalformedFileError
from kafka_log.segment_files import list_segments, log_file_name
from kafka_log.topic_partition import TopicId

_LISTINGS_AFTER_A_CHANGE = 3


class SegmentDirectory:
    """The live segments of one partition directory, as the last look found them."""

    __slots__ = ("_identity", "_mtime_ns", "_prefix", "_topic_id", "_unsettled", "bases", "is_gone", "path")

    def __init__(self, path: Path, topic_id: TopicId | None = None) -> None:
        """`topic_id`, if known, is the topic that the directory must belong to."""
        self.path = path
        self._topic_id = topic_id
        """None also once the directory has confirmed this topic."""
        self._prefix = f"{path}{os.sep}"
        self.bases: list[int] = []
        """Base offsets, ascending."""
        self.is_gone = False
        """The directory was deleted, renamed, or recreated under its old name. Final."""
        self._identity: tuple[int, int] | None = None
        self._mtime_ns = -1
        self._unsettled = 0

    def look(self, log_end_offset: int | None = None) -> bool:
        """Check whether the directory has changed, and update `bases` then. Raises OSError.

        `log_end_offset`, if known, is the base offset that the next segment must have.
        """
        try:
            status = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            self.is_gone = True
            return True
        identity = (status.st_dev, status.st_ino)
        if self._identity is None:
            self._identity = identity
        if self._identity != identity or self._is_of_another_topic():
            self.is_gone = True
            return True
        is_new_time = status.st_mtime_ns != self._mtime_ns
        if is_new_time:
            self._mtime_ns = status.st_mtime_ns
            self._unsettled = _LISTINGS_AFTER_A_CHANGE
        elif self._unsettled:
            self._unsettled -= 1
        elif log_end_offset is None or not os.access(self._prefix + log_file_name(log_end_offset), os.F_OK):
            return False
        return self._list() or is_new_time

    def _is_of_another_topic(self) -> bool:
        """Whether it is another topic's; False if it does not say yet: a broker writes that before the first batch."""
        if self._topic_id is None:
            return False
        try:
            is_another = read_partition_metadata(self.path) != self._topic_id
        except (FileNotFoundError, MalformedFileError):
            return False
        if not is_another:
            self._topic_id = None
        return is_another

    def relook(self) -> bool:
        """Read the directory again, without trusting earlier knowledge."""
        self._mtime_ns = -1
        return self.look()

    def _list(self) -> bool:
        try:
            bases = list_segments(self.path)
        except (FileNotFoundError, NotADirectoryError):
            self.is_gone = True
            return True
        changed = bases != self.bases
        self.bases = bases
        return changed

    @property
    def is_unsettled(self) -> bool:
        """Whether the directory changed so recently that a further change may not be visible in its time."""
        return self._unsettled > 0

    @property
    def mtime_ns(self) -> int:
        return self._mtime_ns

    def file_path(self, base_offset: int) -> Path:
        """Return the path of the segment that begins with `base_offset`, whether it exists or not."""
        return self.path / log_file_name(base_offset)

    def holding(self, offset: int) -> int | None:
        """Return the base offset of the segment that `offset` belongs to; None before the log's start."""
        index = bisect_right(self.bases, offset) - 1
        return self.bases[index] if index >= 0 else None

    def find_next(self, base_offset: int) -> int | None:
        """Return the base offset of the next segment, or None."""
        index = bisect_right(self.bases, base_offset)
        return self.bases[index] if index < len(self.bases) else None
