"""Tells other agents when logs that are led here are stored, by the messages of `gateway.durable.log_question`.

A question is answered once its logs are stored, as soon as one of them is not led here any more, and after `ANSWERED_S`
at the latest. If they are not stored then, the asker looks again who leads them.
"""

import asyncio

from gateway.durable.durable_logs import DurableLogs
from gateway.durable.log_question import LogUpTo, StoredAnswer, decode_question, encode_answer
from gateway.durable.log_waits import stored_here
from replication.wire.framed_connection import FramedConnection, run_until_one_ends, until_idle
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import Hello, MessageKind, PeerCapabilities

ANSWERED_S = 5.0
MAX_ASKED = 1000
"""Questions of one agent at a time."""


class LogDoor:
    """Serves connections that the peer listener got from agents that ask for logs."""

    def __init__(self, logs: DurableLogs, idle_timeout_s: float, answered_s: float = ANSWERED_S) -> None:
        self._logs = logs
        self._idle_timeout_s = idle_timeout_s
        self._answered_s = answered_s

    async def serve(self, peer: FramedConnection, _hello: Hello, _capabilities: PeerCapabilities) -> None:
        """Serve one connection, after the hellos, until it ends. Raises MalformedFrameError."""
        answering = _Answering(self._logs, peer, self._answered_s)
        try:
            await run_until_one_ends(answering.run(), until_idle((peer,), self._idle_timeout_s))
        finally:
            await answering.close()


class _Answering:
    """Answers one asker's questions."""

    def __init__(self, logs: DurableLogs, peer: FramedConnection, answered_s: float) -> None:
        self._logs = logs
        self._peer = peer
        self._answered_s = answered_s
        self._channel = PeerChannel(peer)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answer questions until the asker ends the connection. Raises MalformedFrameError."""
        while (message := await self._channel.receive()) is not None:
            kind, body = message
            if kind is not MessageKind.STORED_REQUEST:
                raise MalformedFrameError(0, f"{kind.name} from an agent that asks for logs")
            number, wanted = decode_question(body)
            if len(self._tasks) >= MAX_ASKED:
                self._tell(number, StoredAnswer.NOT_HERE)
                await self._peer.drain()
                continue
            task = asyncio.get_running_loop().create_task(self._answer(number, wanted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int, wanted: list[LogUpTo]) -> None:
        are_stored = False
        try:
            async with asyncio.timeout(self._answered_s):
                are_stored = await stored_here(self._logs, wanted)
        except TimeoutError:
            pass
        self._tell(number, StoredAnswer.STORED if are_stored else StoredAnswer.NOT_HERE)

    def _tell(self, number: int, answer: StoredAnswer) -> None:
        if self._peer.is_writable:  # else nobody waits any more
            self._channel.send(MessageKind.STORED, encode_answer(number, answer))

    async def close(self) -> None:
        """Stop all waiting: the connection ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
