"""How many combined segments there are, by owner and state, without a look at their entries."""

from collections.abc import Iterable
from dataclasses import dataclass

from metadata_topic.store.segment_table import Segment
from plugin.format.bucket_copies import copies_taken
from plugin.segment_metadata import RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class SegmentTally:
    """The segments of one broker, all of its incarnations, in one state."""

    broker_id: int
    state: RemoteLogSegmentState
    segments: int
    copies: int
    """How many buckets hold each of them, together; one where that is not known."""
    bytes: int
    """Of those whose size is known, of one copy each."""
    oldest_ms: int
    """The earliest and the latest time of their last record, the writers' wall clocks, milliseconds since 1970."""
    newest_ms: int


def tally(broker_id: int, segments: Iterable[Segment]) -> list[SegmentTally]:
    """One row for each state that occurs, in the states' order."""
    rows: dict[RemoteLogSegmentState, list[int]] = {}
    for segment in segments:
        at_ms = segment.event_timestamp_ms
        row = rows.setdefault(segment.state, [0, 0, 0, at_ms, at_ms])
        row[0] += 1
        row[1] += copies_taken(segment.custom_metadata)
        row[2] += max(segment.size_bytes, 0)
        if at_ms < row[3]:
            row[3] = at_ms
        elif at_ms > row[4]:
            row[4] = at_ms
    return [SegmentTally(broker_id, state, *rows[state]) for state in sorted(rows)]
