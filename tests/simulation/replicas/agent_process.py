"""An agent beside its broker as one process: the product's write path and both proxies (`agent.wiring.relaying`)."""

import asyncio
import random
import socket
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import replace
from typing import Any, Protocol, cast

from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId
from replication.follower.catch_up_reads import CatchUpReadLimits, CatchUpReads
from replication.follower.follower_context import DiallingContext, FollowerContext, FollowerLimits
from replication.follower.follower_proxy import FollowerProxy
from replication.follower.hydration import HydrationCache
from replication.follower.leader_bypass import Bypass, RouteLimits
from replication.follower.neighbours import Neighbours, RangeHandler
from replication.leader.catch_up import CatchUp
from replication.leader.leader_context import LeaderContext, LeaderLimits
from replication.leader.leader_proxy import LeaderProxy
from replication.leader.link_index import LinkIndex
from replication.leader.read_ahead import CatchUpLimits
from replication.leader.zones import Zones
from replication.wire.circuit_breaker import BreakerLimits
from replication.wire.memory_budget import MemoryBudget
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_connection import Address, KnownPeers
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities
from rlm.archive.stored_runs import LedLogs
from tests.simulation.agent_model import BREAK_EVEN_BYTES, AgentModel, WorldParts
from tests.simulation.led_log import LedLog
from tests.simulation.network import PROCESS, ListeningSocket
from tests.simulation.replicas.broker_model import PORT
from tests.simulation.seeded_storage import PooledStorage
from tests.simulation.stores import StateDirectories
from tests.simulation.virtual_time import Delays, SeededExecutor

PEER_PORT = 19_090
LOCAL_PORT = 20_000
"""And the leader's broker id: where the local broker looks for that one."""
LINK_WAIT_MAX_S = 0.5
HYDRATION_TIMEOUT_S = 2.0
FRAME_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 60.0
LEADER_LIMITS = LeaderLimits(
    LINK_WAIT_MAX_S, BREAK_EVEN_BYTES, gather_max_ms=25, range_gap_bytes=100, stale_after_s=10.0,
    frame_timeout_s=FRAME_TIMEOUT_S, watermark_wait_ms=2,
)  # fmt: skip
CATCH_UP_LIMITS = CatchUpLimits(ahead_bytes=4000, read_bytes=1000, max_batches=60)
CATCH_UP_READS = CatchUpReadLimits(reads=2, bytes_per_s=20_000, under_way_bytes=8000, wait_max_s=0.5)
ROUTE_LIMITS = RouteLimits(after_s=2.0, return_after_s=3.0, probe_max_s=4.0)
INDEXED_BATCHES = 60
MIN_ENTRY_BYTES = 150
BUDGET_BYTES = 40_000


class AgentsWorld(WorldParts, Protocol):
    replication_metrics: ReplicationMetrics
    broker_ids: tuple[int, ...]
    is_bypassing: bool
    """Whether agents may go past dead ones."""
    shares_reads: bool
    """Whether agents read objects for each other."""
    state: StateDirectories

    def get_delays(self) -> Delays: ...


