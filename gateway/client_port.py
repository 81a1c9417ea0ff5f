"""Addresses for clients of the broker beside this agent: one port each.

- `PassingPort` passes bytes unread: what the broker sends to itself, and clients of a standby.
- `OwnZonePort` is for clients of the broker's own zone when it leads durable topics: their answers are held here. The
  broker's listener for them is bound to loopback and advertises this port, so every client of the broker is led by an
  agent: those of other zones by their gateways, and these by the broker's own.
- `BootstrapPort` is one address for the clients of all zones: each is connected to the broker's listener for its zone.
  That listener names all brokers as clients of the zone reach them. So no answer must be rewritten, and only the client
  id in the first request's header is read. Then frames pass unchanged, until the client continues at those brokers.
"""

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, cast

import structlog

from gateway.broker_pipe import BrokerPipe, HoldingContext
from gateway.client_handler import ClientLimits
from gateway.client_listeners import ClientListeners
from gateway.client_zone import ZoneRules
from gateway.metrics import BOOTSTRAP_SIDE, OWN_SIDE, GatewayMetrics
from plugin.clients.dialling import connect
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, RESPONSE_FACTOR, FramedConnection
from replication.wire.kafka_frame import MalformedFrameError, parse_request_header
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_channel import PlainFrames
from replication.wire.peer_connection import Address, Listener, connect_framed
from replication.wire.peer_listener import News, holder_at

log = structlog.get_logger(__name__)

_PORT = 0
_CHUNK_BYTES: Final = 32 * 1024


class ClientPort(ABC):
    """Listens for clients at one address from `start` until `stop`."""

    def __init__(
        self, client_tls: Callable[[], ssl.SSLContext | None], limits: ClientLimits, metrics: GatewayMetrics
    ) -> None:
        self._clients = ClientListeners(self._serve, client_tls, limits, metrics)
        self._timeout_s = limits.connect_timeout_s
        """For connecting to the broker."""
        self._unreached = News()

    async def start(self, listener: Listener) -> None:
        """Start to listen. Raises OSError naming the address or file, ssl.SSLError."""
        await self._clients.start({_PORT: listener})

    @property
    def address(self) -> Address:
        return self._clients.addresses[_PORT]

    @property
    def socket_count(self) -> int:
        """On how many sockets it listens, after the start."""
        return self._clients.socket_count

    @abstractmethod
    async def _serve(self, _number: int, accepted: socket.socket, address: str) -> None:
        """Serve a connection until it is over."""

    def _not_reached(self, broker: Address, error: OSError) -> None:
        """Count that the broker was not reached, and log it when it is new."""
        self._clients.refuse("broker_unreachable")
        told = str(error) or type(error).__name__
        if self._unreached.is_new(told):
            log.warning("client_port_does_not_reach_broker", broker=str(broker), error=told)

    async def stop(self) -> None:
        """Accept no more clients, and close all connections."""
        await self._clients.stop()


class _Stream(asyncio.StreamReaderProtocol):
    """One of two connections whose bytes pass unread."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(_CHUNK_BYTES)
        super().__init__(self.reader)
        self._writer: asyncio.StreamWriter | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to use a new connection. The event loop calls this."""
        super().connection_made(transport)
        stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(_CHUNK_BYTES)
        self._writer = asyncio.StreamWriter(stream, self, self.reader, asyncio.get_running_loop())

    async def pass_on(self, source: "_Stream") -> None:
        """Send what `source` receives, until it ends. Then send no more: the other direction may still go on."""
        assert self._writer is not None  # noqa: S101
        while chunk := await source.reader.read(_CHUNK_BYTES):
            self._writer.write(chunk)
            await self._writer.drain()
        if not self._writer.is_closing() and self._writer.can_write_eof():
            self._writer.write_eof()
        else:  # TLS ends both directions at once
            self._writer.close()

    def close(self) -> None:
        """Close the connection when its data is sent. Idempotent."""
        if self._writer is not None:
            self._writer.close()


class PassingPort(ClientPort):
    """Connects each client to a broker, and relays all bytes unchanged.

    The end of one direction is passed on. A slow reader slows down whoever sends. Idle connections are closed by the
    broker.
    """

    def __init__(
        self,
        broker: Address,
        client_tls: Callable[[], ssl.SSLContext | None],
        limits: ClientLimits,
        metrics: GatewayMetrics,
    ) -> None:
        super().__init__(client_tls, limits, metrics)
        self._broker = broker

    async def _serve(self, _number: int, accepted: socket.socket, _address: str) -> None:
        client, broker = _Stream(), _Stream()
        try:
            await self._clients.shake_hands(accepted, client)
            try:
                await connect(lambda: broker, self._broker.host, self._broker.port, self._timeout_s)
            except OSError as error:
                self._not_reached(self._broker, error)
                return
            self._unreached.is_over()
            with suppress(OSError):  # that is how connections end
                await asyncio.gather(client.pass_on(broker), broker.pass_on(client))
        finally:
            client.close()
            broker.close()


