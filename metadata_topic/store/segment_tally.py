"""How many combined segments there are, by owner and state, without a look at their entries."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

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

    def joined(self, other: Self) -> Self:
        """Of both, which are of one broker and state."""
        return type(self)(
            self.broker_id,
            self.state,
            self.segments + other.segments,
            self.copies + other.copies,
            self.bytes + other.bytes,
            min(self.oldest_ms, other.oldest_ms),
            max(self.newest_ms, other.newest_ms),
        )


def tally(broker_id: int, facts: NDArray[np.void], custom_metadata: Callable[[int], bytes]) -> list[SegmentTally]:
    """One row for each state that occurs in `metadata_topic.store.segment_facts.FACTS`, in the states' order."""
    return [
        SegmentTally(
            broker_id,
            RemoteLogSegmentState(state),
            len(own),
            sum(
                count * copies_taken(custom_metadata(number))
                for number, count in Counter(own["custom_metadata"].tolist()).items()
            ),
            int(np.maximum(own["size_bytes"], 0).sum()),
            int(own["event_timestamp_ms"].min()),
            int(own["event_timestamp_ms"].max()),
        )
        for state in np.unique(facts["state"]).tolist()
        if len(own := facts[facts["state"] == state])
    ]
