"""Agents of one zone over real sockets, each with its reads of one store, its peer listener, and its neighbours."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import CollectorRegistry

from plugin.segment_metadata import CombinedSegmentId
from replication.follower.catch_up_reads import CatchUpReadLimits, CatchUpReads
from replication.follower.follower_context import DiallingContext, FollowerContext, FollowerLimits
from replication.follower.hydration import HydrationCache
from replication.follower.neighbours import Neighbours, RangeHandler
from replication.leader.leader_context import LeaderContext, LeaderLimits
from replication.leader.leader_proxy import LeaderProxy
from replication.wire.memory_budget import MemoryBudget
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_connection import Address, KnownPeers
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities, ZoneReading
from rlm.write_path.metrics import StageTimes
from tests.metric_values import metric_value
from tests.replication.fake_led import FakeLed
from tests.replication.two_agents import LOOPBACK, PATIENCE_S
from tests.rlm.memory_storage import MemoryStorage

OBJECT = CombinedSegmentId(9, 1, 0)
DATA = bytes(range(256)) * 400
ALL = (0, len(DATA))


@dataclass
class Agent:
    broker_id: int
    hydration: HydrationCache
    neighbours: Neighbours
    listener: LeaderProxy
    metrics: ReplicationMetrics

    def told(self, zone: ZoneReading, *ranges: tuple[int, int], object_id: CombinedSegmentId = OBJECT) -> None:
        """A leader's agent announces the object."""
        self.hydration.announce(object_id, ranges, b"", zone)

    async def fetch(self, start: int, end: int, object_id: CombinedSegmentId = OBJECT) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return bytes(await self.hydration.fetch(object_id, start, end))

    def asked(self, outcome: str) -> float:
        return metric_value(self.metrics.shared_reads.ranges.labels(outcome, "asker"))

    def gave(self, outcome: str) -> float:
        return metric_value(self.metrics.shared_reads.ranges.labels(outcome, "giver"))


@dataclass
class Zone:
    """Brokers 1 to `agents`. The storage of each is its own, of the same objects."""

    timeout_s: float = 8.0
    is_near: Callable[[int], bool] = lambda _: True
    server_tls: Callable[[int], ssl.SSLContext | None] = lambda _: None
    client_tls: Callable[[int], ssl.SSLContext | None] = lambda _: None
    grants: PeerCapabilities = PeerCapabilities.RANGES
    now_s: float = 100.0
    cache_bytes: int = 10_000_000
    agents: dict[int, Agent] = field(default_factory=dict)
    stores: dict[int, MemoryStorage] = field(default_factory=dict)
    addresses: dict[int, Address] = field(default_factory=dict)
    peers: dict[int, KnownPeers] = field(default_factory=dict)
    contexts: dict[int, DiallingContext] = field(default_factory=dict)

    async def add(self, broker_id: int) -> Agent:
        store = self.stores[broker_id] = MemoryStorage()
        store.objects = {OBJECT: DATA}
        registry = CollectorRegistry()
        metrics, stage_times = ReplicationMetrics(registry), StageTimes(registry)
        hello, peers = Hello("cluster", broker_id, 7, CAPABILITIES), KnownPeers({})
        dialling = self.contexts[broker_id] = DiallingContext(
            hello, FollowerLimits(self.timeout_s), metrics, lambda: self.client_tls(broker_id), lambda: self.now_s,
            MemoryBudget(),
        )  # fmt: skip
        self.peers[broker_id], neighbours = peers, Neighbours(dialling, peers, self.is_near)
        hydration = HydrationCache(
            store, self.cache_bytes, stage_times, metrics, clock=dialling.clock, neighbours=neighbours
        )
        catch_up = CatchUpReads(hydration, CatchUpReadLimits(1, 1, 0.0, reads=1), metrics, dialling.clock)
        following = FollowerContext(
            hello, dialling.limits, metrics, dialling.tls, dialling.clock, dialling.budget, hydration, stage_times,
            catch_up,
        )  # fmt: skip
        granting = Hello("cluster", broker_id, 7, CAPABILITIES | self.grants)
        leading = LeaderContext(
            granting,
            LeaderLimits(0.5, 1, 100, gather_max_ms=0),
            LOOPBACK,
            FakeLed(),
            stage_times,
            metrics,
            clock=lambda: self.now_s,
            followers=range(10),
        )
        handler = RangeHandler(following, leading.budget, self.is_near, idle_timeout_s=60.0)
        listener = LeaderProxy(replace(leading, handlers={PeerCapabilities.RANGES: handler}))
        await listener.start(LOOPBACK, self.server_tls(broker_id))
        [self.addresses[broker_id]] = listener.addresses
        agent = self.agents[broker_id] = Agent(broker_id, hydration, neighbours, listener, metrics)
        return agent

    def introduce(self) -> None:
        """All know where the others listen."""
        for broker_id, peers in self.peers.items():
            peers.learned({one: address for one, address in self.addresses.items() if one != broker_id})

    @property
    def reads(self) -> list[tuple[CombinedSegmentId, int, int]]:
        return [one for store in self.stores.values() for one in store.fetches]

    async def stop(self) -> None:
        for store in self.stores.values():
            store.fetch_gate.set()
        for agent in self.agents.values():
            agent.hydration.close()
            await agent.neighbours.close()
            await agent.listener.stop()


@asynccontextmanager
async def zone_of(agents: int, **changes: Any) -> AsyncIterator[Zone]:
    """So many started agents that know each other. Changes: fields of Zone."""
    zone = Zone(**changes)
    try:
        for broker_id in range(1, agents + 1):
            await zone.add(broker_id)
        zone.introduce()
        yield zone
    finally:
        await zone.stop()
