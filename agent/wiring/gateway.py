"""Builds the zone gateway from the settings: ports for this zone's clients, and handlers for those of other zones.

A part that is off is None.
"""

import asyncio
import errno
import ssl
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry

from agent.configuration import Configuration
from agent.lease_watch import LeaseWatch
from agent.service_manager import ListeningSockets
from agent.settings.bypass import client_login
from agent.settings.memory_shares import (
    BOOTSTRAP_BYTES,
    CLIENT_FRAMES_BYTES,
    HELD_ANSWERS_BYTES,
    HELD_FRAMES_BYTES,
    SERVED_BYTES,
)
from agent.wiring.peering import broker_listener, gateway_tls
from agent.wiring.standby import client_access, own_zone_address
from gateway.broker_pipe import ConsumerContext, HoldingContext, RouterReads, SplicingContext, tell_outcomes
from gateway.client_handler import ClientHandler
from gateway.client_listeners import ClientAccess
from gateway.client_port import BrokerListener, ClientPort, FramePort
from gateway.client_zone import ZoneRules
from gateway.consume.consumer_links import ReadCosts
from gateway.durable.durable_logs import DurableLogs
from gateway.durable.pipelined_acks import ReplicationLimits
from gateway.gateway_pipe import RoutingContext, ServingParts
from gateway.metrics import (
    ClientCount,
    ClientTraffic,
    ConsumeMetrics,
    DurableMetrics,
    GatewayMetrics,
    ProduceMetrics,
    ServeMetrics,
)
from gateway.produce.route_core import RouteLimits
from gateway.produce.route_decider import RouteCosts, RouteDecider
from gateway.produce.router_channel import RouterChannel
from gateway.produce.splice_core import SpliceLimits
from gateway.router_uploads import KnownNames, RouterUploads, WantedObjects
from gateway.serve.serve_permission import ClusterServePermission, ServeRestrictions
from gateway.serve.tail_handler import TailHandler
from gateway.serve.tails import TailContext, Tails
from gateway.zone_gateway import GatewayContext, ZoneGateway
from gateway.zone_proxies import ZoneProxies
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.responses import ClientQuota
from kafka_log.topic_partition import TopicId
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.topic.followed_metadata import FollowedMetadata
from plugin.blob_storage import BlobStorage
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.wall_clock import Clocks, wall_ms
from replication.follower.follower_context import FollowerContext
from replication.leader.leader_context import LeaderContext, PeerHandler
from replication.wire.circuit_breaker import CircuitBreaker
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, FramedConnection
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_connection import Address, KnownPeers, connect_framed
from replication.wire.peer_protocol import PeerCapabilities
from rlm.lifecycle.unpublished_segments import UnpublishedSegments
from rlm.write_path.commit.cadence import CommitLimits
from rlm.write_path.metrics import StageTimes
from rlm.write_path.uploads.adoptable_records import AdoptableRecords, AdoptionLimits

_RETRY_S, _RETRY_MAX_S = 0.1, 5.0
_GATHERED_S = 0.025
"""How long requests are gathered for one object (guessed); under load twice as long."""
_LEFT_INLINE_S = 1.0
"""An interval with no effect: requests that are not linked are not queued."""
_WAIT_MAX_S = 0.5
"""A request that waits longer for its upload, or for the read of its records, goes inline."""
_UPLOAD_BYTES = 4 * 1024 * 1024
"""An object is uploaded sooner when it has so many bytes."""
_UPLOADS = 4
"""Uploads at once (guessed)."""
_AUTHORISED_S = 60.0
"""How long the broker's answer to a consumer's Fetch says that it may read (guessed)."""
_ASK_TIMEOUT_S = 5.0
CALLBACK_KEY = "client.quota.callback.class"
"""A broker with its own quotas, of which the cluster cannot be asked."""
_OF_LINKS = PeerCapabilities.ARCHIVE_LINKS | PeerCapabilities.LINK_DIGESTS


