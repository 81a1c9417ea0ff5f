"""How many combined segments there are, by owner and state, without a look at their entries."""

import sqlite3
from dataclasses import dataclass
from typing import Self

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
    """Bytes of the segments whose size is known, of one copy each."""
    oldest_ms: int
    """The earliest and the latest time of their last record, the writers' wall clocks, milliseconds since 1970."""
    newest_ms: int

    def joined(self, other: Self) -> Self:
        """Return the sum of two tallies of one broker and state."""
        return type(self)(
            self.broker_id,
            self.state,
            self.segments + other.segments,
            self.copies + other.copies,
            self.bytes + other.bytes,
            min(self.oldest_ms, other.oldest_ms),
            max(self.newest_ms, other.newest_ms),
        )


def tallies(connection: sqlite3.Connection) -> list[SegmentTally]:
    """Return one tally for each broker and state that occurs, sorted by both."""
    found: dict[tuple[int, int], SegmentTally] = {}
    for broker_id, state, custom_metadata, segments, *others in connection.execute(
        "SELECT broker_id, state, custom_metadata, count(*), sum(max(size_bytes, 0)), min(event_timestamp_ms),"
        " max(event_timestamp_ms) FROM segments GROUP BY broker_id, state, custom_metadata"
    ):
        copies = segments * copies_taken(custom_metadata)
        row = SegmentTally(broker_id, RemoteLogSegmentState(state), segments, copies, *others)
        key = (broker_id, state)
        found[key] = row if key not in found else found[key].joined(row)
    return [found[key] for key in sorted(found)]
