"""A gateway and the agent beside a broker over real sockets, with a listener of that broker which a test scripts.

client -> ZoneGateway (agent 2, zone az2) -> LeaderProxy, ClientHandler (agent 1) -> broker 1's listener
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from gateway.broker_pipe import ConsumerContext, HoldingContext, RouterReads, SplicingContext
from gateway.client_handler import ClientHandler
from gateway.client_listeners import ClientAccess
from gateway.gateway_pipe import RoutingContext, ServingParts
from gateway.metrics import ClientTraffic, GatewayMetrics, ProduceMetrics
from gateway.produce.route_core import RouteLimits
from gateway.produce.route_decider import RouteCosts, RouteDecider
from gateway.produce.router_channel import RouterChannel
from gateway.produce.splice_core import SpliceLimits
from gateway.router_uploads import RouterUploads, WantedObjects
from gateway.zone_gateway import GatewayContext, ZoneGateway
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.wall_clock import Clocks
from replication.leader.leader_context import LeaderContext, LeaderLimits, PeerHandler
from replication.leader.leader_proxy import LeaderProxy
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_connection import Address
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities
from rlm.write_path.commit.cadence import CommitLimits
from rlm.write_path.metrics import StageTimes
from tests.gateway.routed_rig import WALL_MS, MemoryBlobs
from tests.replication.fake_led import FakeLed

PATIENCE_S = 60
LOOPBACK = Address("127.0.0.1", 0)
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ServeClient = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A broker that says what it hears, until it has heard all."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


def plain_routing() -> RoutingContext:
    """Of a gateway that puts nothing in objects."""
    metrics, breaker = ProduceMetrics(CollectorRegistry()), CircuitBreaker(BreakerLimits())
    decider = RouteDecider(LinkPolicy.ALWAYS, RouteCosts(0, 0), 1.0, breaker)
    channel = RouterChannel(2, 22, CommitLimits(1.0, 1.0, 1 << 20, 4, 0.01, 0.05), decider, 1.0)
    uploads = RouterUploads(channel, MemoryBlobs(), Clocks(time.monotonic, lambda: WALL_MS), metrics, WantedObjects())
    return RoutingContext(RouteLimits(1.0), uploads, decider, metrics)


def plain_splicing() -> SplicingContext:
    """Of an agent beside a broker that reads no objects for producers."""
    reads = RouterReads(MemoryBlobs(), CircuitBreaker(BreakerLimits()))
    return SplicingContext(SpliceLimits(1.0, DEFAULT_MAX_FRAME_BYTES), reads, ProduceMetrics(CollectorRegistry()))


@dataclass
class GatewayRig:
    serve: ServeClient = echo
    """What the broker's listener for zone az2 does with a connection."""
    granted: PeerCapabilities = CAPABILITIES | PeerCapabilities.CLIENTS
    """What broker 1's agent says in its hello."""
    has_handler: bool = True
    zones: tuple[str, ...] = ("az2",)
    """Those that broker 1 has listeners for."""
    limits: tuple[int, int] = (100, 100)
    """Of clients' connections: of all, and of one address."""
    peer_tls: Callable[[], ssl.SSLContext] | None = None
    door_tls: Callable[[], ssl.SSLContext] | None = None
    client_tls: Callable[[], ssl.SSLContext] | None = None
    asked: Hello = field(default_factory=lambda: Hello("cluster", 2, 22, PeerCapabilities.CLIENTS))
    """What the gateway says in its hello."""
    routing: RoutingContext = field(default_factory=plain_routing)
    splicing: SplicingContext = field(default_factory=plain_splicing)
    consumers: ConsumerContext | None = None
    holding: HoldingContext | None = None
    serving: ServingParts | None = None
    handlers: Mapping[PeerCapabilities, PeerHandler] = field(default_factory=dict)
    """Of broker 1's agent, beside that for clients."""
    names_rack: bool = False
    accepted: int = 0
    """By the broker's listener."""

    def __post_init__(self) -> None:
        self.gateway_registry, self.broker_registry = CollectorRegistry(), CollectorRegistry()
        self.traffic = ClientTraffic("az2")
        """At the gateway."""
        self._clients: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._broker = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.listener = Address(*self._broker.sockets[0].getsockname()[:2])
        hello = Hello("cluster", 1, 11, self.granted)
        handler = ClientHandler(
            1,
            dict.fromkeys(self.zones, self.listener),
            ClientAccess(*self.limits, GatewayMetrics(self.broker_registry)),
            self.splicing,
            self.consumers,
            self.holding,
        )
        context = LeaderContext(
            hello,
            LeaderLimits(0.5, 1, 0, gather_max_ms=0),
            self.listener,
            FakeLed(),
            StageTimes(CollectorRegistry()),
            ReplicationMetrics(self.broker_registry),
            clock=asyncio.get_running_loop().time,
            handlers={**self.handlers, PeerCapabilities.CLIENTS: handler} if self.has_handler else {},
        )
        self.agent = LeaderProxy(context)
        await self.agent.start(LOOPBACK, self.door_tls() if self.door_tls else None)
        self.gateway = ZoneGateway(
            GatewayContext(
                ClientAccess(
                    *self.limits,
                    GatewayMetrics(self.gateway_registry, self.traffic),
                    self.client_tls or (lambda: None),
                    connect_timeout_s=2.0,
                ),
                self.asked,
                {1: self.agent.addresses[0]},
                self.peer_tls or (lambda: None),
                self.routing,
                self.serving,
                self.names_rack,
            )
        )
        await self.gateway.start({1: LOOPBACK})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await self.serve(reader, writer)

    async def connect(self, tls: ssl.SSLContext | None = None, name: str | None = None) -> Stream:
        where = self.gateway.addresses[1]
        stream = await asyncio.open_connection(where.host, where.port, ssl=tls, server_hostname=name)
        self._clients.append(stream[1])
        return stream

    async def close_broker(self) -> None:
        self._broker.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - what it looks at is behind sockets
                await asyncio.sleep(0.001)

    def gateway_bytes(self, direction: str) -> float:
        labels = {"side": "gateway", "zone": "az2", "broker": "1", "direction": direction}
        return self.gateway_registry.get_sample_value("remote_wal_gateway_bytes_total", labels) or 0.0

    def broker_bytes(self, direction: str) -> float:
        labels = {"side": "broker", "zone": "az2", "broker": "1", "direction": direction}
        return self.broker_registry.get_sample_value("remote_wal_gateway_bytes_total", labels) or 0.0

    def refused(self, reason: str, side: str = "gateway") -> float:
        registry = self.gateway_registry if side == "gateway" else self.broker_registry
        return registry.get_sample_value("remote_wal_gateway_refused_total", {"side": side, "reason": reason}) or 0.0

    def connections(self, side: str) -> float:
        registry = self.gateway_registry if side == "gateway" else self.broker_registry
        labels = {"side": side, "zone": "az2", "broker": "1"}
        return registry.get_sample_value("remote_wal_gateway_connections", labels) or 0.0

    async def stop(self) -> None:
        for client in self._clients:
            client.close()
        await self.gateway.stop()
        await self.agent.stop()
        self._broker.close()


@asynccontextmanager
async def started(rig: GatewayRig) -> AsyncIterator[GatewayRig]:
    await rig.start()
    try:
        yield rig
    finally:
        await rig.stop()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """All until the end, or until the connection breaks."""
    async with asyncio.timeout(PATIENCE_S):
        read = b""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                read += data
        return read
