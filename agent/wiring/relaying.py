"""Puts relaying together from the settings: both proxies, and what they need to relay inline.

It depends on nothing that may fail beside it: the write path and object storage come later, and may go again.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from agent.configuration import Configuration
from agent.found_peers import FoundPeers, serving_clients
from agent.identity import AgentIdentity
from agent.link_pauses import LinkPauses
from agent.metrics.savings import Savings
from agent.metrics.store_times import StoreTimes
from agent.pack_rules import PackRules
from agent.service_manager import ListeningSockets
from agent.settings.agent_settings import AgentSettings
from agent.settings.bypass import bypass
from agent.settings.memory_shares import cache_bytes, frame_bytes
from agent.settings.process_settings import PeerSettings
from agent.settings.setting_types import milliseconds
from agent.tls.broker_tls import BrokerTls, broker_tls_plan
from agent.wiring.peering import (
    broker_listener,
    broker_requests,
    is_forwarded,
    max_request_bytes,
    own_hello,
    peer_addresses,
    peer_tls,
)
from kafka_log.broker_files.server_properties import BrokerProperties
from metadata_topic.settings.settings_memory import SettingsMemory
from plugin.wrappers.guarded_storage import GuardedStorageManager, RequestCeiling
from replication.follower.catch_up_reads import CatchUpReadLimits, CatchUpReads
from replication.follower.follower_context import DiallingContext, FollowerContext, FollowerLimits
from replication.follower.follower_proxy import FollowerProxy
from replication.follower.hydration import HydrationCache
from replication.follower.neighbours import Neighbours, RangeHandler
from replication.follower.peer_watch import PeerWatch
from replication.follower.tiers import ArchiveReads
from replication.leader.catch_up import CatchUp
from replication.leader.guarded_write_path import GuardedWritePath
from replication.leader.leader_context import LeaderContext, LeaderLimits
from replication.leader.leader_proxy import LeaderProxy
from replication.leader.link_index import LinkIndex
from replication.leader.read_ahead import CatchUpLimits
from replication.leader.shadow import Shadow
from replication.leader.upload_signal import UploadSignal
from replication.leader.zones import RemoteReaders, Zones, reads_for
from replication.wire.memory_budget import MemoryBudget
from replication.wire.metrics import ReplicationMetrics
from replication.wire.packing import Packing
from replication.wire.peer_connection import KnownPeers
from replication.wire.peer_protocol import Hello, PeerCapabilities
from rlm.write_path.metrics import StageTimes

if TYPE_CHECKING:
    from agent.wiring.gateway import ClientGateway
    from gateway.client_port import PassingPort

_OWN_CONNECTIONS = 128
"""Far more than a broker has to itself."""


class Relaying:
    """Builds and runs both proxies and what they need to relay inline. Create and use it in the event loop."""

    def __init__(
        self,
        configuration: Configuration,
        identity: AgentIdentity,
        registry: CollectorRegistry,
        archive: Callable[[], ArchiveReads | None],
        clock: Callable[[], float],
    ) -> None:
        """`archive` returns the archive's store, None until it is loaded; `clock` gives monotonic seconds."""
        self._configuration = configuration
        settings, broker = configuration.settings, configuration.broker
        self.metrics = metrics = ReplicationMetrics(registry)
        self.store_times, self.stage_times = StoreTimes(registry, clock), StageTimes(registry)
        self.storage = GuardedStorageManager(
            RequestCeiling("PUT", settings.storage.puts_per_minute, "remote.wal.store.puts.per.minute", clock),
            RequestCeiling("GET", settings.storage.gets_per_minute, "remote.wal.store.gets.per.minute", clock),
            self.store_times.time_call,
        )
        self.write_path = GuardedWritePath()
        self.leadership_asked = asyncio.Event()
        """Set when Kafka is to be asked again who leads what."""
        self.zones = zones = Zones(identity.rack, RemoteReaders(clock, self.leadership_asked.set))
        self.reads_for = partial(reads_for, zones=zones, shares=configuration.shares_reads)
        self.pack_rules = PackRules()
        self.packing = Packing(clock, metrics.packing, self.pack_rules.allows)
        uploads, peers = UploadSignal(), KnownPeers(peer_addresses(broker, settings.peers))
        self.pauses = LinkPauses(identity.broker_id, identity.rack, settings.process.state_directory, uploads.notify)
        hello = own_hello(identity, settings, shares_reads=configuration.shares_reads)
        tls_plan = None if settings.is_shadow else broker_tls_plan(broker, settings.broker_tls)
        broker_tls = BrokerTls(tls_plan) if tls_plan is not None else None

        following = self._following(hello, peers, broker_tls, archive, clock)
        self.follower = FollowerProxy(following, peers, bypass(broker, settings, configuration.client, clock))
        remembered = SettingsMemory(settings.process.state_directory).table(is_read=False).agents
        listen_at = settings.peers.posing_address
        self.found_peers = FoundPeers(broker.node_id, peers, self.follower, listen_at, remembered)
        self.peer_watch = PeerWatch(following, peers, self.found_peers.changed.set)

        leading = self._leading(following, peers, uploads, broker_tls)
        self.gateway = self._gateway(leading, following, peers) if settings.gateway.enable else None
        """None if it is off: its code is not loaded then."""
        self.leader = LeaderProxy(self._with_handlers(leading, following))
        self.shadow = Shadow(registry, settings.link.wait_max_s, self.reads_for, clock) if settings.is_shadow else None
        """None unless the agent is in shadow; then nothing listens and nobody is dialled."""
        self.traffic = metrics.traffic if self.shadow is None else self.shadow.traffic
        """The bytes that followers got; in shadow mode those that they would have got."""
        shadow, storage = self.shadow, self.storage
        self.savings = Savings(
            configuration.prices,
            settings.storage.price_section,
            lambda: storage.request_counts if shadow is None else shadow.requests,
            self.traffic.by_follower,
            zones.is_own,
            self.gateway.traffic if self.gateway is not None else None,
        )
        self._own_port = _own_port(broker, settings.peers)
        metrics.held.connections.labels("peer").set_function(lambda: self.leader.connections)
        metrics.held.connections.labels("replica").set_function(lambda: self.follower.connections)

    def _following(
        self,
        hello: Hello,
        peers: KnownPeers,
        broker_tls: BrokerTls | None,
        archive: Callable[[], ArchiveReads | None],
        clock: Callable[[], float],
    ) -> FollowerContext:
        """Build what reads objects, and what the connections to leaders' agents share."""
        broker, settings, metrics = self._configuration.broker, self._configuration.settings, self.metrics
        limits = FollowerLimits(
            settings.link.hydration_timeout_s, max_request_bytes(broker), wants_digests=settings.link.takes_digests
        )
        tls, budget = peer_tls(settings.tls), _frame_budget("from_leaders", frame_bytes(settings).from_leaders, metrics)
        dialling = hello, limits, metrics, tls.client_context if tls else lambda: None, clock, budget
        self.neighbours: Neighbours | None = None
        """None if each agent reads for itself."""
        if self._configuration.shares_reads:
            self.neighbours = Neighbours(DiallingContext(*dialling), peers, self.zones.is_own)
        self.hydration = HydrationCache(
            self.storage, cache_bytes(settings), self.stage_times, metrics, clock, archive, neighbours=self.neighbours
        )
        self.catch_up_reads = CatchUpReads(self.hydration, catch_up_read_limits(settings), metrics, clock)
        return FollowerContext(
            *dialling,
            self.hydration,
            self.stage_times,
            self.catch_up_reads,
            broker_requests(broker, settings.process),
            broker_tls=broker_tls.server_context if broker_tls is not None else lambda: None,
            broker_uid=settings.process.replica_user,
            is_paused=self.pauses.is_paused,
            packing=self.packing,
            is_own_zone=self.zones.is_own,
        )

    def _leading(
        self, following: FollowerContext, peers: KnownPeers, uploads: UploadSignal, broker_tls: BrokerTls | None
    ) -> LeaderContext:
        configuration, metrics, clock, index = self._configuration, self.metrics, following.clock, LinkIndex()
        frames = frame_bytes(configuration.settings)
        return LeaderContext(
            following.hello,
            _leader_limits(configuration),
            broker_listener(configuration.broker),
            self.write_path,
            self.stage_times,
            metrics,
            clock,
            index,
            uploads,
            followers=peers,
            budget=_frame_budget("to_followers", frames.to_followers, metrics),
            request_budget=_frame_budget("requests", frames.requests, metrics),
            catch_up=CatchUp(index, self.write_path, CatchUpLimits(), metrics, clock),
            zones=self.zones,
            packing=self.packing,
            requests=following.requests,
            broker_tls=broker_tls.client_context if broker_tls is not None else lambda: None,
            broker_name=broker_tls.plan.advertised_host if broker_tls is not None else None,
        )

    def _gateway(self, leading: LeaderContext, following: FollowerContext, peers: KnownPeers) -> "ClientGateway":
        from agent.wiring.gateway import ClientGateway
        from gateway.zone_proxies import ZoneProxies

        broker, found, watch = self._configuration.broker, self.found_peers, self.peer_watch
        proxies = ZoneProxies(
            broker.node_id,
            lambda: serving_clients(found.agents, broker.rack or ""),
            lambda one, broker_id: one in peers and watch.serves(one, broker_id),
        )
        ask_anew = self.leadership_asked.set
        return ClientGateway(self._configuration, leading, following, self.storage.blobs, peers, proxies, ask_anew)

    def _with_handlers(self, leading: LeaderContext, following: FollowerContext) -> LeaderContext:
        """Return the context with what serves other agents' connections, and a hello that grants it."""
        gateway, own = self.gateway, leading.hello
        handlers = dict(gateway.handlers) if gateway is not None else {}
        if self.neighbours is not None:
            idle_timeout_s = leading.limits.idle_timeout_s
            handlers[PeerCapabilities.RANGES] = RangeHandler(
                following, leading.budget, self.zones.is_own, idle_timeout_s
            )
        granted = reduce(or_, handlers, gateway.capabilities if gateway is not None else PeerCapabilities.NONE)
        hello = replace(own, capabilities=own.capabilities | granted)
        return replace(
            leading, hello=hello, handlers=handlers, unserved=gateway.clients.unserved if gateway is not None else tuple
        )

    @property
    def runs(self) -> dict[str, Callable[[], Coroutine[None, None, None]]]:
        """The background tasks beside the listeners, as functions by name."""
        keep_to_peers, of_gateway = (self.gateway.keep_to_peers, self.gateway.runs) if self.gateway else (None, {})
        runs: dict[str, Callable[[], Coroutine[None, None, None]]] = {
            "peers": partial(self.found_peers.run, keep_to_peers),
            "peer watch": self.peer_watch.run,
            "broker watch": self.leader.watch_broker,
            **of_gateway,
        }
        return (runs if self.shadow is None else {}) | {"link pauses": self.pauses.run}

    async def start(self, handed: ListeningSockets) -> None:
        """Listen for the local broker and other agents, on sockets from the service manager where there are any; not in
        shadow mode.

        Raises OSError naming the address.
        """
        broker, settings = self._configuration.broker, self._configuration.settings
        if self.shadow is not None:
            return
        tls = peer_tls(settings.tls)
        peer_listener = handed.take("peer", settings.peers.peer_listener)
        await self.leader.start(peer_listener, tls.server_context() if tls else None)
        others = peer_addresses(broker, settings.peers)
        await self.follower.start(
            {one: handed.take(f"replica-{one}", settings.peers.posing_address(one)) for one in others}
        )
        if self._own_port is not None:
            await self._own_port.open(settings.peers.posing_address(broker.node_id))
        if self.gateway is not None:
            await self.gateway.start(handed)

    async def stop(self) -> None:
        """Close all listeners and connections."""
        if self.gateway is not None:
            await self.gateway.stop()
        if self._own_port is not None:
            await self._own_port.stop()
        await self.leader.stop()
        await self.follower.stop()
        self.hydration.close()
        if self.neighbours is not None:
            await self.neighbours.close()
        self.catch_up_reads.close()
        self.packing.pool.shutdown(wait=False)
        self.storage.close()


