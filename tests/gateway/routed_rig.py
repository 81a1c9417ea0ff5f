"""A client's connection through a gateway and the agent beside its broker, over real sockets, frame by frame.

client -> GatewayPipe -> BrokerPipe -> a broker that keeps what it gets, and answers in order

The store is in memory; a test sets what it does.
"""

import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from agent.defects import BackOff, Supervisor
from gateway.broker_pipe import BrokerPipe, RouterReads, SplicingContext
from gateway.client_protocol import ClientSide
from gateway.gateway_pipe import AgentSide, GatewayPipe, RoutingContext
from gateway.metrics import ProduceMetrics
from gateway.produce.route_core import RouteLimits
from gateway.produce.route_decider import RouteCosts, RouteDecider
from gateway.produce.router_channel import RouterChannel
from gateway.produce.splice_core import SpliceLimits
from gateway.router_uploads import KnownNames, RouterUploads, WantedObjects
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.blob_storage import StoredBlob
from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentConflictError, RemoteStorageError
from plugin.wall_clock import Clocks
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker
from replication.wire.framed_connection import FramedConnection
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.peer_protocol import Hello, PeerCapabilities
from replication.wire.request_order import is_answered
from rlm.write_path.commit.cadence import CommitLimits
from rlm.write_path.uploads.adoptable_records import AdoptableRecords

GATEWAY_ID, INCARNATION = 4, 11
MAX_FRAME_BYTES = 1 << 22
PATIENCE_S = 60
UPLOADS = "router uploads"
WALL_MS = 1_790_000_000_000
INTERVAL_S = 0.002


class MemoryBlobs:
    """As `plugin.blob_storage.BlobStorage`, on any thread."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.now_ms = WALL_MS
        """By the store's clock; blobs were written at `WALL_MS`."""
        self.fails: set[str] = set()
        """Of put, get, list, delete."""
        self.corrupts = False
        self.puts = self.gets = 0
        self.may_put, self.may_get = threading.Event(), threading.Event()
        """While one is not set, such calls hang."""
        self.may_put.set()
        self.may_get.set()

    def _check(self, operation: str, name: str) -> None:
        if operation in self.fails:
            raise RemoteStorageError(operation, name, "away")

    async def put_blob(self, name: str, *chunks: bytes | memoryview) -> bytes:
        await asyncio.to_thread(self.may_put.wait, PATIENCE_S)
        self._check("put", name)
        self.puts += 1
        if name in self.blobs:
            raise RemoteSegmentConflictError("put", name, "other bytes are there")
        self.blobs[name] = b"".join(chunks)
        return b"zone"

    async def get_blob(self, blob: StoredBlob, start: int = 0, end: int | None = None) -> bytes:
        await asyncio.to_thread(self.may_get.wait, PATIENCE_S)
        self._check("get", blob.name)
        self.gets += 1
        assert blob.custom_metadata == b"zone"
        if blob.name not in self.blobs:
            raise RemoteResourceNotFoundError("get", blob.name, "gone")
        found = self.blobs[blob.name][start:end]
        return found[:-1] + b"!" if self.corrupts else found

    async def list_blobs(self, directory: str) -> AsyncIterator[list[StoredBlob]]:
        self._check("list", directory)
        yield [
            *(
                StoredBlob(name, len(content), b"zone", WALL_MS)
                for name, content in self.blobs.items()
                if name.startswith(directory + "/")
            ),
            StoredBlob(f"{directory}/written-just-now", 1, b"zone", self.now_ms),
        ]

    async def delete_blob(self, blob: StoredBlob) -> None:
        self._check("delete", blob.name)
        self.blobs.pop(blob.name, None)


NOTHING_IS_NAMED = KnownNames(lambda _source: (), lambda _since_ms: (), lambda: True, str)


