"""The ladder: the same loads against stock Kafka and against each step towards links, in turns within one run.

Two clusters stand side by side, one stock, one with agents; the rungs of a store share its cluster and differ in how
their topics are set. In every round each load runs on stock and then on each rung, so that a change of the machine's
speed meets all alike; rungs are compared with stock of the same round only.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from local_cluster.agent_metrics import Counters, scrape_all
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_tools import KafkaTools
from local_cluster.store_spec import LocalDirectoryStore, S3Store, StoreSpec
from metadata_topic.settings.settings_topic import SettingsWriter
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from metadata_topic.topic.client_config import KafkaClientConfig
from perf.workloads import Figures, Workload

Tell = Callable[[str], None]
STOCK = "stock"
_MEMORY = Path("/dev/shm")  # noqa: S108 (a directory of its own is made in it)


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder; `policy` None leaves remote.wal.storage.enable off."""

    name: str
    title: str
    store: str
    policy: LinkPolicy | None


RUNGS = (
    Rung("inline", "agents, everything inline", "directory", None),
    Rung("cost", "agents, links by cost (the default)", "directory", LinkPolicy.COST),
    Rung("links", "agents, links always, directory store", "directory", LinkPolicy.ALWAYS),
    Rung("links-s3", "agents, links always, S3 protocol", "s3", LinkPolicy.ALWAYS),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One load on one rung in one round; `agents` is what the agents counted meanwhile, None on stock."""

    workload: str
    store: str
    """The store of the rungs that this was measured beside; stock is measured anew beside each."""
    rung: str
    round: int
    figures: Figures
    seconds: float
    agents: Counters | None


@dataclass(frozen=True, slots=True)
class Length:
    """How much is run."""

    rounds: int
    scale: float
    """Of each load's own size."""
    warm_up: float
    """Loads of this scale that run before the first round."""


@dataclass(slots=True)
class Ladder:
    """Runs rungs of one store beside stock."""

    directory: Path
    workloads: Sequence[Workload]
    length: Length
    tell: Tell
    keep: Callable[[Sequence[Measured]], None]
    """Called with all that was measured so far, after each load, so that a run that is cut short leaves its part."""
    tools_as_shipped: bool = False
    """Whether the loads run with the JVM options of Kafka's own scripts, or with those that warm up quickly."""
    measured: list[Measured] = field(default_factory=list)
    _store: str = ""

    def climb(self, store: StoreSpec, rungs: Sequence[Rung]) -> None:
        """Measure the rungs, all of one kind of store, on agents with this one."""
        self._store = rungs[0].store
        with self._cluster("stock", None) as stock, self._cluster("agents", AgentsMode(store)) as agents:
            for workload in self.workloads:
                topics = self._topics(workload, stock, agents, rungs)
                if self.length.warm_up:
                    self._warm_up(workload, stock, topics[STOCK])
                    self._warm_up(workload, agents, topics[rungs[0].name])
                for number in range(self.length.rounds):
                    self._measure(workload, STOCK, number, stock, topics[STOCK])
                    for rung in rungs:
                        self._measure(workload, rung.name, number, agents, topics[rung.name])

    def _warm_up(self, workload: Workload, cluster: LocalCluster, topic: str) -> None:
        self.tell(f"{workload.title}: warming up, so that no round pays for the brokers' compilers")
        workload.run(self._tools(cluster), topic, self.length.scale * self.length.warm_up)

    def _tools(self, cluster: LocalCluster) -> KafkaTools:
        return cluster.tools_as_shipped if self.tools_as_shipped else cluster.tools

    def _topics(
        self, workload: Workload, stock: LocalCluster, agents: LocalCluster, rungs: Sequence[Rung]
    ) -> dict[str, str]:
        topics = {STOCK: f"{workload.name}-{STOCK}"}
        stock.create_topic(topics[STOCK], partitions=workload.partitions)
        writer = SettingsWriter(KafkaClientConfig(agents.bootstrap_servers))
        for rung in rungs:
            topics[rung.name] = f"{workload.name}-{rung.name}"
            agents.create_topic(topics[rung.name], partitions=workload.partitions)
            if rung.policy is not None:
                writer.set_topic(topics[rung.name], TopicSettings(True, rung.policy))
        writer.close()
        return topics

    def _measure(self, workload: Workload, rung: str, number: int, cluster: LocalCluster, topic: str) -> None:
        self.tell(f"{workload.title}: {rung}, round {number + 1} of {self.length.rounds}")
        ran = measure(workload, cluster, self._tools(cluster), topic, self.length.scale)
        self.measured.append(Measured(workload.name, self._store, rung, number, *ran))
        self.keep(self.measured)

    def _cluster(self, name: str, agents: AgentsMode | None) -> AbstractContextManager[LocalCluster]:
        self.tell(f"starting the cluster {name}")
        # Large segments, so that no roll of one run falls on the other.
        return started_cluster(self.directory / name, agents, {"log.segment.bytes": str(1 << 30)})


@contextmanager
def started_cluster(directory: Path, agents: AgentsMode | None, overrides: Mapping[str, str]) -> Iterator[LocalCluster]:
    """A cluster that runs, as one that lives long enough for the full compiler; destroyed in the end."""
    settings = ClusterSettings(agents=agents, overrides=overrides, full_compiler=True)
    cluster = LocalCluster.create(directory, settings=settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.destroy()


def measure(
    workload: Workload, cluster: LocalCluster, tools: KafkaTools, topic: str, scale: float
) -> tuple[Figures, float, Counters | None]:
    """Run the load once: its figures, its seconds, and what the agents counted meanwhile, if there are any."""
    before = scrape_all(cluster).counters if cluster.settings.agents else None
    started = time.monotonic()
    figures = workload.run(tools, topic, scale)
    seconds = time.monotonic() - started
    return figures, seconds, None if before is None else scrape_all(cluster).counters.since(before)


@contextmanager
def object_store(kind: str, latency_ms: int) -> Iterator[StoreSpec]:
    """The store of a rung: a directory, or an S3 server of this machine; both with this latency for PUT and GET.

    The directory is in memory where the machine has such a place, so that the latency is the simulated one and not
    that of this machine's disk, which the brokers' logs are on.
    """
    if kind == "directory":
        with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as directory:
            yield LocalDirectoryStore(latency_ms, latency_ms, Path(directory))
        return
    from local_cluster.object_store_front import ObjectStoreFront
    from local_cluster.object_store_server import ObjectStoreServer

    front = ObjectStoreFront(put_latency=latency_ms / 1000, get_latency=latency_ms / 1000)
    with ObjectStoreServer(front, ("remote-wal",)) as server:
        yield S3Store(server.endpoint_url, "remote-wal")