def _own_port(broker: BrokerProperties, settings: PeerSettings) -> "PassingPort | None":
    """Build what passes on what the local broker sends to the address that it advertises to other brokers.

    It dials itself there too, for instance to end transactions that it coordinates. None if the broker itself listens
    at that port, and not at another one, as an operator such as Strimzi has it.
    """
    if not is_forwarded(broker, settings.posing_address(broker.node_id).port):
        return None
    from gateway.client_listeners import ClientAccess
    from gateway.client_port import PassingPort
    from gateway.metrics import GatewayMetrics

    access = ClientAccess(_OWN_CONNECTIONS, _OWN_CONNECTIONS, GatewayMetrics(CollectorRegistry()))
    return PassingPort(broker_listener(broker), access)


def _frame_budget(way: str, max_bytes: int, metrics: ReplicationMetrics) -> MemoryBudget:
    budget = MemoryBudget(max_bytes, lambda: metrics.fault("frames_over_budget"))
    metrics.held.frame_bytes.labels(way).set_function(lambda: budget.used)
    return budget


def catch_up_read_limits(settings: AgentSettings) -> CatchUpReadLimits:
    """Return the limits of catch-up reads: a quarter of the cache, and half of the time that a response may take."""
    return CatchUpReadLimits(
        settings.link.catch_up_max_bytes_per_second,
        cache_bytes(settings) // 4,
        settings.link.hydration_timeout_s / 2,
    )


def _leader_limits(configuration: Configuration) -> LeaderLimits:
    """Read gaps along if that is cheaper than another request; a response is stale when followers have given up."""
    settings, store = configuration.settings, configuration.store_prices
    return LeaderLimits(
        settings.link.wait_max_s,
        configuration.break_even_bytes,
        watermark_wait_ms=milliseconds(settings.link.watermark_wait_s),
        range_gap_bytes=round(store.get_per_1000 / 1000 / max(store.retrieval_gb, 1e-9) * 1e9),
        stale_after_s=int(configuration.broker.raw.get("replica.socket.timeout.ms", "30000")) / 1000,
        shares_reads=configuration.shares_reads,
        max_frame_bytes=max_request_bytes(configuration.broker),
    )
