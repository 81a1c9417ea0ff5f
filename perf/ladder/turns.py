"""Runs the same loads against stock Kafka and against others, in turns within one run.

In every round each load runs on stock and then on each of the others, so that a change of the machine's speed affects
all alike; they are compared with stock of the same round only. The order of the others changes from round to round. A
load that a cluster does not keep up with has a reason instead of figures, and the others continue.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from local_cluster.agent_metrics import Counters, scrape_all
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_tools import KafkaToolError
from local_cluster.polling import WaitTimeoutError
from local_cluster.topic_switch import set_topics
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from perf.ladder.workloads import Figures, Workload

STOCK = "stock"
NOT_KEPT_UP = (TimeoutError, KafkaToolError, WaitTimeoutError)
"""The errors of a load that did not reach its end."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One load on one entrant in one round; `agents` has the agents' counters in that time, None on stock."""

    workload: str
    store: str
    """The store of the entrants that this was measured with; stock is measured again for each store."""
    rung: str
    round: int
    figures: Figures
    seconds: float
    agents: Counters | None
    brokers_cpu_s: float = 0.0
    not_kept_up_with: str = ""
    """The reason why there are no figures or counters."""
    is_always_linked: bool = False
    """Whether links are wanted for every byte, so that with many bytes inline the result is void."""


@dataclass(frozen=True, slots=True)
class Length:
    """The size of a run."""

    rounds: int
    scale: float
    """The factor on each load's own size."""
    warm_up: float
    """The scale of the loads that run before the first round."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """Something that is compared with stock, or stock itself."""

    name: str
    cluster: LocalCluster
    topic: str
    """The part of the topic's name after the load's; entrants of one cluster with the same part share the topic."""
    settings: TopicSettings | None = None
    """The topic's settings; None leaves remote.wal.storage.enable off."""
    bootstrap_servers: str = ""
    """The address of its clients; empty: the brokers'."""

    @property
    def is_always_linked(self) -> bool:
        """Whether the topic's policy links every byte."""
        return self.settings is not None and self.settings.link_policy is LinkPolicy.ALWAYS


@dataclass(slots=True)
class Turns:
    """Runs loads on one entrant after the other."""

    length: Length
    tell: Callable[[str], None]
    keep: Callable[[Sequence[Measured]], None]
    """Called with all results so far, after each load, so that an interrupted run leaves its part."""
    tools_as_shipped: bool = False
    """Whether the loads run with the JVM options of Kafka's own scripts, or with those that warm up quickly."""
    measured: list[Measured] = field(default_factory=list)

    def run(self, workloads: Sequence[Workload], store: str, stock: LocalCluster, others: Sequence[Entrant]) -> None:
        """Run all rounds of these loads. `store` is the name of the store of the others' agents."""
        first = Entrant(STOCK, stock, STOCK)
        for workload in workloads:
            made: set[tuple[str, str]] = set()
            for one in (first, *others):
                if (place := (one.cluster.bootstrap_servers, one.topic)) not in made:
                    made.add(place)
                    self._create_topic(workload, one)
            if self.length.warm_up:
                for one in (first, others[0]):
                    self.tell(f"{workload.title}: warming up, so that no round pays for the brokers' compilers")
                    with suppress(*NOT_KEPT_UP):  # the rounds tell it
                        self._load(workload, one, self.length.scale * self.length.warm_up)
            for number in range(self.length.rounds):
                for one in (first, *turned(others, number)):
                    self.tell(f"{workload.title}: {one.name}, round {number + 1} of {self.length.rounds}")
                    self.measured.append(self._measure(workload, store, one, number))
                    self.keep(self.measured)

    def _create_topic(self, workload: Workload, one: Entrant) -> None:
        topic = _topic(workload, one)
        assignment = spread(one.cluster.broker_ids, one.cluster.broker_ids, workload.partitions)
        one.cluster.admin.create_topic(topic, assignment=assignment)
        if one.settings is not None:
            set_topics(one.cluster.bootstrap_servers, [topic], one.settings)

    def _measure(self, workload: Workload, store: str, one: Entrant, number: int) -> Measured:
        before = scrape_all(one.cluster).counters if one.cluster.settings.agents else None
        cpu_s, started = _brokers_cpu_s(one.cluster), time.monotonic()
        try:
            figures, reason = self._load(workload, one, self.length.scale), ""
        except NOT_KEPT_UP as error:
            figures, reason = {}, str(error) or type(error).__name__
        seconds = time.monotonic() - started
        counted = None if before is None or reason else scrape_all(one.cluster).counters.since(before)
        cpu_s = _brokers_cpu_s(one.cluster) - cpu_s
        linked = one.is_always_linked
        return Measured(workload.name, store, one.name, number, figures, seconds, counted, cpu_s, reason, linked)

    def _load(self, workload: Workload, one: Entrant, scale: float) -> Figures:
        address = one.bootstrap_servers or one.cluster.bootstrap_servers
        tools = one.cluster.runtime.tools(address, jvm_as_shipped=self.tools_as_shipped)
        return workload.run(tools, _topic(workload, one), scale)


def turned(entrants: Sequence[Entrant], number: int) -> list[Entrant]:
    """Return the entrants in the order of this round."""
    first = number % len(entrants)
    return [*entrants[first:], *entrants[:first]]


def spread(leaders: Sequence[int], brokers: Sequence[int], partitions: int) -> list[list[int]]:
    """Return each partition's replicas: on all brokers, with the leaders first in turn."""
    firsts = [leaders[number % len(leaders)] for number in range(partitions)]
    return [[first, *(broker for broker in brokers if broker != first)] for first in firsts]


def _brokers_cpu_s(cluster: LocalCluster) -> float:
    return sum(cluster.broker(broker_id).cpu_s() for broker_id in cluster.broker_ids)


def _topic(workload: Workload, one: Entrant) -> str:
    return f"{workload.name}-{one.topic}"
