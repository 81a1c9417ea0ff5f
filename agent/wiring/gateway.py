"""Puts the zone gateway together from the settings: listeners for this zone's clients, and the handler for this
broker's clients."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry

from agent.configuration import Configuration
from agent.found_peers import FoundPeers, serving_clients
from agent.service_manager import ListeningSockets
from agent.settings.gateway_settings import ALL, GatewaySettings
from agent.settings.memory_shares import CLIENT_FRAMES_BYTES
from agent.settings.setting_types import MAX_PORT
from agent.wiring.gateway_durable import build_durable, durable_degraded
from agent.wiring.gateway_ports import BrokerPorts, build_broker_ports, client_limits, client_tls, local_address
from agent.wiring.gateway_serving import GatewayServing, build_serving
from agent.wiring.lease_watch import LeaseWatch
from agent.wiring.peering import gateway_tls
from gateway.adoption_offers import tell_outcomes
from gateway.broker_pipe import RouterReads, SplicingContext
from gateway.client_handler import ClientHandler
from gateway.client_traffic import ClientTraffic
from gateway.consume.consume_metrics import ConsumeMetrics
from gateway.consume.consumer_answers import ConsumerContext
from gateway.consume.read_worth import ReadCosts
from gateway.gateway_pipe import LinkReading, RoutingContext
from gateway.metrics import GatewayMetrics
from gateway.produce.produce_metrics import ProduceMetrics
from gateway.produce.route_core import RouteLimits
from gateway.produce.route_decider import RouteCosts, RouteDecider
from gateway.produce.router_channel import RouterChannel
from gateway.produce.splice_core import SpliceLimits
from gateway.router_uploads import RouterUploads
from gateway.wanted_objects import KnownNames, WantedObjects
from gateway.zone_gateway import GatewayContext, ZoneGateway
from gateway.zone_proxies import ZoneProxies
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.topic.followed_metadata import FollowedMetadata
from plugin.blob_storage import BlobStorage
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.wall_clock import Clocks
from replication.follower.follower_context import FollowerContext
from replication.follower.peer_watch import PeerWatch
from replication.leader.leader_context import LeaderContext
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES
from replication.wire.link_defects import LinkDefects
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_connection import Address, KnownPeers, Listener
from replication.wire.peer_protocol import MESSAGES, NO_BROKER_SERVED, Hello, PeerCapabilities
from rlm.lifecycle.unpublished_segments import UnpublishedSegments
from rlm.write_path.commit.cadence import CommitLimits
from rlm.write_path.metrics import StageTimes
from rlm.write_path.uploads.adoptable_records import AdoptableRecords, AdoptionLimits

if TYPE_CHECKING:
    from gateway.broker_pipe import HoldingContext
    from gateway.durable.durable_logs import DurableLogs

log = structlog.get_logger(__name__)

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


@dataclass(frozen=True, slots=True)
class ProduceRouting:
    """The parts for Produce requests."""

    routing: RoutingContext
    splicing: SplicingContext
    uploads: RouterUploads
    wanted: WantedObjects


def build_produce_routing(
    configuration: Configuration, hello: Hello, store: BlobStorage, clocks: Clocks, metrics: ProduceMetrics
) -> ProduceRouting:
    """Build it. `hello` names the gateway: its broker and incarnation. `store` may be away."""
    settings, prices = configuration.settings.gateway_produce, configuration.prices
    costs = RouteCosts.of(prices, prices.of_section(configuration.settings.storage.price_section))
    decider = RouteDecider(LinkPolicy(settings.policy), costs, _GATHERED_S, CircuitBreaker(BreakerLimits()))
    limits = CommitLimits(
        _GATHERED_S,
        _LEFT_INLINE_S,
        _UPLOAD_BYTES,
        _UPLOADS,
        _RETRY_S,
        _RETRY_MAX_S,
    )
    channel = RouterChannel(hello.broker_id, hello.incarnation, limits, decider, _WAIT_MAX_S)
    wanted = WantedObjects()
    uploads = RouterUploads(channel, store, clocks, metrics, wanted)
    budgets = [MemoryBudget(CLIENT_FRAMES_BYTES) for _ in range(3)]
    routing = RoutingContext(RouteLimits(_WAIT_MAX_S), uploads, decider, metrics, budgets[0], budgets[1])
    reads = RouterReads(store, CircuitBreaker(BreakerLimits()))
    splicing = SplicingContext(
        SpliceLimits(_WAIT_MAX_S, DEFAULT_MAX_FRAME_BYTES),
        reads,
        metrics,
        budgets[2],
        AdoptableRecords(AdoptionLimits(CLIENT_FRAMES_BYTES)) if settings.adopt_enable else None,
    )
    return ProduceRouting(routing, splicing, uploads, wanted)


_OF_LINKS = PeerCapabilities.ARCHIVE_LINKS | PeerCapabilities.LINK_DIGESTS


@dataclass(frozen=True, slots=True)
class ClientGateway:
    """The parts of the gateway. Use it in the event loop."""

    clients: ZoneGateway
    ports: BrokerPorts
    handler: ClientHandler
    capabilities: PeerCapabilities
    """The capabilities that the gateway asks for, and the handler grants."""
    traffic: ClientTraffic
    """The traffic of both sides."""
    peers: Mapping[int, Address]
    """The agents of other brokers; some may come later."""
    proxies: ZoneProxies
    produce: ProduceRouting | None = None
    holding: "HoldingContext | None" = None
    """The part that holds answers; None if none are held."""
    serving: GatewayServing | None = None
    """The part that answers consumers; None if brokers answer them all."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    unbound: set[int] = field(default_factory=set)
    """Brokers whose ports could not be bound."""

    async def start(self, settings: GatewaySettings, handed: ListeningSockets) -> None:
        """Listen for clients, at handed-over sockets where there are any.

        Raises OSError naming the address or file, ssl.SSLError.
        """
        if self.produce is not None and PeerCapabilities.ROUTED_PRODUCE in self.capabilities:
            self.tasks.append(asyncio.get_running_loop().create_task(self.produce.uploads.run()))
        if self.produce is not None and (adoptable := self.adoptable) is not None:
            telling = tell_outcomes(adoptable, self.produce.splicing.metrics)
            self.tasks.append(asyncio.get_running_loop().create_task(telling))
        if self.serving is not None:
            self.tasks.append(self.serving.run())
        self.tasks.append(asyncio.get_running_loop().create_task(self.clients.probe()))
        where = {one: client_address(settings, one) for one in sorted(self._reached(settings))}
        listeners = {one: handed.take(f"client-{one}", address) for one, address in where.items()}
        await self.clients.start({} if settings.brokers == ALL else listeners)
        if settings.brokers == ALL:  # a neighbour serves whom this agent cannot listen for
            for broker_id, listener in listeners.items():
                await self._listen(broker_id, listener)
        await self.ports.start(settings, handed)

    async def keep_to_peers(self, settings: GatewaySettings) -> bool:
        """Listen for the brokers that clients reach here now and for no others; after the start.

        Returns whether all are served.
        """
        wanted, listening = self._reached(settings), self.clients.addresses.keys()
        for broker_id in listening - wanted:
            await self.clients.leave(broker_id)
            log.info("gateway_left", broker=broker_id)
        is_done = True
        self.unbound.intersection_update(wanted)
        for broker_id in sorted(wanted - listening):
            is_done &= await self._listen(broker_id, client_address(settings, broker_id))
        return is_done

    async def _listen(self, broker_id: int, listener: Listener) -> bool:
        """Listen for a broker's clients. Returns whether the port could be bound."""
        try:
            if isinstance(listener, Address) and listener.port > MAX_PORT:
                raise OSError(f"cannot listen at {listener}: remote.wal.gateway.port.base is too high")
            await self.clients.listen(broker_id, listener)
        except OSError as error:
            self.unbound.add(broker_id)
            log.error("gateway_does_not_listen", broker=broker_id, error=str(error), path="clients here miss it")
            return False
        self.unbound.discard(broker_id)
        log.info("gateway_joined", broker=broker_id)
        return True

    def _reached(self, settings: GatewaySettings) -> set[int]:
        """Return the brokers that clients reach here now; those that the settings name, whoever is their proxy."""
        reached = settings.reached(self.peers)
        return {one for one in reached if settings.brokers != ALL or self.proxies.is_proxy(one)}

    def with_doors(self, context: LeaderContext) -> LeaderContext:
        """Return a context by which other agents' clients are served, too."""
        context = replace(context, unserved=self.unserved)
        context = context.with_handler(PeerCapabilities.CLIENTS, self.handler, self.capabilities)
        if self.serving is not None:
            context = context.with_handler(PeerCapabilities.VISIBLE, self.serving.handler)
        return context

    def unserved(self) -> tuple[int, ...]:
        """Return the brokers whose clients this agent cannot serve now; see `Hello.unserved`."""
        told = self.clients.unserved()
        return told if told == NO_BROKER_SERVED else (*sorted({*told, *self.unbound}),)

    def watch(self, peers: KnownPeers, found_peers: FoundPeers, peer_watch: PeerWatch, rack: str) -> None:
        """Be the proxy only for what the other agents of the zone are not."""
        self.proxies.others = lambda: serving_clients(found_peers.agents, rack)
        self.proxies.serves = lambda one, broker_id: one in peers and peer_watch.serves(one, broker_id)
        peer_watch.on_change = found_peers.look_again

    async def stop(self) -> None:
        """Close all listeners and clients' connections."""
        await self.ports.stop()
        await self.clients.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.serving is not None:
            await self.serving.tails.close()

    @property
    def adoptable(self) -> AdoptableRecords | None:
        """The records that the write path need not upload; None if it uploads all."""
        return self.produce.splicing.adoptable if self.produce is not None else None

    def kafka_is_followed(
        self,
        metadata: FollowedMetadata,
        storage: RemoteWalStorageManager,
        lease: LeaseWatch,
        ask_anew: Callable[[], object],
    ) -> None:
        """Use this metadata to find what logs want of the gateways' objects, while the lease allows deletions.

        `ask_anew` asks Kafka again which topics there are, and who leads them.
        """

        def doubt() -> str:
            return metadata.doubt() if lease.may_delete else "the lease in the bucket is not known to be this cluster's"

        if self.durable is not None:
            self.durable.ask_anew = ask_anew
        if self.produce is not None:
            unpublished = UnpublishedSegments(storage, metadata.store, lambda: self.peers)
            names = KnownNames(metadata.store.find_adopters, unpublished.stored_ms, metadata.read_to_end, doubt)
            self.produce.wanted.arrived(names)
            self.produce.uploads.is_stopped = lambda: lease.lost_because is not None

    @property
    def degraded(self) -> list[str]:
        """What does not work for clients."""
        away = self.clients.unreached
        told = [f"clients here do not reach broker {one}: {why}" for one, why in sorted(away.items())]
        return told + (durable_degraded(self.holding) if self.holding is not None else [])

    @property
    def durable(self) -> "DurableLogs | None":
        """The logs whose answers are held; None if none are."""
        return self.holding.logs if self.holding is not None else None