class ClientGateway:
    """Builds and runs the parts of the zone gateway. Create and use it in the event loop."""

    def __init__(
        self,
        configuration: Configuration,
        leader: LeaderContext,
        follower: FollowerContext,
        store: BlobStorage,
        peers: KnownPeers,
        proxies: ZoneProxies,
        ask_anew: Callable[[], object],
    ) -> None:
        """`leader` and `follower` are the contexts of replication, `peers` the other agents, some of which may be found
        later. `ask_anew` makes the agent ask Kafka again for topics and leaders."""
        self._configuration, self._store = configuration, store
        self.settings, self.peers, self.proxies = configuration.settings.gateway, peers, proxies
        self.traffic = ClientTraffic(configuration.broker.rack or "")
        """The traffic of both sides."""
        self.capabilities = _capabilities(configuration, follower)
        """What the gateway asks for, and the handlers grant."""
        self._metrics = metrics = GatewayMetrics(leader.metrics.registry, self.traffic)
        produced = ProduceMetrics(leader.metrics.registry, self.traffic)
        self._holding = self._make_holding(leader, ask_anew)
        self.durable = self._holding.logs if self._holding is not None else None
        """The logs whose answers are held; None if none are."""
        self._routing = self._make_routing(follower, produced)
        splicing = self._make_splicing(leader, produced)
        self.adoptable = splicing.adoptable
        """The records that the write path need not upload; None if it uploads all."""
        consumers = self._make_consumers(leader, splicing.responses_budget)
        self._access = access = client_access(self.settings, metrics)
        tls, listeners = gateway_tls(configuration.settings.tls, self.settings), _zone_listeners(configuration)
        clients = ClientHandler(configuration.broker.node_id, listeners, access, splicing, consumers, self._holding)
        self.handlers: dict[PeerCapabilities, PeerHandler] = {PeerCapabilities.CLIENTS: clients}
        """Who serves other agents' connections, by what they are for."""
        self.runs: dict[str, Callable[[], Coroutine[None, None, None]]] = {}
        """What runs beside the listeners, as functions by name."""
        if PeerCapabilities.ROUTED_PRODUCE in self.capabilities:
            self.runs["router uploads"] = self._routing.uploads.run
            self.runs["router sweep"] = self._routing.uploads.sweep_always
        if self.adoptable is not None:
            self.runs["adoption outcomes"] = partial(tell_outcomes, self.adoptable)
        self._serving = self._make_serving(leader, consumers)
        self.clients = ZoneGateway(
            GatewayContext(
                access,
                replace(follower.hello, capabilities=self.capabilities),
                peers,
                tls.client_context if tls else lambda: None,
                self._routing,
                self._serving,
                self.settings.fetch_rack_enable,
            )
        )
        self.runs["gateway probe"] = self.clients.probe
        self._ports = self._make_ports()
        """Ports of the broker beside this agent, by the names of their sockets."""

    def _make_serving(self, leader: LeaderContext, consumers: ConsumerContext) -> ServingParts | None:
        """Make what answers consumers here, and what tells other gateways what is visible; None if that is off."""
        if not self.settings.fetch_serve_enable or (links := self._routing.links) is None:
            return None
        permission = ClusterServePermission(_asker(self._configuration), leader.clock)
        self.runs["serve permission"] = permission.run
        tails = _tails(links, self.peers, self._metrics)
        told = ServeMetrics(leader.metrics.registry, tails.held_bytes)
        self.handlers[PeerCapabilities.VISIBLE] = TailHandler(consumers, _dialler(self._configuration, leader))
        return ServingParts(tails, permission, told, _AUTHORISED_S)

    def _make_routing(self, follower: FollowerContext, metrics: ProduceMetrics) -> RoutingContext:
        """Stage times are replication's, so consumers get separate ones that are not shown."""
        hello, costs = follower.hello, RouteCosts.of(self._configuration.prices, self._configuration.store_prices)
        policy = LinkPolicy(self.settings.produce_policy)
        decider = RouteDecider(policy, costs, _GATHERED_S, CircuitBreaker(), follower.is_paused)
        limits = CommitLimits(_GATHERED_S, _LEFT_INLINE_S, _UPLOAD_BYTES, _UPLOADS, _RETRY_S, _RETRY_MAX_S)
        channel = RouterChannel(hello.broker_id, hello.incarnation, limits, decider, _WAIT_MAX_S)
        uploads = RouterUploads(channel, self._store, Clocks(follower.clock, wall_ms), metrics, WantedObjects())
        requests, answers = MemoryBudget(CLIENT_FRAMES_BYTES), MemoryBudget(CLIENT_FRAMES_BYTES)
        links = None
        if PeerCapabilities.LINKED_FETCH in self.capabilities:
            links = replace(follower, stage_times=StageTimes(CollectorRegistry()), budget=answers, link_defects={})
        return RoutingContext(
            RouteLimits(_WAIT_MAX_S), uploads, decider, metrics, requests, answers, links, follower.channel
        )

    def _make_splicing(self, leader: LeaderContext, metrics: ProduceMetrics) -> SplicingContext:
        return SplicingContext(
            SpliceLimits(_WAIT_MAX_S, DEFAULT_MAX_FRAME_BYTES),
            RouterReads(self._store),
            metrics,
            MemoryBudget(CLIENT_FRAMES_BYTES),
            AdoptableRecords(AdoptionLimits(CLIENT_FRAMES_BYTES)) if self.settings.produce_enable else None,
            leader.channel,
        )

    def _make_consumers(self, leader: LeaderContext, budget: MemoryBudget) -> ConsumerContext:
        configuration = self._configuration
        giving = replace(leader, stage_times=StageTimes(CollectorRegistry()), budget=budget)
        read_bytes = configuration.prices.get_break_even_bytes(configuration.store_prices)
        costs = ReadCosts(read_bytes, configuration.settings.log_manager.combiner_task_interval_s)
        return ConsumerContext(giving, ConsumeMetrics(leader.metrics.registry, self.traffic), costs)

    def _make_holding(self, leader: LeaderContext, ask_anew: Callable[[], object]) -> HoldingContext | None:
        if not self.settings.durable_listener:
            return None
        logs = DurableLogs(ask_anew)
        metrics = DurableMetrics(leader.metrics.registry, logs)
        replication = None
        if self.settings.acks_pipelined_enable:
            replication = ReplicationLimits(leader.follower_offsets, metrics.pipelined)
        passing = MemoryBudget(HELD_FRAMES_BYTES), MemoryBudget(HELD_FRAMES_BYTES)
        return HoldingContext(logs, metrics, *passing, MemoryBudget(HELD_ANSWERS_BYTES), replication)

    def _make_ports(self) -> dict[str, tuple[ClientPort, Address]]:
        configuration, settings = self._configuration, self.settings
        broker, ports = configuration.broker, dict[str, tuple[ClientPort, Address]]()
        if settings.bootstrap_listener:
            shared = Address(settings.listen_host, settings.port_base - 1)
            ports["bootstrap"] = _bootstrap_port(configuration, self._access), shared
        if (holding := self._holding) is not None:
            zone, where = self.traffic.zone, broker_listener(broker, settings.durable_listener)
            budgets = holding.requests_budget, holding.responses_budget
            listeners = {zone: BrokerListener(zone, where)}
            port = FramePort(broker.node_id, listeners, budgets, self._access, holding=holding)
            ports["own-zone"] = port, own_zone_address(settings)
        return ports

    async def start(self, handed: ListeningSockets) -> None:
        """Listen for clients, on sockets from the service manager where there are any.

        Raises OSError naming the address or file, ssl.SSLError.
        """
        await self.clients.start({})
        wanted = {one: handed.take(f"client-{one}", address) for one, address in self._addresses().items()}
        await self.clients.keep_to(wanted)  # a neighbour serves whom this agent cannot listen for
        for name, (port, address) in self._ports.items():
            try:
                await port.open(handed.take(name, address))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                raise OSError(error.errno, f"{error.strerror}; the broker may still run with its old lines") from error

    async def keep_to_peers(self) -> bool:
        """Listen for the brokers that clients reach here now, and no others. Returns whether all are served."""
        return await self.clients.keep_to(self._addresses())

    def _addresses(self) -> dict[int, Address]:
        """Return where clients reach brokers here now: those whose proxy this agent is."""
        host, base, wanted = self.settings.listen_host, self.settings.port_base, self.settings.reached(self.peers)
        return {one: Address(host, base + one) for one in sorted(wanted) if self.proxies.is_proxy(one)}

    async def stop(self) -> None:
        """Close all listeners and clients' connections."""
        await asyncio.gather(*(port.stop() for port, _ in self._ports.values()))
        await self.clients.stop()
        if self._serving is not None:
            await self._serving.tails.close()

    def kafka_is_followed(
        self,
        metadata: FollowedMetadata,
        storage: RemoteWalStorageManager,
        lease: LeaseWatch,
    ) -> None:
        """Start to use this metadata to find gateways' objects that no log refers to, and delete them while the
        lease allows it."""

        def doubt() -> str:
            return metadata.doubt() if lease.may_delete else "the lease in the bucket is not known to be this cluster's"

        unpublished = UnpublishedSegments(storage, metadata.store, lambda: self.peers)
        find, is_stopped = metadata.store.find_adopters, lambda: lease.lost_because is not None
        names = KnownNames(find, unpublished.stored_ms, metadata.read_to_end, doubt, is_stopped)
        self._routing.uploads.wanted.arrived(names)

    @property
    def degraded(self) -> list[str]:
        """What does not work for clients, as texts for people."""
        away = self.clients.unreached
        told = [f"clients here do not reach broker {one}: {why}" for one, why in sorted(away.items())]
        if self._holding is not None and self._holding.metrics.are_refused_late:
            told.append("producers are told to try again: what they sent was not stored or replicated in time")
        return told


