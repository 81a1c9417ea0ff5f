"""Asks every other agent every two seconds whether it is alive and whom it cannot serve, and remembers the answer.

Each agent is asked on a connection of its own (`PeerCapabilities.PRESENCE`), which stays open. So a process that ends
is noticed at once, and one that is frozen or whose host is gone within seconds. An agent that does not know the
question only says hello, which counts as an answer, too.
"""

import asyncio
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import structlog

from kafka_log.crc32c import Buffer
from plugin.errors import in_words
from replication.follower.follower_context import DiallingContext
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_connection import KnownPeers, check_hello, connect_framed, exchange_hellos
from replication.wire.peer_protocol import NO_BROKER_SERVED, Hello, PeerCapabilities, PeerRefusedError

log = structlog.get_logger(__name__)

_INTERVAL_S = 2.0
_RESPONSE_S = 3.0
"""With the five seconds after which the status page is loaded again, a frozen agent is red within ten."""
_LATE = "no answer within {:g} s"
STALE_S = 10.0
"""An answer that is older says nothing about now."""
_NOT_THERE = (OSError, ssl.SSLError, PeerRefusedError, MalformedFrameError)  # TimeoutError is an OSError


@dataclass(frozen=True, slots=True)
class Presence:
    """Whether another agent lives, as known from its responses."""

    answered_s_ago: float | None = None
    """None: it has never answered since this agent started."""
    failure: str | None = None
    """Why it did not answer last time; None if it did or was not asked yet."""

    @property
    def is_there(self) -> bool:
        """Whether the agent has responded to the latest request."""
        return self.failure is None and self.answered_s_ago is not None and self.answered_s_ago <= STALE_S

    @property
    def may_be_there(self) -> bool:
        """Whether the agent is not known to be away: it has responded, or was not asked yet."""
        return self.is_there or self == NOT_ASKED


NOT_ASKED = Presence()


@dataclass(slots=True)
class _Seen:
    answered_s: float | None = None
    failure: str | None = None
    unserved: tuple[int, ...] = ()
    """As in its last hello."""


