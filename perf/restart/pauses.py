"""How long nothing happened."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Pause(NamedTuple):
    """In seconds, by the clock that the events were taken with."""

    length_s: float
    begun_s: float


def longest_pause(events_s: Sequence[float], begin_s: float, end_s: float) -> Pause:
    """The longest time between two events in a row that reaches into [begin, end]; without an event after, up to `end`.

    `events_s` are in order. What came last before `begin` counts: a pause may have begun then.
    """
    before = [event_s for event_s in events_s if event_s < begin_s]
    within = [event_s for event_s in events_s if begin_s <= event_s <= end_s]
    times = [before[-1] if before else begin_s, *within, end_s]
    return max(Pause(later - earlier, earlier) for earlier, later in pairwise(times))