def _capabilities(configuration: Configuration, follower: FollowerContext) -> PeerCapabilities:
    settings, own = configuration.settings, follower.hello.capabilities
    found = PeerCapabilities.CLIENTS | own & PeerCapabilities.PACKED
    if settings.gateway.produce_enable:
        found |= PeerCapabilities.ROUTED_PRODUCE | PeerCapabilities.ADOPTED_RECORDS
    if settings.gateway.fetch_links_enable:
        found |= PeerCapabilities.LINKED_FETCH | own & _OF_LINKS
    return found


def _tails(links: FollowerContext, peers: Mapping[int, Address], metrics: GatewayMetrics) -> Tails:
    visible = PeerCapabilities.VISIBLE | links.hello.capabilities & (_OF_LINKS | PeerCapabilities.PACKED)
    reading = replace(links, hello=replace(links.hello, capabilities=visible))

    def crossed(broker_id: int) -> tuple[Callable[[int], object], Callable[[int], object]]:
        count = ClientCount(metrics, metrics.traffic.zone, broker_id)
        return count.given_crossed, count.sent_crossed

    return Tails(TailContext(reading, peers, crossed, SERVED_BYTES))


def _dialler(configuration: Configuration, leader: LeaderContext) -> Callable[[FramedConnection], Awaitable[None]]:
    """Return what connects to the local broker's inter-broker listener as the agent itself."""
    broker = configuration.broker
    logs_in = broker.security_protocols[broker.inter_broker_listener_name].startswith("SASL")
    login = client_login(configuration.client, "remote.wal.gateway.fetch.serve.enable") if logs_in else None

    async def dial(connection: FramedConnection) -> None:
        await connect_framed(leader.broker, connection, leader.broker_tls(), server_name=leader.broker_name)
        if login is not None:
            await login.log_in(connection)

    return dial


