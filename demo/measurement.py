"""Asks all agents what they count, and adds it up over all of them and across their restarts.

An agent's counters begin at 0 when it is killed and comes back, so each process of an agent has an account of its own:
what a process counted last stays in the totals when the next one begins. A process that is killed takes along what it
counted after its last scrape; the demonstration scrapes right before it kills one.
"""

import json
import time
from collections import Counter
from dataclasses import dataclass, field

from agent.http.http_asking import ask_agent_page
from local_cluster.agent_metrics import Counters, scrape
from local_cluster.cluster import LocalCluster
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC

LINKED = "linked"


class AgentAccounts:
    """Adds up counters over all agents and their restarts. Not thread-safe."""

    def __init__(self) -> None:
        self._ended = Counters()
        self._running: dict[int, tuple[int, Counters]] = {}

    def observe(self, broker_id: int, process: int, found: Counters) -> None:
        """Record the counters of this broker's agent, running as this process."""
        known = self._running.get(broker_id)
        if known is not None and known[0] != process:
            self._ended += known[1]
        self._running[broker_id] = (process, found)

    def totals(self) -> Counters:
        """Return the counters, summed over all agents and all their processes."""
        return sum((found for _, found in self._running.values()), self._ended)

    def largest(self, gauge: str) -> float:
        """Return the largest value of a gauge among the agents' last ones."""
        return max((found.of(gauge) for _, found in self._running.values()), default=0.0)


@dataclass(frozen=True, slots=True)
class Moment:
    """All counters of a demo at one time."""

    at_s: float
    totals: Counters
    metadata_log_bytes: int
    """Size of the agents' own topics, of one replica."""
    oldest_unstored_s: float
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Record bytes that followers were given, by topic, and by why they went inline or LINKED."""


class Sampler:
    """Reads the counters of all agents of a cluster. For one thread."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._accounts = AgentAccounts()

    def now(self) -> Moment:
        """Read all agents' counters now. One that does not respond counts with its last ones."""
        for broker_id in self._cluster.broker_ids:
            self._ask(broker_id)
        return Moment(
            time.monotonic(),
            self._accounts.totals(),
            self._metadata_log_bytes(),
            self._accounts.largest("remote_wal_oldest_unstored_seconds"),
            sum(map(self._moved, self._cluster.broker_ids), Counter()),
        )

    def _moved(self, broker_id: int) -> Counter[tuple[str, str]]:
        """Return what this agent has moved since it was started, an hour ago at most: what `describe --why` shows."""
        where = str(self._cluster.layout.agent_http_address(broker_id))
        moved: Counter[tuple[str, str]] = Counter()
        try:
            told = json.loads(ask_agent_page(where, "/describe", 5.0))
        except (OSError, ValueError):
            return moved
        for partition in told["partitions"]:
            moved[partition["topic"], LINKED] += partition["linked_bytes"]
        for topic, why in told.get("why", {}).items():
            moved.update({(topic, reason): size for reason, size in why["reasons"].items()})
        return moved

    def _ask(self, broker_id: int) -> None:
        agent = self._cluster.agent(broker_id)
        process = agent.pid
        if process is None:
            return
        try:
            found = scrape(self._cluster, broker_id)
        except (OSError, ValueError):
            return
        # Another process may have taken the port meanwhile.
        if agent.pid == process:
            self._accounts.observe(broker_id, process, found)

    def _metadata_log_bytes(self) -> int:
        """Return the bytes of each partition's longest replica, because followers may lag."""
        sizes: dict[str, int] = {}
        for broker_id in self._cluster.broker_ids:
            for log_directory in self._cluster.layout.log_directories(broker_id):
                for topic in (METADATA_TOPIC, SETTINGS_TOPIC):
                    for partition in log_directory.glob(f"{topic}-*"):
                        size = sum(path.stat().st_size for path in partition.glob("*.log"))
                        sizes[partition.name] = max(sizes.get(partition.name, 0), size)
        return sum(sizes.values())
