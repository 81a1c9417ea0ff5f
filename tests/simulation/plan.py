"""What happens in a run: a list of events by seed, and the search for a shorter one that fails as well."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.simulation.archive.archive_plan import WEIGHTS as ARCHIVE_WEIGHTS
from tests.simulation.archive.archive_plan import is_archived
from tests.simulation.replicas.replica_plan import WEIGHTS as REPLICATED_WEIGHTS
from tests.simulation.replicas.replica_plan import is_replicated

EVENTS = 320


class Event(NamedTuple):
    after_s: float
    """Since the event before."""
    kind: str
    number: int
    """What it means is the kind's matter."""


WEIGHTS = {
    "append": 40,
    "burst": 5,
    "roll": 6,
    "tear": 3,
    "expire": 3,
    "compact": 1,
    "elect": 3,
    "assign": 2,
    "store": 5,
    "topic": 4,
    "crash": 3,
    "stop": 2,
    "follow": 14,
    "jump": 2,
    "hurry": 2,
    "retention": 2,
    "mute": 1,
    "delete topic": 0.3,
    "leave": 0.7,
    "declare dead": 2,
    "lose events": 1,
    "let be": 4,
}


def plan(seed: int, events: int = EVENTS) -> list[Event]:
    weights = REPLICATED_WEIGHTS if is_replicated(seed) else WEIGHTS | (ARCHIVE_WEIGHTS if is_archived(seed) else {})
    rng = random.Random(f"{seed} plan")
    kinds = rng.choices(list(weights), weights=list(weights.values()), k=events)
    return [Event(_after_s(rng), kind, rng.getrandbits(30)) for kind in kinds]


def _after_s(rng: random.Random) -> float:
    kind = rng.random()
    if kind < 0.35:
        return 0.0
    if kind < 0.75:
        return rng.uniform(0.0005, 0.02)
    return rng.uniform(0.02, 0.3) if kind < 0.95 else rng.uniform(0.3, 3)


def shortened(events: Sequence[Event], fails: Callable[[Sequence[Event]], bool], tries: int = 400) -> list[Event]:
    """Fewer events that fail as well: parts are left out while it does, halves first (Zeller's ddmin)."""
    left, parts = list(events), 2
    while len(left) > 1 and tries > 0:
        size = -(-len(left) // parts)
        for start in range(0, len(left), size):
            fewer = left[:start] + left[start + size :]
            tries -= 1
            if fewer and fails(fewer):
                left, parts = fewer, max(parts - 1, 2)
                break
            if tries <= 0:
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(left))
    return left