class PeerWatch:
    """Asks each other agent every two seconds whether it lives. Runs in the event loop; any thread may call
    `get_presence`."""

    def __init__(
        self, context: DiallingContext, peers: KnownPeers, on_change: Callable[[], object] = lambda: None
    ) -> None:
        """`on_change` is called when an agent responds for the first time, differently than before, or no longer."""
        self._context = context
        self._peers = peers
        self._clock = context.clock
        self._hello = replace(context.hello, capabilities=PeerCapabilities.PRESENCE)
        self._seen: dict[int, _Seen] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._on_change = on_change

    def get_presence(self, broker_id: int) -> Presence:
        """Return whether this broker's agent lives, as known now."""
        seen = self._seen.get(broker_id)
        if seen is None:
            return NOT_ASKED
        ago = None if seen.answered_s is None else max(self._clock() - seen.answered_s, 0.0)
        return Presence(ago, seen.failure)

    def serves(self, agent: int, broker_id: int) -> bool:
        """Whether an agent may live, and has not said that it cannot serve clients of that broker."""
        seen = self._seen.get(agent)
        is_unable = seen is not None and (broker_id in seen.unserved or seen.unserved == NO_BROKER_SERVED)
        return self.get_presence(agent).may_be_there and not is_unable

    @property
    def silent(self) -> dict[int, Presence]:
        """The agents that did not respond to the latest request, by broker id."""
        asked = {one: self.get_presence(one) for one in sorted(self._seen.copy())}
        return {one: found for one, found in asked.items() if not found.is_there and found != NOT_ASKED}

    async def run(self) -> None:
        """Ask all known agents, until cancelled."""
        try:
            while True:
                known = set(self._peers)
                for left in self._asking.keys() - known:
                    self._asking.pop(left).cancel()
                    self._seen.pop(left, None)
                for broker_id in known - self._asking.keys():
                    self._seen[broker_id] = _Seen()
                    self._asking[broker_id] = asyncio.get_running_loop().create_task(self._watch(broker_id))
                await asyncio.sleep(_INTERVAL_S)
                for asking in self._asking.values():
                    if asking.done():
                        asking.result()  # raises a defect, so that everything begins again
        finally:
            asked = list(self._asking.values())
            self._asking.clear()
            for asking in asked:
                asking.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _watch(self, broker_id: int) -> None:
        loop, seen = asyncio.get_running_loop(), self._seen[broker_id]
        while True:
            try:
                connection, began_s = await self._greet(broker_id, seen), loop.time()
                if connection is not None:
                    await self._ask_again(broker_id, seen, connection)
                    if loop.time() - began_s >= _INTERVAL_S:
                        continue  # the connection may have ended, and not the agent
            except _NOT_THERE as error:
                self._failed(broker_id, seen, in_words(error) if str(error) else type(error).__name__)
            await asyncio.sleep(_INTERVAL_S)

    async def _greet(self, broker_id: int, seen: _Seen) -> FramedConnection | None:
        """Ask for the first time. Returns the connection if the agent takes more questions on it. Raises _NOT_THERE."""
        opened = FramedConnection(frame_timeout_s=_RESPONSE_S, budget=self._context.budget)
        address = self._peers.get(broker_id)
        if address is None:
            raise PeerRefusedError("it is not known any more")
        try:
            async with asyncio.timeout(_RESPONSE_S):
                await connect_framed(address, opened, self._context.tls())
                granted = await exchange_hellos(opened, self._hello, broker_id, partial(self._heard, seen))
        except TimeoutError:
            opened.abort()
            raise TimeoutError(_LATE.format(_RESPONSE_S)) from None
        except BaseException:
            opened.abort()
            raise
        if PeerCapabilities.PRESENCE in granted:
            return opened
        opened.close()
        return None

    def _heard(self, seen: _Seen, own: Hello, peer: Hello) -> None:
        self._context.metrics.held.versions.heard(own, peer)
        is_new = seen.answered_s is None or seen.failure is not None or seen.unserved != peer.unserved
        seen.answered_s, seen.failure, seen.unserved = self._clock(), None, peer.unserved
        if is_new:
            self._on_change()

    async def _ask_again(self, broker_id: int, seen: _Seen, connection: FramedConnection) -> None:
        """Ask on this connection until it ends. Raises _NOT_THERE, as for a question without an answer.

        As long as the answer is the same, this takes neither a task nor a look into it.
        """
        loop, question, answer, is_late = asyncio.get_running_loop(), self._hello.encode(), b"", False
        timer: asyncio.TimerHandle

        def ask() -> None:
            nonlocal timer
            timer = loop.call_later(_RESPONSE_S, give_up)
            with suppress(ConnectionError):  # the task notices its end
                connection.write_frame(question)

        def give_up() -> None:
            nonlocal is_late
            is_late = True
            connection.abort()

        def answered(frame: Buffer) -> bool:
            nonlocal timer
            if frame != answer:
                return False
            timer.cancel()
            timer = loop.call_later(_INTERVAL_S, ask)
            seen.answered_s = self._clock()
            return True

        connection.on_lone_frame = answered
        timer = loop.call_later(_INTERVAL_S, ask)
        try:
            while (frame := await connection.read_frame()) is not None:
                self._heard(seen, self._hello, check_hello(connection, self._hello, broker_id, frame))
                answer = bytes(frame)
                answered(answer)
        finally:
            timer.cancel()
            connection.close()
        if is_late:
            raise TimeoutError(_LATE.format(_RESPONSE_S))

    def _failed(self, broker_id: int, seen: _Seen, failure: str) -> None:
        is_new, seen.failure = seen.failure is None, failure
        if is_new:
            log.warning("peer_does_not_answer", broker=broker_id, error=failure)
            self._on_change()
