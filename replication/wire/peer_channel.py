"""Exchanges messages between agents over one connection, and compresses the small ones.

Requests and linked responses repeat nearly the same content: client ids, topic ids, partitions. So small messages go
through one DEFLATE stream per direction (RFC 1951), flushed after each message without the constant end of a sync
flush, as RFC 7692 does for WebSocket. A message's kind says whether it is packed. Large messages hold record bytes that
producers have already compressed, and are never packed.

Unpacking is bounded: a packed message that grows beyond `MAX_UNPACKED_BYTES` is malformed.

`NumberedQuestions` asks another agent over one such connection; answers may come in any order. The connection is made
for the first question, and again for the next question after it ended. When it ends, every waiting caller gets an
error.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Generic, TypeVar

from kafka_log.crc32c import Buffer
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_protocol import MessageKind

MESSAGE_KIND_BYTES = 1
MAX_PACKED_PAYLOAD_BYTES = 8 * 1024
"""Payloads up to this size are packed."""
MAX_UNPACKED_BYTES = 64 * 1024
_MIN_PACKED_PAYLOAD_BYTES = 16
_PACKED = 0x80
_SYNC_FLUSH_END = b"\x00\x00\xff\xff"
_RAW_DEFLATE = -15
_FASTEST = 1
_KINDS = tuple(MessageKind)
_PLAIN_KINDS = tuple(bytes((kind,)) for kind in MessageKind)
_PACKED_KINDS = tuple(bytes((kind | _PACKED,)) for kind in MessageKind)


class PeerChannel:
    """Sends and receives messages after the hellos."""

    def __init__(self, connection: FramedConnection) -> None:
        self._connection = connection
        self._packer = zlib.compressobj(_FASTEST, zlib.DEFLATED, _RAW_DEFLATE)
        self._unpacker = zlib.decompressobj(_RAW_DEFLATE)

    def send(self, kind: MessageKind, *body: Buffer) -> None:
        """Send one message. Large buffers must not change until they are sent. Raises ConnectionError."""
        size = sum(map(len, body))
        if not _MIN_PACKED_PAYLOAD_BYTES <= size <= MAX_PACKED_PAYLOAD_BYTES:
            self._connection.write_frame(_PLAIN_KINDS[kind], *body)
            return
        packed = self._packer.compress(b"".join(body)) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        self._connection.write_frame(_PACKED_KINDS[kind], memoryview(packed)[: -len(_SYNC_FLUSH_END)])

    async def receive(self) -> tuple[MessageKind, memoryview] | None:
        """Return the next message; None at the end. Raises MalformedFrameError."""
        payload = await self._connection.read_frame()
        if payload is None:
            return None
        number = payload[0] & ~_PACKED
        if number >= len(_KINDS):
            raise MalformedFrameError(0, f"unknown kind of message {number}")
        body = memoryview(payload)[1:]
        return _KINDS[number], self._unpacked(body) if payload[0] & _PACKED else body

    def _unpacked(self, packed: memoryview) -> memoryview:
        try:
            body = self._unpacker.decompress(b"".join((packed, _SYNC_FLUSH_END)), MAX_UNPACKED_BYTES)
        except zlib.error as error:
            raise MalformedFrameError(1, f"a packed message cannot be unpacked: {error}") from error
        if self._unpacker.unconsumed_tail or self._unpacker.eof:
            raise MalformedFrameError(1, f"a packed message exceeds {MAX_UNPACKED_BYTES} bytes, or ends its stream")
        return memoryview(body)


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