@dataclass(frozen=True, slots=True)
class BrokerListener:
    """A listener of the broker, which clients of one zone are led to."""

    zone: str
    where: Address
    tls: ssl.SSLContext | None = None


class _FramePort(ClientPort):
    """Gives each client its own connection to the broker, and reads the frames between them."""

    def __init__(
        self,
        side: str,
        broker_id: int,
        budgets: tuple[MemoryBudget, MemoryBudget],
        client_tls: Callable[[], ssl.SSLContext | None],
        limits: ClientLimits,
        metrics: GatewayMetrics,
        holding: HoldingContext | None = None,
    ) -> None:
        """`budgets` are for requests and for answers. Without `holding`, answers pass at once."""
        super().__init__(client_tls, limits, metrics)
        self._requests_budget, self._responses_budget = budgets
        self._side, self._broker_id, self._connections = side, str(broker_id), metrics.connections
        self._holding = holding

    @abstractmethod
    async def _choose(self, client: FramedConnection, address: str) -> BrokerListener | None:
        """Return where to lead a client; None: nowhere."""

    async def _serve(self, _number: int, accepted: socket.socket, address: str) -> None:
        client = FramedConnection(DEFAULT_MAX_FRAME_BYTES, budget=self._requests_budget.share_of(holder_at(address)))
        broker = FramedConnection(RESPONSE_FACTOR * DEFAULT_MAX_FRAME_BYTES, budget=self._responses_budget)
        try:
            await self._clients.shake_hands(accepted, client)
            listener = await self._choose(client, address)
            if listener is None:
                return
            try:
                await connect_framed(listener.where, broker, listener.tls, self._timeout_s)
            except OSError as error:
                self._not_reached(listener.where, error)
                return
            self._unreached.is_over()
            with self._connections.labels(self._side, listener.zone, self._broker_id).track_inprogress():
                await BrokerPipe(PlainFrames(client), broker, holding=self._holding).run()
        except MalformedFrameError as error:
            self._clients.refuse("answer_unknown")
            log.warning("answer_unknown", error=str(error), consequence="the client's connection is closed")
        finally:
            client.close()
            broker.close()


class OwnZonePort(_FramePort):
    """Gives each client of the broker's own zone a connection to the broker, and holds responses on it."""

    def __init__(
        self,
        broker_id: int,
        listener: BrokerListener,
        holding: HoldingContext,
        client_tls: Callable[[], ssl.SSLContext | None],
        limits: ClientLimits,
        metrics: GatewayMetrics,
    ) -> None:
        budgets = holding.requests_budget, holding.responses_budget
        super().__init__(OWN_SIDE, broker_id, budgets, client_tls, limits, metrics, holding)
        self._listener = listener

    async def _choose(self, client: FramedConnection, address: str) -> BrokerListener:
        return self._listener


class BootstrapPort(_FramePort):
    """Leads clients of all zones."""

    def __init__(
        self,
        broker_id: int,
        rules: ZoneRules,
        listeners: Mapping[str, BrokerListener],
        client_tls: Callable[[], ssl.SSLContext | None],
        limits: ClientLimits,
        metrics: GatewayMetrics,
        frames_bytes: int,
    ) -> None:
        """`listeners` are by zone, for all zones of `rules.zones`. `frames_bytes` bounds the memory of requests, and
        that of responses."""
        budgets = MemoryBudget(frames_bytes), MemoryBudget(frames_bytes)
        super().__init__(BOOTSTRAP_SIDE, broker_id, budgets, client_tls, limits, metrics)
        self._rules = rules
        self._listeners = listeners

    async def _choose(self, client: FramedConnection, address: str) -> BrokerListener | None:
        """Return the listener for the client's zone; None if no request came in time, or the client left before."""
        try:
            async with asyncio.timeout(self._timeout_s):
                if not await client.frame_is_there():
                    return None
        except TimeoutError:
            self._clients.refuse("said_nothing")
            return None
        try:
            client_id = parse_request_header(client.next_frame).client_id
        except MalformedFrameError:
            client_id = ""
        return self._listeners[self._rules.zone_of(client_id, address)]