class AgentProcess:
    def __init__(self, world: AgentsWorld, broker_id: int, incarnation: int) -> None:
        self.broker_id = broker_id
        self.name = f"agent {broker_id}"
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self.name)
        self._world, self._loop = world, world.loop
        self._pools: list[SeededExecutor] = []
        self._starting: asyncio.Task[None] | None = None
        self.context.run(self._make, incarnation)

    def _make(self, incarnation: int) -> None:
        world, clock, metrics = self._world, self._loop.time, self._world.replication_metrics
        store = RemoteWalMetadataStore(world.state.file(self.broker_id))
        self.writing = AgentModel(world, self.broker_id, incarnation, store)
        manager = self.writing.manager
        shared = PeerCapabilities.SHARED_READS if world.shares_reads else PeerCapabilities.NONE
        hello = Hello("cluster", self.broker_id, incarnation, CAPABILITIES | shared)
        breaker = BreakerLimits(failures_to_open=3, open_s=1.0, open_max_s=4.0)
        storage = PooledStorage(world.storage, self._pool(world.get_delays)(5, ""))
        others = [one for one in world.broker_ids if one != self.broker_id]
        peers = KnownPeers({one: Address(f"agent-{one}", PEER_PORT) for one in others})
        limits = FollowerLimits(HYDRATION_TIMEOUT_S, frame_timeout_s=FRAME_TIMEOUT_S, restart_s=1.0)
        dialling = DiallingContext(hello, limits, metrics, lambda: None, clock, MemoryBudget(BUDGET_BYTES))
        self.neighbours = Neighbours(dialling, peers, lambda _: True)
        self.hydration = HydrationCache(
            storage, 20_000, world.stage_times, metrics, clock=clock, breaker=breaker,
            neighbours=self.neighbours if world.shares_reads else None,
        )  # fmt: skip
        self.catch_up_reads = CatchUpReads(self.hydration, CATCH_UP_READS, metrics, clock)
        index = LinkIndex(INDEXED_BATCHES)
        stored = LedLogs(self.writing.store, manager.stored_log, MIN_ENTRY_BYTES)
        catch_up = CatchUp(index, stored, CATCH_UP_LIMITS, metrics, clock, self._pool(world.read_delays))
        leading = LeaderContext(
            hello, LEADER_LIMITS, broker_address(self.broker_id), manager, world.stage_times, metrics, clock, index,
            followers=frozenset(others), budget=MemoryBudget(BUDGET_BYTES),
            request_budget=MemoryBudget(BUDGET_BYTES), catch_up=catch_up,
        )  # fmt: skip
        context = FollowerContext(
            hello, limits, metrics, dialling.tls, clock, dialling.budget, self.hydration, world.stage_times,
            self.catch_up_reads,
        )  # fmt: skip
        self.leader = LeaderProxy(self._sharing(leading, context) if world.shares_reads else leading)
        manager.add_listener(self.leader)
        bypass = Bypass({one: broker_address(one) for one in others}, ROUTE_LIMITS, lambda: None, clock=clock)
        self.follower = FollowerProxy(context, peers, bypass if world.is_bypassing else None)

    def _sharing(self, leading: LeaderContext, following: FollowerContext) -> LeaderContext:
        """To each leader's agent the two others are in one zone, and read objects for each other."""
        zones = Zones(None)
        zones.learned(dict.fromkeys(self._world.broker_ids, "elsewhere"))
        return replace(
            leading,
            hello=replace(leading.hello, capabilities=leading.hello.capabilities | PeerCapabilities.RANGES),
            limits=replace(LEADER_LIMITS, shares_reads=True),
            zones=zones,
            handlers={PeerCapabilities.RANGES: RangeHandler(following, leading.budget, lambda _: True, IDLE_TIMEOUT_S)},
        )

    def _pool(self, delays: Callable[[], Delays]) -> Callable[[int, str], SeededExecutor]:
        def make(threads: int, _name: str) -> SeededExecutor:
            pool = SeededExecutor(self._loop, threads, delays)
            self._pools.append(pool)
            return pool

        return make

    # Its life.

    def start(self) -> None:
        self.context.run(self.writing.start)
        self._starting = self._loop.create_task(self._listen(), context=self.context)

    async def _listen(self) -> None:
        await self.leader.start(self._listening(PEER_PORT), None)
        others = (one for one in self._world.broker_ids if one != self.broker_id)
        await self.follower.start({one: self._listening(LOCAL_PORT + one) for one in others})

    def _listening(self, port: int) -> socket.socket:
        handed: Any = ListeningSocket(self._loop.network, (f"agent-{self.broker_id}", port))
        return cast(socket.socket, handed)

    def assign(self, led: list[LedLog]) -> None:
        if self.writing.is_living:
            self.writing.assign(led)

    def deletion_started(self, segment_id: CombinedSegmentId) -> None:
        if self.writing.is_living:
            self.leader.segment_deletion_started(segment_id)

    async def crash(self, rng: random.Random) -> tuple[int, int]:
        """Its process is killed. How many writes took effect all the same, and how many did not."""
        self._loop.network.kill(self.name)
        for pool in self._pools:
            pool.crash(lambda: False)
        self._end_reads()  # its timers are gone as well
        effects = await self.writing.crash(rng)
        await self._leave()
        return effects

    async def stop(self, flush_timeout_s: float) -> None:
        await self._leave()
        await self.writing.stop(flush_timeout_s)

    async def _leave(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        await self.leader.stop()
        await self.follower.stop()
        self._end_reads()
        await self.neighbours.close()

    def _end_reads(self) -> None:
        self.hydration.close()
        self.catch_up_reads.close()


def broker_address(broker_id: int) -> Address:
    return Address(f"broker-{broker_id}", PORT)