def client_address(settings: GatewaySettings, broker_id: int) -> Address:
    """Return the address at which clients connect for that broker."""
    return Address(settings.listen_host, settings.port_base + broker_id)


def build_gateway(
    configuration: Configuration,
    leader: LeaderContext,
    follower: FollowerContext,
    store: BlobStorage,
    clocks: Clocks,
    peers: Mapping[int, Address],
) -> ClientGateway:
    """Build the gateway. `peers` are the known agents, at least of all brokers that are reached here.

    `leader` and `follower` are those of replication; `store` may be away.
    """
    broker, settings = configuration.broker, configuration.settings.gateway
    hello, registry = follower.hello, follower.metrics.registry
    traffic = ClientTraffic(broker.rack or "")
    produce, consumers, capabilities = None, None, PeerCapabilities.CLIENTS
    if configuration.settings.gateway_produce.enable:
        capabilities |= PeerCapabilities.ROUTED_PRODUCE
        if configuration.settings.gateway_produce.adopt_enable:
            capabilities |= PeerCapabilities.ADOPTED_RECORDS
    if settings.fetch_links_enable:
        capabilities |= PeerCapabilities.LINKED_FETCH | hello.capabilities & _OF_LINKS
    capabilities |= hello.capabilities & PeerCapabilities.PACKED
    if capabilities & MESSAGES:
        produce = build_produce_routing(configuration, hello, store, clocks, ProduceMetrics(registry, traffic))
        produce.routing.decider.is_paused = follower.is_paused
        consumers = _consumers(produce, leader, configuration, traffic)
        produce = _with_channels(produce, leader, follower, is_linked=settings.fetch_links_enable)
    metrics = GatewayMetrics(registry, traffic)
    limits = client_limits(settings)
    handlers = {zone: local_address(broker, name) for zone, name in settings.zone_listeners.items()}
    tls = gateway_tls(configuration.settings.tls, settings)
    serving = None
    if settings.fetch_serve_enable and consumers is not None and produce is not None and produce.routing.links:
        serving = build_serving(configuration, leader, consumers, produce.routing.links, peers, metrics)
    context = GatewayContext(
        traffic.zone,
        replace(hello, capabilities=capabilities),
        peers,
        tls.client_context if tls else lambda: None,
        client_tls(settings),
        limits,
        metrics,
        produce.routing if produce is not None else None,
        serving.parts if serving is not None else None,
        settings.fetch_rack_enable,
    )
    splicing = produce.splicing if produce is not None else None
    holding = build_durable(configuration, leader)
    handler = ClientHandler(broker.node_id, handlers, limits, metrics, splicing, consumers, holding)
    ports = build_broker_ports(configuration, limits, metrics, holding)
    proxies = ZoneProxies(broker.node_id)
    clients = ZoneGateway(context)
    return ClientGateway(clients, ports, handler, capabilities, traffic, peers, proxies, produce, holding, serving)


