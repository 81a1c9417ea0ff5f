"""How many combined segments there are, by owner and state, without a look at their entries."""

import sqlite3
from dataclasses import dataclass

from plugin.segment_metadata import RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class SegmentTally:
    """How many segments of one broker are in one state, over all its incarnations."""

    broker_id: int
    state: RemoteLogSegmentState
    segments: int
    bytes: int
    """Bytes of the segments whose size is known."""
    oldest_ms: int
    """The earliest and the latest time of their last record, the writers' wall clocks, milliseconds since 1970."""
    newest_ms: int


def tallies(connection: sqlite3.Connection) -> list[SegmentTally]:
    """Return one tally for each broker and state that occurs, sorted by both."""
    return [
        SegmentTally(broker_id, RemoteLogSegmentState(state), *others)
        for broker_id, state, *others in connection.execute(
            "SELECT broker_id, state, count(*), sum(max(size_bytes, 0)), min(event_timestamp_ms),"
            " max(event_timestamp_ms) FROM segments GROUP BY broker_id, state ORDER BY broker_id, state"
        )
    ]
