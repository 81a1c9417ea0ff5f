"""Asks agents of other brokers whether logs that are led there are stored, as `gateway.durable.log_question` has it.

One connection for each agent, made when something is asked first, and anew when something is asked after it ended.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from gateway.durable.log_question import LogUpTo, decode_answer, encode_question
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import Address, connect_framed, exchange_hellos
from replication.wire.peer_protocol import Hello, MessageKind, PeerCapabilities, PeerRefusedError

Connect = Callable[[], Awaitable[FramedConnection]]
_MAX_FRAME_BYTES = 1024


class NothingHeldError(Exception):
    """That agent holds no answers: it is older, or its `remote.wal.gateway.durable.listener` is not set."""


@dataclass(frozen=True, slots=True)
class AskingContext:
    """Who asks, and whom."""

    hello: Hello
    """With STORED_LOGS alone."""
    peers: Mapping[int, Address]
    tls: Callable[[], ssl.SSLContext | None]
    connect_timeout_s: float = 5.0


class LogAsking:
    """Of one agent. Use it in the event loop; `close` it."""

    def __init__(self, context: AskingContext) -> None:
        self._context = context
        self._agents: dict[int, _Agent] = {}

    async def are_stored(self, broker_id: int, logs: Sequence[LogUpTo]) -> bool:
        """Whether that broker's agent says so; False: ask anew who leads. The caller bounds the time.

        Raises NothingHeldError, PeerRefusedError, MalformedFrameError, OSError, ssl.SSLError.
        """
        if broker_id not in self._agents:
            self._agents[broker_id] = _Agent(lambda: self._connect(broker_id))
        return await self._agents[broker_id].ask(logs)

    async def _connect(self, broker_id: int) -> FramedConnection:
        context = self._context
        if broker_id not in context.peers:
            raise PeerRefusedError(f"broker {broker_id}'s agent is not known")
        connection = FramedConnection(_MAX_FRAME_BYTES)
        try:
            await connect_framed(context.peers[broker_id], connection, context.tls(), context.connect_timeout_s)
            if PeerCapabilities.STORED_LOGS not in await exchange_hellos(connection, context.hello, broker_id):
                raise NothingHeldError(f"broker {broker_id}'s agent tells nothing of durable logs")
        except BaseException:
            connection.abort()
            raise
        return connection

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(one.close() for one in self._agents.values()))


class _Agent:
    """The connection to one, and what was asked there."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[bool]] = {}
        self._channel: asyncio.Future[PeerChannel] | None = None
        self._running: asyncio.Task[None] | None = None

    async def ask(self, logs: Sequence[LogUpTo]) -> bool:
        if self._channel is None:
            loop = asyncio.get_running_loop()
            self._channel = loop.create_future()
            self._running = loop.create_task(self._run(self._channel))
        channel = await asyncio.shield(self._channel)
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            channel.send(MessageKind.STORED_REQUEST, encode_question(number, logs))
            return bool(await answer)
        finally:
            del self._asked[number]

    async def _run(self, connected: asyncio.Future[PeerChannel]) -> None:
        error: Exception = ConnectionResetError("the agent closed the connection")
        connection: FramedConnection | None = None
        try:
            connection = await self._connect()
            channel = PeerChannel(connection)
            connected.set_result(channel)
            while (message := await channel.receive()) is not None:
                self._came(*message)
        except Exception as defect:  # whoever asked is told
            error = defect
        finally:
            self._channel = None
            if connection is not None:
                connection.close()
            if not connected.done():
                connected.set_exception(error)
                connected.exception()  # perhaps nobody waits any more
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(error)

    def _came(self, kind: MessageKind, body: memoryview) -> None:
        """Raises MalformedFrameError. Nobody waits for what comes too late."""
        if kind is not MessageKind.STORED:
            raise MalformedFrameError(0, f"{kind.name} from an agent that was asked for logs")
        number, are_stored = decode_answer(body)
        answer = self._asked.get(number)
        if answer is not None and not answer.done():
            answer.set_result(are_stored)

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
