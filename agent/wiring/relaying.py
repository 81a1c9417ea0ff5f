"""Puts relaying together from the settings: both proxies, and what they need to relay inline.

It depends on nothing that may fail beside it: the write path and object storage come later, and may go again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from agent.configuration import Configuration
from agent.found_peers import FoundPeers, serving_clients
from agent.identity import AgentIdentity
from agent.link_pauses import LinkPauses
from agent.metrics.store_times import StoreTimes
from agent.service_manager import ListeningSockets
from agent.settings.agent_settings import AgentSettings
from agent.settings.bypass import bypass
from agent.settings.memory_shares import cache_bytes, frame_bytes
from agent.settings.process_settings import PeerSettings
from agent.settings.setting_types import milliseconds
from agent.settings.upload_settings import AlarmSettings
from agent.tls.broker_tls import BrokerTls, broker_tls_plan
from agent.wiring.peering import (
    broker_listener,
    broker_requests,
    is_forwarded,
    max_request_bytes,
    own_hello,
    peer_addresses,
    peer_tls,
    posing_address,
    replica_listeners,
)
from kafka_log.broker_files.server_properties import BrokerProperties
from metadata_topic.settings.settings_memory import SettingsMemory
from plugin.remote_wal_storage_manager import RequestCounts
from plugin.wrappers.guarded_storage import GuardedStorageManager
from plugin.wrappers.request_ceiling import RequestCeiling
from replication.follower.catch_up_reads import CatchUpReadLimits, CatchUpReads
from replication.follower.follower_context import FollowerContext, FollowerLimits
from replication.follower.follower_proxy import FollowerProxy
from replication.follower.hydration import HydrationCache
from replication.follower.neighbours import Neighbours, RangeHandler
from replication.follower.peer_watch import PeerWatch
from replication.follower.tiers import ArchiveReads
from replication.leader.catch_up import CatchUp
from replication.leader.guarded_write_path import GuardedWritePath
from replication.leader.leader_context import LeaderContext, LeaderLimits, PeerHandler
from replication.leader.leader_proxy import LeaderProxy
from replication.leader.link_index import LinkIndex
from replication.leader.read_ahead import CatchUpLimits
from replication.leader.shadow import Shadow
from replication.leader.zones import RemoteReaders, Zones, reads_for
from replication.wire.memory_budget import MemoryBudget
from replication.wire.metrics import ReplicationMetrics, Traffic
from replication.wire.packing import Packing
from replication.wire.peer_connection import KnownPeers
from replication.wire.peer_protocol import PeerCapabilities
from rlm.write_path.metrics import StageTimes

if TYPE_CHECKING:
    from agent.wiring.gateway import ClientGateway
    from gateway.client_port import PassingPort

_PEER_IDLE_S = 600.0
"""Another agent's connection on which nothing came for so long is closed, within twice the time."""
_READ_AHEAD_BYTES = 16 * 1024 * 1024
"""How far the agent reads ahead of a follower that is far behind, for each connection."""
_OWN_CONNECTIONS = 128
"""Far more than a broker has to itself."""
_GATHER_MAX_MS = 25
"""How long the broker may gather what a follower's fetch gets, while much is uploaded: as long as an object is."""
_CATCH_UP_READS = 4
"""Reads at once for brokers far behind (guessed)."""


@dataclass(frozen=True, slots=True)
class Relaying:
    """The parts of relaying. Use it in the event loop."""

    leader: LeaderProxy
    follower: FollowerProxy
    hydration: HydrationCache
    catch_up_reads: CatchUpReads
    storage: GuardedStorageManager
    write_path: GuardedWritePath
    stage_times: StageTimes
    metrics: ReplicationMetrics
    zones: Zones
    found_peers: FoundPeers
    peer_watch: PeerWatch
    store_times: StoreTimes
    pauses: LinkPauses
    packing: Packing
    gateway: "ClientGateway | None" = None
    """None if it is off: its code is not loaded then."""
    neighbours: Neighbours | None = None
    """None if each agent reads for itself."""
    shadow: Shadow | None = None
    """None unless the agent is in shadow; then nothing listens and nobody is dialled."""
    own_port: "PassingPort | None" = None
    """Passes on what the local broker sends to the address that it advertises to other brokers: it dials itself there
    too, for instance to end transactions that it coordinates. None if the broker itself listens at that port.
    """

    @property
    def traffic(self) -> Traffic:
        """The bytes that followers got, or in shadow would have got."""
        return self.metrics.traffic if self.shadow is None else self.shadow.traffic

    @property
    def requests(self) -> RequestCounts:
        """The requests to the store, or in shadow those that would have been."""
        return self.storage.request_counts if self.shadow is None else self.shadow.requests

    async def start(self, configuration: Configuration, handed: ListeningSockets) -> None:
        """Listen for the local broker and other agents, at handed-over sockets where there are any; not in shadow.

        Raises OSError naming the address.
        """
        broker, settings = configuration.broker, configuration.settings
        if self.shadow is not None:
            return
        tls = peer_tls(settings.tls)
        peer_listener = handed.take("peer", settings.peers.peer_listener)
        await self.leader.start(peer_listener, tls.server_context() if tls else None)
        replicas = replica_listeners(broker, settings.peers).items()
        await self.follower.start({one: handed.take(f"replica-{one}", address) for one, address in replicas})
        if self.own_port is not None:
            await self.own_port.start(posing_address(settings.peers, broker.node_id))
        if self.gateway is not None:
            await self.gateway.start(handed)

    async def stop(self) -> None:
        """Close all listeners and connections."""
        if self.gateway is not None:
            await self.gateway.stop()
        if self.own_port is not None:
            await self.own_port.stop()
        await self.leader.stop()
        await self.follower.stop()
        self.hydration.close()
        if self.neighbours is not None:
            await self.neighbours.close()
        self.catch_up_reads.close()
        self.packing.pool.shutdown(wait=False)
        self.storage.close()


