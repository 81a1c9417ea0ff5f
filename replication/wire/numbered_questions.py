"""Asks another agent numbered questions over one connection; answers may come in any order.

The connection is made for the first question, and again for the next question after it ended. When it ends, every
waiting caller gets an error.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Generic, TypeVar

from kafka_log.crc32c import Buffer
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import MessageKind

Answer = TypeVar("Answer")
Connect = Callable[[], Awaitable[FramedConnection]]
"""Dials and exchanges hellos. Raises OSError, ssl.SSLError, PeerRefusedError."""


class NumberedQuestions(Generic[Answer]):
    """Questions to one agent. Use it in the event loop; `close` it."""

    def __init__(
        self, connect: Connect, read: Callable[[MessageKind, memoryview], tuple[int, Answer | Exception]]
    ) -> None:
        """`read` returns the number of the question that a message answers, and the answer or an exception to raise.

        It raises MalformedFrameError if the message is no answer, which ends the connection.
        """
        self._connect = connect
        self._read = read
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._channel: asyncio.Future[PeerChannel] | None = None
        self._running: asyncio.Task[None] | None = None

    async def ask(self, kind: MessageKind, body: Callable[[int], Buffer]) -> Answer:
        """Send a message with a new number and return the answer. The caller bounds the time.

        `body` makes the message for its number. Raises the exception that was answered, what `connect` raises,
        ConnectionError, MalformedFrameError.
        """
        channel = await self._connected()
        number = next(self._numbers)
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            channel.send(kind, body(number))
            return await answer
        finally:
            del self._asked[number]

    async def _connected(self) -> PeerChannel:
        """Return the connection. Concurrent callers share one attempt, which continues if one of them gives up."""
        if self._channel is None:
            loop = asyncio.get_running_loop()
            self._channel = loop.create_future()
            self._running = loop.create_task(self._run(self._channel))
        return await asyncio.shield(self._channel)

    async def _run(self, connected: asyncio.Future[PeerChannel]) -> None:
        error: Exception = ConnectionResetError("the other agent closed the connection")
        connection: FramedConnection | None = None
        try:
            connection = await self._connect()
            channel = PeerChannel(connection)
            connected.set_result(channel)
            while (message := await channel.receive()) is not None:
                self._came(*message)
        except Exception as defect:  # waiting callers get it
            error = defect
        finally:
            self._channel = None
            if connection is not None:
                connection.close()
            if not connected.done():
                connected.set_exception(error)
                connected.exception()  # mark as retrieved: perhaps nobody waits any more
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(error)

    def _came(self, kind: MessageKind, body: memoryview) -> None:
        """Hand an answer to its caller, and drop one that comes too late."""
        number, told = self._read(kind, body)
        answer = self._asked.get(number)
        if answer is None or answer.done():
            return
        if isinstance(told, Exception):
            answer.set_exception(told)
        else:
            answer.set_result(told)

    async def close(self) -> None:
        """Close the connection; waiting callers get an error."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
