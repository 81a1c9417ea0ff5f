"""Segments by the state that they are in: how many there are, their bytes, and where the runs of their entries are.

Not thread-safe, as the store's state that it is a part of.
"""

from collections import Counter
from pathlib import Path

from metadata_topic.records.states import DELETING, FINISHED
from metadata_topic.store.run_index import RunIndex
from metadata_topic.store.segment_table import Segment
from plugin.segment_metadata import RemoteLogSegmentState


class SegmentRuns:
    """A segment `enter`s as it is, and `leave`s before it changes."""

    def __init__(self, directory: Path | None) -> None:
        """Large parts of the finished ones' index lie in `directory`, if given."""
        self.finished = RunIndex(directory=directory)
        self.going = RunIndex()
        """Of segments whose deletion has begun, and may be held back."""
        self.segments_in: Counter[RemoteLogSegmentState] = Counter()
        self.bytes_in: Counter[RemoteLogSegmentState] = Counter()

    def enter(self, segment: Segment) -> None:
        """Count the segment in its state, and index it when it is finished, or going."""
        self.segments_in[segment.state] += 1
        self.bytes_in[segment.state] += max(segment.size_bytes, 0)
        if segment.state is FINISHED:
            self.finished.add(segment)
        elif segment.state is DELETING:
            self.going.add(segment)

    def leave(self, segment: Segment) -> None:
        """The inverse of `enter`."""
        self.segments_in[segment.state] -= 1
        self.bytes_in[segment.state] -= max(segment.size_bytes, 0)
        if segment.state is FINISHED:
            self.finished.remove(segment)
        elif segment.state is DELETING:
            self.going.remove(segment)
