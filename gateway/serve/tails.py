"""Follows brokers of other zones for the consumers here: one connection to the agent beside each broker.

What the agent sends is hydrated like any consumer's answer, so each range is read once for the whole zone. `LogTail`
decides what is asked. While nobody wants anything of a broker, there is no connection.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from gateway.metrics import PassedBytes
from gateway.serve.log_tail import HeldRecords, LogTail
from gateway.serve.serving import ReadLog
from gateway.serve.visible_log import VisibleLog
from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicIdPartition
from plugin.errors import defect_site
from replication.follower.follower_context import FollowerContext
from replication.follower.hydrated_responses import HydratedResponses
from replication.wire.framed_connection import FramedConnection, run_until_one_ends
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import Address, connect_framed, exchange_hellos
from replication.wire.peer_protocol import MessageKind, PeerCapabilities, PeerRefusedError

log = structlog.get_logger(__name__)

_RETRY_S: Final = 2.0
_NOT_SERVED_S: Final = 60.0
"""How long an agent that does not serve this is not asked again."""
_RESPONSE_S: Final = 10.0

_Waiters = set[asyncio.Future[None]]


@dataclass(frozen=True, slots=True)
class TailContext:
    """What the tails of all brokers share."""

    reading: FollowerContext
    """Its hello asks for VISIBLE."""
    peers: Mapping[int, Address]
    crossed: Callable[[int], tuple[Callable[[int], object], Callable[[int], object]]]
    """Counters of bytes from and to the agent beside this broker."""
    max_bytes: int
    """Record bytes that are held of all brokers together."""


class Tails:
    """The tails of all brokers that one agent follows. For the event loop; `close` it."""

    def __init__(self, context: TailContext) -> None:
        self._context = context
        self._held = HeldRecords(context.max_bytes)
        self._tails: dict[int, BrokerTail] = {}

    def of(self, broker_id: int) -> "BrokerTail":
        if broker_id not in self._tails:
            self._tails[broker_id] = BrokerTail(self._context, broker_id, self._held)
        return self._tails[broker_id]

    def held_bytes(self) -> int:
        """Return how many record bytes all tails hold."""
        return self._held.size

    async def close(self) -> None:
        """Stop following all brokers."""
        await asyncio.gather(*(one.close() for one in self._tails.values()))


class BrokerTail:
    """Follows one broker's logs. It implements `FollowedLogs`, and receives the connection's responses."""

    def __init__(self, context: TailContext, broker_id: int, held: HeldRecords) -> None:
        self.logs = LogTail(held)
        self._context = context
        self._broker_id = broker_id
        self._running: asyncio.Task[None] | None = None
        self._not_before_s = float("-inf")
        self._told = ""
        self._answer: asyncio.Future[Buffer] | None = None
        self._waiting: _Waiters = set()
        self._passed: PassedBytes | None = None

    # FollowedLogs.

    def get(self, log: TopicIdPartition, now_s: float) -> VisibleLog | None:
        """Return the log and note that it is needed now; None if it is not followed."""
        return self.logs.get(log, now_s)

    def propose(self, log: TopicIdPartition, epoch: int, read: ReadLog, now_s: float) -> None:
        """Follow a log: its broker has just sent a consumer records in this leader epoch."""
        if now_s < self._not_before_s:
            return
        self.logs.propose(log, epoch, read, now_s)
        if len(self.logs) and (self._running is None or self._running.done()):
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def changed(self, until_s: float) -> None:
        """Wait until the broker's agent has reported something, or until this time."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting.add(waiting)
        timer = loop.call_at(until_s, _wake, waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting.discard(waiting)

    async def _run(self) -> None:
        """Follow until nobody wants anything, or the connection ends.

        Then nothing is held any more: a broker that crashed with its host may write other records in the same epoch.
        """
        error: Exception = ConnectionResetError("its agent closed the connection")
        try:
            await self._follow()
        except (OSError, ssl.SSLError, PeerRefusedError, MalformedFrameError) as failed:
            error = failed
        except Exception as defect:  # consumers are then answered by the broker
            error = defect
            log.error("serving_defect", broker=self._broker_id, defect=defect_site(defect))
        if len(self.logs):
            self._failed(str(error) or type(error).__name__)
            self._not_before_s = asyncio.get_running_loop().time() + _RETRY_S
            self.logs.drop_all()
            self._wake_all()

    def _failed(self, told: str) -> None:
        if self._told != told:
            self._told = told
            log.warning("broker_not_followed", broker=self._broker_id, reason=told, consequence="it answers consumers")

    async def _follow(self) -> None:
        context, loop = self._context, asyncio.get_running_loop()
        reading = context.reading
        address = context.peers.get(self._broker_id)
        if address is None:
            raise PeerRefusedError("its agent is not known")
        agent = FramedConnection(reading.limits.max_response_bytes + 1, budget=reading.budget)
        try:
            await connect_framed(address, agent, reading.tls())
            if PeerCapabilities.VISIBLE not in await exchange_hellos(agent, reading.hello, self._broker_id):
                self._not_before_s = loop.time() + _NOT_SERVED_S
                self.logs.drop_all()
                return
            self._passed = PassedBytes(agent, *context.crossed(self._broker_id))
            responses = HydratedResponses(
                reading,
                reading.channel(agent, self._broker_id),
                self,
                self._broker_id,
                self,
                is_announced=False,
            )
            with responses.watch_breakers():
                await run_until_one_ends(self._ask(agent, responses), responses.receive(), responses.relay())
        finally:
            self._answer = None
            agent.close()

    async def _ask(self, agent: FramedConnection, responses: HydratedResponses) -> None:
        loop = asyncio.get_running_loop()
        channel: PeerChannel = responses.channel
        while (question := self.logs.ask(loop.time())) is not None:
            self._answer = loop.create_future()
            responses.tell_links()
            channel.send(MessageKind.KAFKA, question)
            await channel.drain()
            async with asyncio.timeout(_RESPONSE_S):
                answer = await self._answer
            self.logs.answered(answer, loop.time())
            self._told = ""
            self._wake_all()

    def _wake_all(self) -> None:
        for waiting in self._waiting:
            _wake(waiting)

    # FrameSink and ResponseTaker.

    def write_frame(self, *buffers: Buffer) -> None:
        """Take a response of the broker's agent."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(buffers[0] if len(buffers) == 1 else b"".join(buffers))

    async def drain(self) -> None:
        """Return at once: taking a response never waits."""

    def passed(self) -> None:
        if self._passed is not None:
            self._passed.update()

    def message_came(self, kind: MessageKind, _body: Buffer) -> None:
        """Refuse any message that is no response. Raises MalformedFrameError."""
        raise MalformedFrameError(0, f"{kind.name} from an agent that says what is visible")

    async def close(self) -> None:
        """Close the connection and follow no log."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
