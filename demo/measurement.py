"""What the agents count, added up over all agents and across their restarts.

An agent's counters start anew when it is killed and comes back, so each process of an agent has an account of
its own: what a process counted last stays in the totals when the next one begins. A process that is killed takes
along what it counted after its last scrape; the demonstration scrapes right before it kills one.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from local_cluster.agent_metrics import Counters, Scrape

LINKED = "linked"


class AgentAccounts:
    """Adds up. Not thread safe."""

    def __init__(self) -> None:
        self._ended = Counters()
        self._running: dict[int, tuple[int, Scrape]] = {}

    def observe(self, broker_id: int, process: int, found: Scrape) -> None:
        """What the agent of this broker says, running as this process."""
        known = self._running.get(broker_id)
        if known is not None and known[0] != process:
            self._ended += known[1].counters
        self._running[broker_id] = (process, found)

    def totals(self) -> Counters:
        """Over all agents and all their processes."""
        return sum((found.counters for _, found in self._running.values()), self._ended)

    def gauge(self, name: str) -> Iterable[float]:
        """One value per agent, as last seen."""
        return (found.gauge(name) for _, found in self._running.values())


@dataclass(frozen=True, slots=True)
class Moment:
    """All that is counted, at one time."""

    at_s: float
    """On the clock of the run."""
    totals: Counters
    metadata_log_bytes: int
    """Size of the agents' own topics, of one replica."""
    oldest_unstored_s: float
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Record bytes that followers were given, by topic, and by why they went inline or LINKED."""
