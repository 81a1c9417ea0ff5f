"""The share of all agents' objects that falls to one. Sans-IO."""

from collections.abc import Iterable
from typing import Final

HEADROOM: Final = 1.25
"""An agent may want this many times the objects it makes. A limited agent makes a little less than its share, because
uploads begin a little late; without headroom its limit would be lifted."""


def spacing_s(objects_per_s: Iterable[float], bound_per_s: float) -> float:
    """Return the least time, in seconds, from one upload of an agent to its next; 0 if no agent is limited.

    `objects_per_s` are the agents' rates; all together may make `bound_per_s`. Each agent reads the metadata topic's
    records of every object, and gets announcements from the leaders that it follows. So its CPU grows with the objects
    of all agents: at 90 brokers an object every 25 ms from each would be too much for one agent (docs/performance.md).
    Brokers that make few objects leave their share to those that make many: the limit is shared max-min fairly, like
    bandwidth (Bertsekas, Gallager, Data Networks, 6.5.2). All agents read the same topic, so they calculate the same
    share without asking each other.
    """
    wanted = sorted(rate * HEADROOM for rate in objects_per_s)
    left_per_s = bound_per_s
    for place, rate in enumerate(wanted):
        sharing = len(wanted) - place
        if rate * sharing > left_per_s:
            return sharing / left_per_s
        left_per_s -= rate
    return 0.0
