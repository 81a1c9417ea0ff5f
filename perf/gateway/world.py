"""Three zones for `python -m perf gateway`, each a network namespace with a broker, its agent, and clients.

Broker 2 leads the topics of az1's clients, so that all their bytes cross zones, except for topics that are led
everywhere. The same clients take two ways: `direct`, at the brokers' own addresses, as without gateways, and `gateway`,
at the addresses of their own zone only. Both ways end at the same brokers in the same run.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from local_cluster.agent_metrics import Counters, scrape_all
from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_tools import KafkaTools, ProducerPerformance
from local_cluster.object_store.store_spec import StoreSpec
from local_cluster.zone_gateways import ZoneGateways
from local_cluster.zone_hosts import ZoneHosts
from perf.clusters import started_cluster
from plugin.blob_storage import StoredBlob
from plugin.remote_wal_storage_manager import blobs_of
from plugin.router_object_id import RouterObjectId
from tests.soak.stored_offsets import open_storage

CLIENTS, LEADER = 1, 2
DIRECT, GATEWAY = "direct", "gateway"
_NETWORK = "10.78"
_CHECKOUT = Path(__file__).resolve().parents[2]
_CLIENT_TIMEOUT_S = 300.0
_CONSUMER_STARTS_S = 4
_BROKERS = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "log.segment.bytes": str(1 << 30),
    "group.initial.rebalance.delay.ms": "0",
}


@dataclass(frozen=True, slots=True)
class Way:
    """A way for clients to reach brokers of other zones: directly, or through gateways with these settings."""

    name: str
    agents: Mapping[str, str]
    """Keys of the agents while the way is measured; they do not matter for the direct way."""


_NAMED = {"remote.wal.gateway.fetch.rack.enable": "true"}
RELAYED = Way("relayed", _NAMED)
BY_COST = Way(
    "by cost",
    {**_NAMED, "remote.wal.gateway.produce.enable": "true", "remote.wal.gateway.fetch.links.enable": "true"},
)
BY_LINKS = Way("links", {"remote.wal.gateway.fetch.links.enable": "true"})
"""Consumers are not sent to their zone's replica."""
TOLD_SOON = Way("links", {**BY_LINKS.agents, "remote.wal.link.watermark.wait.ms": "2"})
"""The same as BY_LINKS, with high watermarks sent to followers sooner."""
BY_OBJECTS = Way("objects", {**BY_COST.agents, "remote.wal.gateway.produce.policy": "always"})


@dataclass(frozen=True, slots=True)
class Used:
    """The resources that a block used."""

    seconds: float
    entered_bytes: float
    """Bytes that entered all zones together."""
    counted: Counters
    brokers_cpu_s: float