def build_relaying(
    configuration: Configuration,
    identity: AgentIdentity,
    registry: CollectorRegistry,
    archive: Callable[[], ArchiveReads | None],
    clock: Callable[[], float],
) -> Relaying:
    """Build relaying. `archive` returns the archive's store once it is there; `clock` gives monotonic seconds."""
    settings, broker = configuration.settings, configuration.broker
    store_times, stage_times, metrics = StoreTimes(registry, clock), StageTimes(registry), ReplicationMetrics(registry)
    storage = GuardedStorageManager(*_ceilings(settings.alarms, clock), store_times.time_call)
    write_path, zones = GuardedWritePath(), Zones(identity.rack, RemoteReaders(clock))
    peers = KnownPeers(peer_addresses(broker, settings.peers))
    hydration = HydrationCache(storage, cache_bytes(settings), stage_times, metrics, clock, archive)
    pauses = LinkPauses(identity.broker_id, identity.rack, settings.process.state_directory)
    tls_plan = None if settings.is_shadow else broker_tls_plan(broker, settings.broker_tls)
    broker_tls = BrokerTls(tls_plan) if tls_plan is not None else None
    frames, index = frame_bytes(settings), LinkIndex()
    packing = Packing(clock, metrics.packing)
    context = LeaderContext(
        own_hello(identity, settings, shares_reads=configuration.shares_reads),
        _leader_limits(configuration),
        broker_listener(broker),
        write_path,
        stage_times,
        metrics,
        clock,
        index,
        followers=peers,
        budget=_frame_budget("to_followers", frames.to_followers, metrics),
        request_budget=_frame_budget("requests", frames.requests, metrics),
        catch_up=CatchUp(index, write_path, CatchUpLimits(_READ_AHEAD_BYTES), metrics, clock),
        zones=zones,
        packing=packing,
        requests=broker_requests(broker, settings.access),
        broker_tls=broker_tls.client_context if broker_tls is not None else lambda: None,
        broker_name=tls_plan.advertised_host if tls_plan is not None else None,
    )
    follower_context = _follower_context(configuration, context, hydration, broker_tls, pauses)
    follower = FollowerProxy(follower_context, peers, bypass(broker, settings, configuration.client, clock))
    peer_watch = PeerWatch(
        follower_context,
        peers,
        clock,
        lambda: found_peers.look_again(),  # noqa: PLW0108 - it is made below
    )
    handlers: dict[PeerCapabilities, PeerHandler] = {}
    gateway = None
    if settings.gateway.enable:
        from agent.wiring.gateway import build_gateway
        from gateway.zone_proxies import ZoneProxies

        proxies = ZoneProxies(
            broker.node_id,
            lambda: serving_clients(found_peers.agents, broker.rack or ""),
            lambda one, broker_id: one in peers and peer_watch.serves(one, broker_id),
        )
        gateway = build_gateway(configuration, context, follower_context, storage.blobs, peers, proxies)
        handlers |= gateway.handlers
    neighbours = None
    if configuration.shares_reads:
        neighbours = hydration.neighbours = Neighbours(follower_context, peers, zones.is_own)
        ranges = RangeHandler(follower_context, context.budget, zones.is_own, context.limits.idle_timeout_s)
        handlers[PeerCapabilities.RANGES] = ranges
    granted = reduce(or_, handlers, gateway.capabilities if gateway is not None else PeerCapabilities.NONE)
    hello = replace(context.hello, capabilities=context.hello.capabilities | granted)
    unserved = gateway.unserved if gateway is not None else tuple
    leader = LeaderProxy(replace(context, hello=hello, handlers=handlers, unserved=unserved))
    pauses.on_change = leader.links_left_out
    metrics.held.connections.labels("peer").set_function(lambda: leader.connections)
    metrics.held.connections.labels("replica").set_function(lambda: follower.connections)
    remembered = SettingsMemory(settings.process.state_directory).table(is_read=False).agents
    keep_to_peers = gateway.keep_to_peers if gateway is not None else None
    listen_at = partial(posing_address, settings.peers)
    found_peers = FoundPeers(broker.node_id, peers, follower, listen_at, remembered, keep_to_peers)
    return Relaying(
        leader,
        follower,
        hydration,
        follower_context.catch_up,
        storage,
        write_path,
        stage_times,
        metrics,
        zones,
        found_peers,
        peer_watch,
        store_times,
        pauses,
        packing,
        gateway,
        neighbours,
        _shadow(configuration, registry, zones, clock) if settings.is_shadow else None,
        _own_port(broker, settings.peers),
    )


