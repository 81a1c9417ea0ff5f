"""The life cycle of a combined segment (KIP-405's RemoteLogSegmentState), as one table.

Theory. A segment only ever moves forward through its states::

    COPY_SEGMENT_STARTED ──► COPY_SEGMENT_FINISHED ──► DELETE_SEGMENT_STARTED ──► DELETE_SEGMENT_FINISHED
             └────────────────────────────────────────────────▲

Records about one segment may come from several agents, through several partitions of the metadata topic,
twice, out of order, and without their predecessors, which the topic's retention may have cut off. Every
record is whole, so none needs a predecessor, and what a record does depends only on the state known so far:

- it may repeat that state (agents retry, and a retried deletion is published again),
- it may be the next state of the table, or one further on whose predecessors were not seen (yet or ever),
- or it may tell of a state that is over, which changes nothing about the state.

So the state is the furthest one seen, in whatever order the records came.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from plugin.segment_metadata import RemoteLogSegmentState

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED

TRANSITIONS: Mapping[RemoteLogSegmentState, frozenset[RemoteLogSegmentState]] = MappingProxyType(
    {
        STARTED: frozenset({STARTED, FINISHED, DELETING}),
        FINISHED: frozenset({FINISHED, DELETING, DELETED}),
        DELETING: frozenset({DELETING, DELETED}),
        DELETED: frozenset({DELETED}),
    }
)
"""What a writer may publish next. Readers accept more, see `step`.

FINISHED becomes DELETED at once if the object was found missing: nobody decided that its records are not wanted.
"""


class Step(Enum):
    """What a record means for the state of its segment: a step forward, a repetition, or a record that came late."""

    FIRST = "first"
    """Nothing was known of the segment."""
    NEXT = "next"
    REPEATED = "repeated"
    SKIPPED_AHEAD = "skipped_ahead"
    """The states between were not seen; they may still come."""
    REGRESSION = "regression"
    """A past state arrived. The state stays."""


def _beyond(state: RemoteLogSegmentState) -> frozenset[RemoteLogSegmentState]:
    """Return every state that follows `state` by one or more transitions."""
    found: set[RemoteLogSegmentState] = set()
    newest = {state}
    while newest:
        newest = {after for before in newest for after in TRANSITIONS[before]} - found - {state}
        found |= newest
    return frozenset(found)


_BEYOND = {state: _beyond(state) for state in RemoteLogSegmentState}


def step(known: RemoteLogSegmentState | None, arriving: RemoteLogSegmentState) -> Step:
    """Return what `arriving` means when `known` is the furthest state seen; None when nothing was seen."""
    if known is None:
        return Step.FIRST
    if arriving == known:
        return Step.REPEATED
    if arriving in TRANSITIONS[known]:
        return Step.NEXT
    return Step.SKIPPED_AHEAD if arriving in _BEYOND[known] else Step.REGRESSION


def furthest(known: RemoteLogSegmentState | None, arriving: RemoteLogSegmentState) -> RemoteLogSegmentState:
    """Return the state after `arriving`: associative, commutative and idempotent."""
    if known is None or arriving in _BEYOND[known]:
        return arriving
    return known