class World:
    """The running cluster, and its clients."""

    def __init__(self, cluster: LocalCluster, hosts: ZoneHosts, gateways: ZoneGateways, agents: AgentsMode) -> None:
        self.cluster = cluster
        self._hosts = hosts
        self._gateways = gateways
        self._agents = agents

    def go(self, way: Way) -> None:
        """Restart all agents with the settings of this way."""
        for broker_id in self.cluster.broker_ids:
            self.cluster.agent(broker_id).terminate()
        self.cluster.configure(replace(self._agents, overrides={**self._agents.overrides, **way.agents}))
        for broker_id in self.cluster.broker_ids:
            self.cluster.start_agent(broker_id, wait=False)  # each is ready by the others
        self.cluster.wait_until_ready()

    def create(self, topic: str, *leaders: int, replicas: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic with a partition for each of these leaders, on this many brokers."""
        ids = self.cluster.broker_ids
        assignment = [[leader, *(one for one in ids if one != leader)][:replicas] for leader in leaders]
        self.cluster.admin.create_topic(topic, assignment=assignment, config=config)

    def bootstrap(self, zone: int, way: str) -> str:
        """Return the bootstrap servers for clients of a broker's zone."""
        if way == DIRECT:
            return self.cluster.bootstrap_servers
        return self._gateways.bootstrap_servers(self.cluster.layout, self._gateways.zones[zone])

    def tools(self, zone: int, way: str) -> KafkaTools:
        """Return Kafka's own tools, run as clients of that zone."""
        return self.cluster.runtime.tools(self.bootstrap(zone, way), prefix=self._hosts.prefix(zone))

    def latencies_ms(self, what: str, way: str, topic: str, count: int, per_s: int, rack: str = "") -> list[float]:
        """Return the latencies of a client of az1, measured by `perf.gateway.clients`."""
        return self._program(CLIENTS, what, way, topic, count, per_s, rack)

    def seen_ms(self, way: str, topic: str, count: int, per_s: int, rack: str = "") -> list[float]:
        """Return the times from the leader's append to a consumer of az1; the producer is in the leader's own zone."""
        with ThreadPoolExecutor(1) as pool:
            seen = pool.submit(self._program, CLIENTS, "see", way, topic, count, per_s, rack)
            while not seen.done():  # without a pause, but for the consumer's start
                self._program(LEADER, "produce", DIRECT, topic, count + _CONSUMER_STARTS_S * per_s, per_s, "")
            return seen.result()

    def _program(self, zone: int, what: str, way: str, topic: str, count: int, per_s: int, rack: str) -> list[float]:
        words = [what, self.bootstrap(zone, way), topic, str(count), str(per_s), rack]
        command = [*self._hosts.prefix(zone), sys.executable, "-m", "perf.gateway.clients", *words]
        told = subprocess.run(
            command, capture_output=True, text=True, timeout=_CLIENT_TIMEOUT_S, check=False, cwd=_CHECKOUT
        )
        if told.returncode:
            raise RuntimeError(f"{what} {way} {topic}: {told.stderr.strip()[-500:]}")
        found: list[float] = json.loads(told.stdout.splitlines()[-1])
        return found

    def produce_everywhere(
        self, way: str, topic: str, records: int, config: Mapping[str, str]
    ) -> list[ProducerPerformance]:
        """Run six producers, two in each zone."""
        zones = [zone for zone in self.cluster.broker_ids for _ in range(2)]
        with ThreadPoolExecutor(len(zones)) as pool:
            return list(
                pool.map(
                    lambda zone: self.tools(zone, way).produce(topic, records=records // len(zones), config=config),
                    zones,
                )
            )

    @contextmanager
    def used(self) -> Iterator[list[Used]]:
        """Measure the resources of the block; the list has them afterwards."""
        found: list[Used] = []
        counted, cpu_s = scrape_all(self.cluster).counters, self._brokers_cpu_s()
        entered, begun_s = self._hosts.entered_bytes(), time.monotonic()
        yield found
        seconds, now = time.monotonic() - begun_s, self._hosts.entered_bytes()
        cpu_s = self._brokers_cpu_s() - cpu_s
        crossed = sum(now[zone] - entered[zone] for zone in now)
        found.append(Used(seconds, crossed, scrape_all(self.cluster).counters.since(counted), cpu_s))

    def _brokers_cpu_s(self) -> float:
        return sum(self.cluster.broker(broker_id).cpu_s() for broker_id in self.cluster.broker_ids)

    def store_ms(self, size_bytes: int, times: int = 40) -> tuple[float, float]:
        """Return the median times of a PUT and a GET of an object of the RouterChannel."""
        storage = open_storage(self.cluster)
        puts, gets = [], []
        try:
            blobs = blobs_of(storage, "measure", "router")
            for number in range(times):
                name = RouterObjectId(LEADER, 0, 0, number).blob_name
                begun_s = time.perf_counter()
                blob = StoredBlob(name, size_bytes, blobs.put_blob(name, bytes(size_bytes)))
                stored_s = time.perf_counter()
                blobs.get_blob(blob)
                gets.append((time.perf_counter() - stored_s) * 1e3)
                puts.append((stored_s - begun_s) * 1e3)
                blobs.delete_blob(blob)
        finally:
            storage.close()
        return median(puts), median(gets)


@contextmanager
def three_zones(directory: Path, store: StoreSpec) -> Iterator[World]:
    """Start a new cluster in its own namespaces, and remove all of it at the end. Needs root."""
    gateways = ZoneGateways({1: "az1", 2: "az2", 3: "az3"}, network=_NETWORK)
    agents = AgentsMode(store, gateways=gateways)
    with (
        ZoneHosts(_NETWORK).made() as hosts,
        started_cluster(directory, agents, overrides=_BROKERS, hosts=hosts) as cluster,
    ):
        yield World(cluster, hosts, gateways, agents)


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return a quantile of these values, by rank."""
    ordered = sorted(values)
    return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)]