def _own_port(broker: BrokerProperties, settings: PeerSettings) -> "PassingPort | None":
    """Build it where an operator such as Strimzi keeps the broker's listener at another port than it advertises."""
    if not is_forwarded(broker, posing_address(settings, broker.node_id).port):
        return None
    from gateway.client_handler import ClientLimits
    from gateway.client_port import PassingPort
    from gateway.metrics import GatewayMetrics

    limits = ClientLimits(_OWN_CONNECTIONS, _OWN_CONNECTIONS, idle_s=0.0)
    return PassingPort(broker_listener(broker), lambda: None, limits, GatewayMetrics(CollectorRegistry()))


def _shadow(
    configuration: Configuration, registry: CollectorRegistry, zones: Zones, clock: Callable[[], float]
) -> Shadow:
    for_whom = partial(reads_for, zones=zones, shares=configuration.shares_reads)
    return Shadow(registry, configuration.settings.link.wait_max_s, for_whom, clock)


def _follower_context(
    configuration: Configuration,
    leader: LeaderContext,
    hydration: HydrationCache,
    broker_tls: BrokerTls | None,
    pauses: LinkPauses,
) -> FollowerContext:
    """Return the follower's context, which shares parts with the leader's."""
    settings, metrics, tls = configuration.settings, leader.metrics, peer_tls(configuration.settings.tls)
    return FollowerContext(
        leader.hello,
        FollowerLimits(
            settings.hydration.timeout_s,
            max_request_bytes(configuration.broker),
            wants_digests=settings.link.takes_digests,
        ),
        hydration,
        leader.stage_times,
        metrics,
        CatchUpReads(hydration, catch_up_read_limits(settings), metrics, leader.clock),
        tls.client_context if tls else lambda: None,
        leader.clock,
        budget=_frame_budget("from_leaders", frame_bytes(settings).from_leaders, metrics),
        requests=leader.requests,
        broker_tls=broker_tls.server_context if broker_tls else lambda: None,
        broker_uid=settings.access.replica_user,
        is_paused=pauses.is_paused,
        packing=leader.packing,
        is_own_zone=leader.zones.is_own,
    )


def _ceilings(settings: AlarmSettings, clock: Callable[[], float]) -> tuple[RequestCeiling, RequestCeiling]:
    return (
        RequestCeiling("PUT", settings.store_puts_per_minute, "remote.wal.store.puts.per.minute", clock),
        RequestCeiling("GET", settings.store_gets_per_minute, "remote.wal.store.gets.per.minute", clock),
    )


def _frame_budget(way: str, max_bytes: int, metrics: ReplicationMetrics) -> MemoryBudget:
    budget = MemoryBudget(max_bytes, lambda: metrics.fault("frames_over_budget"))
    metrics.held.frame_bytes.labels(way).set_function(lambda: budget.used)
    return budget


def catch_up_read_limits(settings: AgentSettings) -> CatchUpReadLimits:
    """Use at most a quarter of the cache, and half of the time that a response has."""
    return CatchUpReadLimits(
        _CATCH_UP_READS,
        settings.catch_up.fetch_max_bytes_per_second,
        cache_bytes(settings) // 4,
        settings.hydration.timeout_s / 2,
    )


def _leader_limits(configuration: Configuration) -> LeaderLimits:
    """Read gaps along if that is cheaper than another request; a response is stale when followers have given up."""
    settings, store = configuration.settings, configuration.store_prices
    return LeaderLimits(
        settings.link.wait_max_s,
        configuration.break_even_bytes,
        gather_max_ms=_GATHER_MAX_MS,
        watermark_wait_ms=milliseconds(settings.link.watermark_wait_s),
        range_gap_bytes=round(store.get_per_1000 / 1000 / max(store.retrieval_gb, 1e-9) * 1e9),
        stale_after_s=int(configuration.broker.raw.get("replica.socket.timeout.ms", "30000")) / 1000,
        shares_reads=configuration.shares_reads,
        max_frame_bytes=max_request_bytes(configuration.broker),
        idle_timeout_s=_PEER_IDLE_S,
    )
