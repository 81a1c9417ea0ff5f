"""Asks agents of other brokers whether logs that are led there are stored, by `gateway.durable.log_question`."""

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.durable.log_question import LogUpTo, decode_answer, encode_question
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_channel import NumberedQuestions
from replication.wire.peer_connection import Address, connect_framed, exchange_hellos
from replication.wire.peer_protocol import Hello, MessageKind, PeerCapabilities, PeerRefusedError

_MAX_FRAME_BYTES = 1024


class NothingHeldError(Exception):
    """The asked agent holds no answers: it is older, or its `remote.wal.gateway.durable.listener` is not set."""


@dataclass(frozen=True, slots=True)
class AskingContext:
    """The agent that asks, and the agents it asks."""

    hello: Hello
    """It asks for STORED_LOGS alone."""
    peers: Mapping[int, Address]
    tls: Callable[[], ssl.SSLContext | None]
    connect_timeout_s: float = 5.0


class LogAsking:
    """Asks other agents, on one connection to each. Use it in the event loop; `close` it."""

    def __init__(self, context: AskingContext) -> None:
        self._context = context
        self._agents: dict[int, NumberedQuestions[bool]] = {}

    async def are_stored(self, broker_id: int, logs: Sequence[LogUpTo]) -> bool:
        """Ask that broker's agent whether these logs are stored; False: look again who leads them.

        The caller bounds the time.

        Raises NothingHeldError, PeerRefusedError, MalformedFrameError, OSError, ssl.SSLError.
        """
        if broker_id not in self._agents:
            self._agents[broker_id] = NumberedQuestions(lambda: self._connect(broker_id), _read)
        asked = self._agents[broker_id]
        return await asked.ask(MessageKind.STORED_REQUEST, lambda number: encode_question(number, logs))

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


def _read(kind: MessageKind, body: memoryview) -> tuple[int, bool]:
    if kind is not MessageKind.STORED:
        raise MalformedFrameError(0, f"{kind.name} from an agent that was asked for logs")
    return decode_answer(body)
