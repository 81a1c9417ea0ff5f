"""Clients of each zone by its gateway: what they write and read, what of it crosses the border, and what it costs.

Three ways are told apart. Stock: everything for and from brokers of other zones crosses. Free: consumers name their
zone (`client.rack`), and Kafka itself sends them to a replica there (KIP-392), which takes settings alone. The gateway:
what producers write goes by object storage besides, where that is cheaper.

Everything is counted by the agents: gateways count what they pass on, by zone and direction, and what they did not
because it went by object storage.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from demo.plan import BULK_CONFIG, RECORD_BYTES
from demo.store_prices import requests_usd
from local_cluster.agent_metrics import Counters, scrape
from local_cluster.kafka_tools import KafkaTools
from local_cluster.object_store.store_spec import StoreKind
from plugin.prices import BYTES_PER_GB, Prices

if TYPE_CHECKING:
    from local_cluster.cluster import LocalCluster
    from local_cluster.zone_gateways import ZoneGateways

_TOPIC = "zone-clients"
_BYTES = "remote_wal_gateway_bytes_total"


@dataclass(frozen=True, slots=True)
class ZoneClients:
    """Of one zone's clients; bytes that were for or from brokers of other zones."""

    zone: str
    produced_bytes: int
    """Requests, as they would have crossed."""
    produced_crossed_bytes: int
    """What did cross."""
    puts: int
    gets: int
    """Of the objects by which the rest went; reads are the leaders' agents'."""
    store_usd: float
    """For those requests and their bytes."""
    consumed_crossed_bytes: int
    """Answers to consumers that do not say where they are."""
    consumed_with_rack_bytes: int
    """To the same ones with `client.rack`."""

    @property
    def stock_bytes(self) -> int:
        """What would have crossed for both."""
        return self.produced_bytes + self.consumed_crossed_bytes

    @property
    def crossed_bytes(self) -> int:
        """What crossed, where consumers say where they are."""
        return self.produced_crossed_bytes + self.consumed_with_rack_bytes


@dataclass(frozen=True, slots=True)
class ZoneDollars:
    """For what one zone's clients wrote and read."""

    stock: float
    free: float
    """With `client.rack` alone."""
    gateway: float


def dollars(clients: ZoneClients, zone_crossing_gb: float) -> ZoneDollars:
    """By the price of a gigabyte at the border."""
    produced, crossed, consumed, with_rack = (
        size / BYTES_PER_GB * zone_crossing_gb
        for size in (
            clients.produced_bytes,
            clients.produced_crossed_bytes,
            clients.consumed_crossed_bytes,
            clients.consumed_with_rack_bytes,
        )
    )
    return ZoneDollars(produced + consumed, produced + with_rack, crossed + clients.store_usd + with_rack)


class ZoneClientsRun:
    """Producers of all zones side by side, then consumers."""

    def __init__(self, cluster: "LocalCluster", gateways: "ZoneGateways", records: int) -> None:
        """`records` of each zone's producer, spread over partitions that all zones lead."""
        self._cluster = cluster
        self._zones = dict(gateways.zones)
        self._records = records
        self._tools = {
            zone: cluster.runtime.tools(gateways.bootstrap_servers(cluster.layout, zone))
            for zone in gateways.zone_names
        }

    def run(self, prices: Prices, store: StoreKind) -> tuple[ZoneClients, ...]:
        """Raises KafkaToolError, ClusterAdminError, OSError."""
        ids = self._cluster.broker_ids
        self._cluster.admin.create_topic(
            _TOPIC, assignment=[[one, *(other for other in ids if other != one)] for one in ids]
        )
        start = self._counted()
        self._side_by_side(self._produce)
        produced = self._counted()
        self._side_by_side(lambda tools, _zone: self._consume(tools, {}))
        consumed = self._counted()
        self._side_by_side(lambda tools, zone: self._consume(tools, {"client.rack": zone}))
        with_rack = self._counted()
        grown = Grown(_growth(produced, start), _growth(consumed, produced), _growth(with_rack, consumed))
        return zone_clients(self._zones, grown, prices, store)

    def _side_by_side(self, use: Callable[[KafkaTools, str], object]) -> None:
        with ThreadPoolExecutor(len(self._tools)) as pool:
            for under_way in [pool.submit(use, tools, zone) for zone, tools in self._tools.items()]:
                under_way.result()

    def _produce(self, tools: KafkaTools, _zone: str) -> None:
        tools.produce(_TOPIC, records=self._records, record_bytes=RECORD_BYTES, config={"acks": "all", **BULK_CONFIG})

    def _consume(self, tools: KafkaTools, config: Mapping[str, str]) -> None:
        tools.consume(_TOPIC, records=self._records * len(self._tools), config=config)

    def _counted(self) -> dict[int, Counters]:
        return {one: scrape(self._cluster, one).counters for one in self._cluster.broker_ids}

    def close(self) -> None:
        """End what runs."""
        for tools in self._tools.values():
            tools.kill_running()


def _growth(now: Mapping[int, Counters], before: Mapping[int, Counters]) -> dict[int, Counters]:
    return {one: found.since(before[one]) for one, found in now.items()}


class Grown(NamedTuple):
    """What agents have counted in each of the three times, by broker id."""

    producing: Mapping[int, Counters]
    consuming: Mapping[int, Counters]
    with_rack: Mapping[int, Counters]


def zone_clients(zones: Mapping[int, str], grown: Grown, prices: Prices, store: StoreKind) -> tuple[ZoneClients, ...]:
    """By zone, from what its agents counted. `zones` are those of the brokers.

    Nothing but the router channels uses the store meanwhile. A zone's reads are its share of all, by bytes.
    """
    linked = {one: found.of("remote_wal_gateway_produce_linked_bytes_total") for one, found in grown.producing.items()}
    gets_per_byte = sum(found.gets for found in grown.producing.values()) / max(sum(linked.values()), 1.0)
    rows = []
    for zone in sorted(set(zones.values())):
        own = [one for one, its in zones.items() if its == zone]
        crossed = _passed(grown.producing, own, "to_broker")
        stored_bytes = sum(linked[one] for one in own)
        puts = sum(grown.producing[one].puts for one in own)
        gets = gets_per_byte * stored_bytes
        rows.append(
            ZoneClients(
                zone,
                int(crossed + stored_bytes),
                int(crossed),
                int(puts),
                round(gets),
                requests_usd(prices, store, puts, gets, stored_bytes, stored_bytes),
                int(_passed(grown.consuming, own, "to_client")),
                int(_passed(grown.with_rack, own, "to_client")),
            )
        )
    return tuple(rows)


def _passed(counted: Mapping[int, Counters], gateways: Sequence[int], direction: str) -> float:
    return sum(counted[one].of(_BYTES, side="gateway", direction=direction) for one in gateways)
