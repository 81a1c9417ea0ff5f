"""Three zones for `python -m perf gateway`, each a network namespace with a broker, its agent, and clients.

Broker 2 leads the topics of az1's clients, so that all their bytes cross zones, except for topics that are led
everywhere. The same clients take two ways: `direct`, at the brokers' own addresses, as without gateways, and `gateway`,
at the addresses of their own zone only. Both ways end at the same brokers in the same run.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from local_cluster.broker_config import AgentsMode
from local_cluster.cluster import LocalCluster
from local_cluster.kafka_tools import KafkaTools
from local_cluster.object_store.store_spec import StoreSpec
from local_cluster.zones import ZoneGateways, ZoneHosts
from perf.clusters import LARGE_SEGMENTS, started_cluster

CLIENTS, LEADER = 1, 2
DIRECT, GATEWAY = "direct", "gateway"
RACK: Final = f"az{CLIENTS}"
_NETWORK: Final = "10.78"
_GATEWAYS: Final = ZoneGateways({1: "az1", 2: "az2", 3: "az3"}, network=_NETWORK)
_CHECKOUT = Path(__file__).resolve().parents[2]
_CLIENT_TIMEOUT_S = 300.0
_CONSUMER_STARTS_S = 4
_BROKERS: Final = {
    **LARGE_SEGMENTS,
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "group.initial.rebalance.delay.ms": "0",
}


@dataclass(frozen=True, slots=True)
class Way:
    """A way for clients to reach brokers of other zones: the agents' settings for it."""

    name: str
    agents: Mapping[str, str]


_NAMED: Final = {"remote.wal.gateway.fetch.rack.enable": "true"}
_LINKS: Final = {"remote.wal.gateway.fetch.links.enable": "true"}
_PRODUCE: Final = {"remote.wal.gateway.produce.enable": "true"}
RELAYED: Final = Way("relayed", _NAMED)
BY_COST: Final = Way("by cost", {**_NAMED, **_PRODUCE, **_LINKS})
BY_OBJECTS: Final = Way("objects", {**BY_COST.agents, "remote.wal.gateway.produce.policy": "always"})
BY_LINKS: Final = Way("links", _LINKS)
"""Consumers are not sent to their zone's replica."""
TOLD_SOON: Final = Way("links, told soon", {**_LINKS, "remote.wal.link.watermark.wait.ms": "2"})
"""High watermarks are sent to followers sooner."""
SERVED: Final = Way("served", {**TOLD_SOON.agents, "remote.wal.gateway.fetch.serve.enable": "true"})
"""Gateways answer consumers themselves."""


class World:
    """The running cluster in three zones, and its clients."""

    def __init__(self, cluster: LocalCluster, hosts: ZoneHosts, agents: AgentsMode) -> None:
        self.cluster = cluster
        self._hosts = hosts
        self._agents = agents
        self._way: Way | None = None
        self._idle_bytes_per_s = 0.0

    def go(self, way: Way) -> None:
        """Switch to this way: restart all agents that have other settings."""
        if way is self._way:
            return
        self._way = way
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

    def tools(self, zone: int, way: str) -> KafkaTools:
        """Return Kafka's own tools, run as clients of that zone."""
        return self.cluster.runtime.tools(self._bootstrap(zone, way), prefix=self._hosts.prefix(zone))

    def _bootstrap(self, zone: int, way: str) -> str:
        if way == DIRECT:
            return self.cluster.bootstrap_servers
        return _GATEWAYS.bootstrap_servers(self.cluster.layout, _GATEWAYS.zones[zone])

    def produced_ms(self, way: str, topic: str, count: int, per_s: int, zone: int = CLIENTS) -> list[float]:
        """Return the latencies of a producer with one record in flight."""
        return self._program(zone, "produce", way, topic, count, per_s)

    def seen_ms(self, way: str, topic: str, count: int, per_s: int, rack: str) -> list[float]:
        """Return the times from the leader's append to a consumer in az1, in ms; the producer is in the leader's own
        zone."""
        with ThreadPoolExecutor(1) as pool:
            seen = pool.submit(self._program, CLIENTS, "see", way, topic, count, per_s, rack)
            while not seen.done():  # without a pause, but for the consumer's start
                self.produced_ms(DIRECT, topic, count + _CONSUMER_STARTS_S * per_s, per_s, LEADER)
            return seen.result()

    def _program(
        self, zone: int, what: str, way: str, topic: str, count: int, per_s: int, rack: str = ""
    ) -> list[float]:
        words = [what, self._bootstrap(zone, way), topic, str(count), str(per_s), rack]
        command = [*self._hosts.prefix(zone), sys.executable, "-m", "perf.gateway.clients", *words]
        told = subprocess.run(
            command, capture_output=True, text=True, timeout=_CLIENT_TIMEOUT_S, check=False, cwd=_CHECKOUT
        )
        if told.returncode:
            raise RuntimeError(f"{what} {way} {topic}: {told.stderr.strip()[-500:]}")
        found: list[float] = json.loads(told.stdout.splitlines()[-1])
        return found

    def produce_everywhere(self, way: str, topic: str, records: int) -> float:
        """Run six producers with acks=all, two in each zone; return the records per second of all."""

        def produce(zone: int) -> float:
            tools = self.tools(zone, way)
            return tools.produce(topic, records=records // len(zones), config={"acks": "all"}).records_per_s

        zones = [zone for zone in self.cluster.broker_ids for _ in range(2)]
        with ThreadPoolExecutor(len(zones)) as pool:
            return sum(pool.map(produce, zones))

    def measure_idle(self) -> None:
        """Measure the bytes that cross zones without clients, to be subtracted later."""
        entered, seconds = self._entered_bytes(lambda: threading.Event().wait(10.0))
        self._idle_bytes_per_s = entered / seconds

    def clients_bytes(self, load: Callable[[], object]) -> float:
        """Run a load; return the bytes that entered all zones, less those of an equal time without clients."""
        entered, seconds = self._entered_bytes(load)
        return max(entered - self._idle_bytes_per_s * seconds, 0.0)

    def _entered_bytes(self, load: Callable[[], object]) -> tuple[float, float]:
        before, begun_s = sum(self._hosts.entered_bytes().values()), time.monotonic()
        load()
        seconds = time.monotonic() - begun_s
        return sum(self._hosts.entered_bytes().values()) - before, seconds


@contextmanager
def three_zones(directory: Path, store: StoreSpec) -> Iterator[World]:
    """Start a new cluster in its own namespaces, and remove all of it at the end. Needs root."""
    agents = AgentsMode(store, gateways=_GATEWAYS)
    with (
        ZoneHosts(_NETWORK).make() as hosts,
        started_cluster(directory, agents, overrides=_BROKERS, hosts=hosts) as cluster,
    ):
        yield World(cluster, hosts, agents)
