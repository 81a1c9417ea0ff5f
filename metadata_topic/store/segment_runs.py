"""Segments by the state that they are in: how many there are, their bytes, and where the runs of their entries are.

Not thread-safe, as the store's state that it is a part of.
"""

from collections import Counter
from pathlib import Path

from metadata_topic.records.states import DELETING, FINISHED
from metadata_topic.store.runs.run_index import RunIndex
from metadata_topic.store.segments.segment_table import Segment, SegmentTable
from plugin.format import entry_columns
from plugin.segment_metadata import RemoteLogSegmentState


class SegmentRuns:
    """A segment `enter`s as it is, and `leave`s before it changes."""

    def __init__(self, table: SegmentTable, directory: Path | None) -> None:
        """Large parts of the finished ones' index lie in `directory`, if given."""
        self.finished = RunIndex(table.at, directory=directory)
        self.going = RunIndex(table.at)
        """Of segments whose deletion has begun, and may be held back."""
        self.segments_in: Counter[RemoteLogSegmentState] = Counter()
        self.bytes_in: Counter[RemoteLogSegmentState] = Counter()

    def enter(self, segment: Segment, entry_block: bytes) -> None:
        """Count the segment in its state, and index it when it is finished, or going. To be put back."""
        self.segments_in[segment.state] += 1
        self.bytes_in[segment.state] += max(segment.size_bytes, 0)
        if segment.state is FINISHED:
            self.finished.add(segment, entry_block)
        elif segment.state is DELETING:
            self.going.add(segment, entry_block)

    def leave(self, segment: Segment, entry_block: bytes) -> None:
        """The inverse of `enter`, with the same block."""
        self.segments_in[segment.state] -= 1
        self.bytes_in[segment.state] -= max(segment.size_bytes, 0)
        if segment.state is FINISHED:
            self.finished.remove(segment, _count(entry_block))
        elif segment.state is DELETING:
            self.going.remove(segment, _count(entry_block))


def _count(entry_block: bytes) -> int:
    return entry_columns.entry_count(entry_block) if entry_block else 0