@dataclass
class RoutedRig:
    """Set what is to differ, then enter `started`."""

    route_limits: RouteLimits = field(default_factory=lambda: RouteLimits(put_wait_max_s=PATIENCE_S))
    splice_limits: SpliceLimits = field(default_factory=lambda: SpliceLimits(PATIENCE_S, MAX_FRAME_BYTES))
    incarnation: int = INCARNATION
    """That the gateway's hello named."""
    adoptable: AdoptableRecords | None = None
    """With it, both agents adopt."""
    answers: Callable[[bytes], bool] = is_answered
    """Whether the broker answers this frame."""
    frame_timeout_s: float = 30.0
    """Of all connections but the client's."""

    @property
    def capabilities(self) -> PeerCapabilities:
        adopts = PeerCapabilities.ADOPTED_RECORDS if self.adoptable is not None else PeerCapabilities.NONE
        return PeerCapabilities.ROUTED_PRODUCE | adopts

    async def start(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = ProduceMetrics(self.registry)
        self.store, self.budget = MemoryBlobs(), MemoryBudget()
        self.produced: list[bytes] = []
        self.may_read = asyncio.Event()
        """While it is not set, the broker takes nothing, as from a client that it throttles."""
        self.may_read.set()
        self.errors: list[BaseException] = []
        self.relays: set[asyncio.Task[None]] = set()
        self.accepted: list[FramedConnection] = []
        loop = asyncio.get_running_loop()
        breaker = CircuitBreaker(BreakerLimits(1000))
        decider = RouteDecider(LinkPolicy.ALWAYS, RouteCosts(0, 0), INTERVAL_S, breaker)
        limits = CommitLimits(INTERVAL_S, 1.0, 1 << 20, 4, 0.01, 0.05)
        self.channel = RouterChannel(GATEWAY_ID, INCARNATION, limits, decider, slow_s=0.3)
        store = self.store
        self.wall_ms = WALL_MS
        clocks = Clocks(loop.time, lambda: self.wall_ms)
        self.wanted = WantedObjects()
        self.uploads = RouterUploads(self.channel, store, clocks, self.metrics, self.wanted)
        self.parts = Supervisor(self.registry, BackOff(0.0, 0.0))
        self.parts.start(UPLOADS, self.uploads.run)
        self.routing = RoutingContext(self.route_limits, self.uploads, decider, self.metrics, self.budget)
        reads = RouterReads(store, CircuitBreaker(BreakerLimits(1000)))
        self.splicing = SplicingContext(self.splice_limits, reads, self.metrics, adoptable=self.adoptable)
        self.reads_there = CircuitBreaker(BreakerLimits(1000))
        self.broker = await self._listen(self._serve_as_broker)
        self.agent = await self._listen(self._serve_as_agent)
        self.gateway = await self._listen(self._serve_as_gateway)

    async def _listen(self, serve: Callable[[FramedConnection], None]) -> asyncio.Server:
        def accept() -> FramedConnection:
            self.accepted.append(FramedConnection(MAX_FRAME_BYTES, self.frame_timeout_s, on_connected=serve))
            return self.accepted[-1]

        return await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)

    def _serve_as_gateway(self, client: FramedConnection) -> None:
        self.relays.add(asyncio.get_running_loop().create_task(self._route(client)))

    async def _route(self, client: FramedConnection) -> None:
        agent = await connect_framed(address(self.agent), FramedConnection(MAX_FRAME_BYTES, self.frame_timeout_s))
        side = AgentSide(1, agent, self.capabilities, self.reads_there)
        await self._run(GatewayPipe(self.routing, client, side), client, agent)

    def _serve_as_agent(self, gateway: FramedConnection) -> None:
        self.relays.add(asyncio.get_running_loop().create_task(self._splice(gateway)))

    async def _splice(self, gateway: FramedConnection) -> None:
        broker = await connect_framed(address(self.broker), FramedConnection(MAX_FRAME_BYTES, self.frame_timeout_s))
        side = ClientSide("az2", Hello("cluster", GATEWAY_ID, self.incarnation), self.capabilities)
        relay = BrokerPipe(PeerChannel(gateway), broker, splicing=(self.splicing, side))
        await self._run(relay, gateway, broker)

    async def _run(self, relay: GatewayPipe | BrokerPipe, *ends: FramedConnection) -> None:
        try:
            await relay.run()
        except Exception as error:
            self.errors.append(error)
        finally:
            for end in ends:
                end.close()

    def _serve_as_broker(self, connection: FramedConnection) -> None:
        self.relays.add(asyncio.get_running_loop().create_task(self._answer(connection)))

    async def _answer(self, connection: FramedConnection) -> None:
        await self.may_read.wait()
        while (frame := await connection.read_frame()) is not None:
            self.produced.append(bytes(frame))
            if self.answers(bytes(frame)):
                connection.write_frame(struct.pack(">i", struct.unpack(">i", frame[4:8])[0]) + b"answer")
        connection.close()

    async def connect(self) -> FramedConnection:
        return await connect_framed(address(self.gateway), FramedConnection(MAX_FRAME_BYTES))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - what it looks at is behind sockets and threads
                await asyncio.sleep(0.001)

    async def until_all_stand_still(self) -> None:
        """Wait until no byte goes on any more. All ends are on this loop, so that some of its turns tell."""
        before, turns = 0, 0
        async with asyncio.timeout(PATIENCE_S):
            while turns < 100:
                received = sum(one.bytes_received for one in self.accepted)
                before, turns = received, turns + 1 if received == before else 0
                await asyncio.sleep(0.002)

    async def until_restarted(self, part: str) -> None:
        await self.until(lambda: bool(self.registry.get_sample_value("remote_wal_part_failures_total", {"part": part})))

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"remote_wal_gateway_{name}_total", labels) or 0.0

    async def stop(self) -> None:
        self.store.may_put.set()
        self.store.may_get.set()
        for server in (self.gateway, self.agent, self.broker):
            server.close()
        for task in self.relays:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self.relays, return_exceptions=True)
        await self.parts.stop_all(but="")


def address(server: asyncio.Server) -> Address:
    return Address(*server.sockets[0].getsockname()[:2])


async def answered(client: FramedConnection) -> int:
    """The correlation id of the next answer."""
    async with asyncio.timeout(PATIENCE_S):
        frame = await client.read_frame()
    assert frame is not None
    return int.from_bytes(bytes(frame[:4]), "big")


@asynccontextmanager
async def started(rig: RoutedRig | None = None) -> AsyncIterator[RoutedRig]:
    rig = rig or RoutedRig()
    await rig.start()
    try:
        yield rig
    finally:
        await rig.stop()