def _with_channels(
    produce: ProduceRouting, leader: LeaderContext, follower: FollowerContext, *, is_linked: bool
) -> ProduceRouting:
    """Add how other agents are spoken to, and how links in consumers' answers are read.

    Stage times are replication's, so consumers get separate ones that are not shown.
    """
    routing = replace(produce.routing, channel=follower.channel)
    if is_linked:
        defects = cache(lambda one: LinkDefects(follower.metrics, follower.clock, leader=one))
        untold = StageTimes(CollectorRegistry())
        reading = replace(follower, stage_times=untold, budget=produce.routing.answers_budget)
        routing = replace(routing, links=LinkReading(reading, defects))
    return replace(produce, routing=routing, splicing=replace(produce.splicing, channel=leader.channel))


def _consumers(
    produce: ProduceRouting, leader: LeaderContext, configuration: Configuration, traffic: ClientTraffic
) -> ConsumerContext:
    settings, untold = configuration.settings, StageTimes(CollectorRegistry())
    metrics = ConsumeMetrics(leader.metrics.registry, traffic)
    giving = replace(leader, stage_times=untold, budget=produce.splicing.answers_budget)
    read_bytes = configuration.prices.get_break_even_bytes(configuration.store_prices)
    costs = ReadCosts(read_bytes, settings.log_manager.combiner_task_interval_s)
    return ConsumerContext(giving, metrics, costs)
