"""How far apart an agent's uploads are to be, so that all agents can follow what all of them make, sans-IO.

Each agent reads what the metadata topic tells of every object, and is told by the leaders of those that it follows: so
its CPU grows with the objects of all, and at 90 brokers an object each 25 ms from each would be more than one agent
carries (docs/scale.md). Brokers that make few objects leave their share to those that make many: the bound is shared
max-min fairly, as bandwidth is (Bertsekas, Gallager, Data Networks, 6.5.2). All agents read the same topic, so they
come to the same share without asking each other.
"""

from collections.abc import Iterable
from typing import Final

HEADROOM: Final = 1.25
"""What an agent might want beside what it makes. An agent that is held back makes a little less than its share, as an
upload begins a little late; taken at its word, it would be let go of."""


def spacing_s(objects_per_s: Iterable[float], bound_per_s: float) -> float:
    """From one upload to the next at least, for each agent, where the agents make so many objects and all together are
    to make `bound_per_s`; 0: nobody is held back.
    """
    wanted = sorted(rate * HEADROOM for rate in objects_per_s)
    left_per_s = bound_per_s
    for place, rate in enumerate(wanted):
        sharing = len(wanted) - place
        if rate * sharing > left_per_s:
            return sharing / left_per_s
        left_per_s -= rate
    return 0.0