def _asker(configuration: Configuration) -> Callable[[Collection[TopicId]], ServeRestrictions]:
    broker = configuration.broker
    cluster = KafkaCluster(configuration.client, f"remote-wal-agent-{broker.node_id}-quotas", _ASK_TIMEOUT_S)
    any_client = [ClientQuota({}, frozenset({"consumer_byte_rate"}))] if CALLBACK_KEY in broker.raw else []

    def ask(topics: Collection[TopicId]) -> ServeRestrictions:
        quotas = [*any_client, *cluster.client_quotas()]
        described = cluster.topics_by_id(list(topics))
        names = {one.name: one.topic_id for one in described if not one.error_code and one.name}
        kept_whole = [
            names[name]
            for name, values in cluster.topic_configurations(names).each()
            if not isinstance(values, KafkaClusterError) and "compact" not in values.get("cleanup.policy", "compact")
        ]
        return ServeRestrictions(quotas, kept_whole)

    return ask


def _zone_listeners(configuration: Configuration) -> dict[str, Address]:
    names = configuration.settings.gateway.zone_listeners
    return {zone: broker_listener(configuration.broker, name) for zone, name in names.items()}


def _bootstrap_port(configuration: Configuration, access: ClientAccess) -> FramePort:
    broker, settings = configuration.broker, configuration.settings.gateway
    listeners = {zone: BrokerListener(zone, address) for zone, address in _zone_listeners(configuration).items()}
    own, name = broker.rack or "", settings.bootstrap_listener
    tls = None
    if broker.security_protocols[name].endswith("SSL"):
        tls = ssl.create_default_context()  # to an address of this host that the broker's certificate may not name
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    listeners[own] = BrokerListener(own, broker_listener(broker, name), tls)  # it speaks the same protocol as clients
    rules = ZoneRules(own, frozenset(listeners), settings.bootstrap_zones)
    budgets = MemoryBudget(BOOTSTRAP_BYTES), MemoryBudget(BOOTSTRAP_BYTES)
    return FramePort(broker.node_id, listeners, budgets, access, rules=rules)
