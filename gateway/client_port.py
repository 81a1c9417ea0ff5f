"""Addresses for clients of the broker beside this agent: one port each.

`PassingPort` passes bytes unread: what the broker sends to itself, and clients of a standby. `FramePort` has two uses:

- For clients of the broker's own zone when it leads durable topics: their answers are held here. The broker's listener
  for them is bound to loopback and advertises this port, so every client of the broker is led by an agent: those of
  other zones by their gateways, and these by the broker's own.
- As one address for the clients of all zones: each is connected to the broker's listener for its zone. That listener
  names all brokers as clients of the zone reach them. So no answer must be rewritten, and only the client id in the
  first request's header is read. Then frames pass unchanged, until the client continues at those brokers.
"""

import asyncio
import socket
import ssl
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

import structlog

from gateway.broker_pipe import BrokerPipe, HoldingContext
from gateway.client_listeners import ClientAccess, ClientListeners
from gateway.client_zone import ZoneRules
from gateway.metrics import BOOTSTRAP_SIDE, OWN_SIDE
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
_FLUSH_S: Final = 10.0
"""How long a peer that does not read keeps a closed connection's descriptor (guessed)."""
_READ_S: Final = 30.0
"""How long a peer may leave unread what waits for it, as in `FramedConnection` (guessed)."""


class ClientPort(ClientListeners):
    """Listens for clients of one broker at one address, from `open` until `stop`."""

    def __init__(self, access: ClientAccess) -> None:
        super().__init__(self._connect, access)
        self._unreached = News()

    async def open(self, listener: Listener) -> None:
        """Start to listen. Raises OSError naming the address or file, ssl.SSLError."""
        await self.start({_PORT: listener})

    @property
    def address(self) -> Address:
        return self.addresses[_PORT]

    @abstractmethod
    async def _connect(self, _number: int, accepted: socket.socket, address: str) -> None:
        """Serve a connection until it is over."""

    def _not_reached(self, broker: Address, error: OSError) -> None:
        """Count that the broker was not reached, and log it when it is new."""
        self.refuse("broker_unreachable")
        told = str(error) or type(error).__name__
        if self._unreached.is_new(told):
            log.warning("client_port_does_not_reach_broker", broker=str(broker), error=told)


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
        """Send what `source` receives, until it ends. Then send no more: the other direction may still go on.

        Raises OSError, also if the peer does not read.
        """
        assert self._writer is not None  # noqa: S101
        while chunk := await source.reader.read(_CHUNK_BYTES):
            self._writer.write(chunk)
            async with asyncio.timeout(_READ_S):
                await self._writer.drain()
        if not self._writer.is_closing() and self._writer.can_write_eof():
            self._writer.write_eof()
        else:  # TLS ends both directions at once
            self.close()

    def close(self) -> None:
        """Close the connection when its data is sent, within `_FLUSH_S`. Idempotent."""
        if self._writer is not None:
            transport = self._writer.transport
            unsent_bytes = transport.get_write_buffer_size()  # asyncio's TLS tells before
            transport.close()
            if unsent_bytes:
                asyncio.get_running_loop().call_later(_FLUSH_S, transport.abort)


class PassingPort(ClientPort):
    """Connects each client to a broker, and relays all bytes unchanged.

    The end of what a client sends is passed on. A slow reader slows down whoever sends. The broker closes idle
    connections, which ends both directions.
    """

    def __init__(self, broker: Address, access: ClientAccess) -> None:
        super().__init__(access)
        self._broker = broker

    async def _connect(self, _number: int, accepted: socket.socket, _address: str) -> None:
        client, broker = _Stream(), _Stream()
        try:
            await self.shake_hands(accepted, client)
            try:
                await connect(lambda: broker, self._broker.host, self._broker.port, self._timeout_s)
            except OSError as error:
                self._not_reached(self._broker, error)
                return
            self._unreached.is_over()
            with suppress(OSError):  # that is how connections end
                await asyncio.gather(self._answer(client, broker), broker.pass_on(client))
        finally:
            client.close()
            broker.close()

    @staticmethod
    async def _answer(client: _Stream, broker: _Stream) -> None:
        await client.pass_on(broker)
        client.close()  # no answer can come any more, whether or not the client ends what it sends


@dataclass(frozen=True, slots=True)
class BrokerListener:
    """A listener of the broker, which clients of one zone are led to."""

    zone: str
    where: Address
    tls: ssl.SSLContext | None = None


class FramePort(ClientPort):
    """Gives each client its own connection to the broker, and reads the frames between them."""

    def __init__(
        self,
        broker_id: int,
        listeners: Mapping[str, BrokerListener],
        budgets: tuple[MemoryBudget, MemoryBudget],
        access: ClientAccess,
        *,
        rules: ZoneRules | None = None,
        holding: HoldingContext | None = None,
    ) -> None:
        """`listeners` are by zone: for all zones of `rules`, or one listener for all clients.

        `budgets` are for requests and for answers. Without `holding`, answers pass at once.
        """
        super().__init__(access)
        self._broker_id, self._by_zone, self._rules, self._holding = broker_id, listeners, rules, holding
        self._requests_budget, self._responses_budget = budgets
        self._connections = partial(access.metrics.connections.labels, OWN_SIDE if rules is None else BOOTSTRAP_SIDE)

    async def _choose(self, client: FramedConnection, address: str) -> BrokerListener | None:
        """Return where to lead a client; None if that needs a request which did not come in time, or it left."""
        if self._rules is None:
            return next(iter(self._by_zone.values()))
        try:
            async with asyncio.timeout(self._timeout_s):
                if not await client.frame_is_there():
                    return None
        except TimeoutError:
            self.refuse("said_nothing")
            return None
        try:
            client_id = parse_request_header(client.next_frame).client_id
        except MalformedFrameError:
            client_id = ""
        return self._by_zone[self._rules.zone_of(client_id, address)]

    async def _connect(self, _number: int, accepted: socket.socket, address: str) -> None:
        client = FramedConnection(DEFAULT_MAX_FRAME_BYTES, budget=self._requests_budget.share_of(holder_at(address)))
        broker = FramedConnection(RESPONSE_FACTOR * DEFAULT_MAX_FRAME_BYTES, budget=self._responses_budget)
        try:
            await self.shake_hands(accepted, client)
            listener = await self._choose(client, address)
            if listener is None:
                return
            try:
                await connect_framed(listener.where, broker, listener.tls, self._timeout_s)
            except OSError as error:
                self._not_reached(listener.where, error)
                return
            self._unreached.is_over()
            with self._connections(listener.zone, str(self._broker_id)).track_inprogress():
                await BrokerPipe(PlainFrames(client), broker, holding=self._holding).run()
        except MalformedFrameError as error:
            self.refuse("answer_unknown")
            log.warning("answer_unknown", error=str(error), consequence="the client's connection is closed")
        finally:
            client.close()
            broker.close()
