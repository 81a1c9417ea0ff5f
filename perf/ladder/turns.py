"""Runs the same loads against stock Kafka and against others, in turns within one run.

In every round each load runs on stock and then on each of the others, so that a change of the machine's speed affects
all alike; they are compared with stock of the same round only. The order of the others changes from round to round. A
load that a cluster does not keep up with has a reason instead of figures, and the others continue.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import set_topics
from local_cluster.kafka_tools import KafkaToolError
from local_cluster.object_store.store_spec import OwnStore
from local_cluster.polling import WaitTimeoutError
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from perf.clusters import Usage, spread, used_by
from perf.loads import Figures, Run

STOCK: Final = "stock"
CROSSED: Final = "MB across zones"
"""The figure that each load has where zones are hosts: what entered them, counted by the kernel."""
NOT_KEPT_UP: Final = (TimeoutError, KafkaToolError, WaitTimeoutError)
"""The errors of a load that did not reach its end."""
WARM_UP: Final = 0.5
"""The part of each load that runs before the first round, so that no round pays for the brokers' compilers."""


class Clients(Enum):
    """How clients, which are in the zone az1, reach the brokers."""

    DIRECT = "at the brokers"
    HELD = "by agents, which hold the answers to acks=all"
    GATEWAY = "by the gateway of their zone, and by object storage where that pays"
    OBJECTS = "by the gateway, each request by object storage; it answers consumers itself"


class Comparison(Enum):
    """How a rung's figure is compared with stock's of the same round."""

    RATIO = "ratio"
    """rung / stock: throughput."""
    ADDED_MS = "added ms"
    """rung - stock: latency."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One load of the ladder. `compared` names the figures of `run` that count, and the comparison."""

    name: str
    partitions: int
    compared: Mapping[str, Comparison]
    run: Run
    fill: Run | None = None
    """What is in the topic before the first round."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder: stock Kafka, or a way to use agents that is compared with it."""

    name: str
    store: OwnStore
    """The kind of the agents' store."""
    settings: TopicSettings | None = None
    """Its topics' settings; None: as a cluster's topics are by default."""
    clients: Clients = Clients.DIRECT

    @property
    def pair(self) -> tuple[OwnStore, Clients]:
        """The pair of clusters, stock and agents, that it shares with rungs that need the same settings of agents."""
        return self.store, Clients.HELD if self.clients is Clients.DIRECT else self.clients

    @property
    def is_always_linked(self) -> bool:
        """Whether links are wanted for every byte, so that with many bytes inline a result is void."""
        return self.settings is not None and self.settings.link_policy is LinkPolicy.ALWAYS


@dataclass(frozen=True, slots=True)
class Entrant:
    """A rung with its cluster, and the address for its clients; empty: the brokers'."""

    rung: Rung
    cluster: LocalCluster
    bootstrap_servers: str = ""

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic with the rung's settings, led by all brokers."""
        self.cluster.admin.create_topic(name, assignment=spread(self.cluster.broker_ids, partitions))
        if self.rung.settings is not None:
            set_topics(self.cluster.bootstrap_servers, [name], self.rung.settings)

    def load(self, run: Run, topic: str, scale: float) -> Figures:
        hosts = self.cluster.settings.hosts
        tools = self.cluster.runtime.tools(
            self.bootstrap_servers or self.cluster.bootstrap_servers, prefix=hosts.prefix(1) if hosts else ()
        )
        return run(tools, topic, scale)

    def measure(self, load: str, run: Run, topic: str, scale: float, number: int = 0) -> "Measured":
        """Run a load against a topic; return its figures, or why it failed."""

        def attempt() -> tuple[Figures, str]:
            try:
                return self.load(run, topic, scale), ""
            except NOT_KEPT_UP as error:
                return {}, str(error) or type(error).__name__

        (figures, reason), usage = used_by(self.cluster, attempt)
        if usage.entered_bytes and figures and self.rung.store is OwnStore.LOCAL:  # no objects are among the bytes
            figures = {**figures, CROSSED: usage.entered_bytes / 1e6}
        return Measured(load, self.rung, number, figures, usage, reason)


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one load on one entrant in one round."""

    workload: str
    rung: Rung
    round: int
    figures: Figures
    usage: Usage
    not_kept_up_with: str = ""
    """The reason why there are no figures."""


@dataclass(slots=True)
class Turns:
    """Runs loads on several entrants, in turns."""

    rounds: int
    scale: float
    """The factor on each load's own size."""
    tell: Callable[[str], None]
    keep: Callable[[Sequence[Measured]], None]
    """Called with all results so far, after each load, so that an interrupted run leaves its part."""
    measured: list[Measured] = field(default_factory=list)

    def run(self, workloads: Sequence[Workload], stock: LocalCluster, others: Sequence[Entrant]) -> None:
        """Run all rounds of these loads; the others have agents with one kind of store."""
        first = Entrant(replace(others[0].rung, name=STOCK, settings=None), stock)
        for workload in workloads:
            for one in (first, *others):
                one.create_topic(_topic(workload, one), workload.partitions)
                with suppress(*NOT_KEPT_UP):  # the rounds tell it
                    if workload.fill is not None:
                        self.tell(f"{workload.name}: {one.rung.name}, filling")
                        one.load(workload.fill, _topic(workload, one), self.scale)
                    elif one in (first, others[0]):
                        self.tell(f"{workload.name}: warming up")
                        one.load(workload.run, _topic(workload, one), self.scale * WARM_UP)
            for number in range(self.rounds):
                for one in (first, *turned(others, number)):
                    self.tell(f"{workload.name}: {one.rung.name}, round {number + 1} of {self.rounds}")
                    topic = _topic(workload, one)
                    self.measured.append(one.measure(workload.name, workload.run, topic, self.scale, number))
                    self.keep(self.measured)


def turned(entrants: Sequence[Entrant], number: int) -> list[Entrant]:
    """Return the entrants in the order of this round."""
    first = number % len(entrants)
    return [*entrants[first:], *entrants[:first]]


def _topic(workload: Workload, one: Entrant) -> str:
    return f"{workload.name}-{one.rung.name}"
