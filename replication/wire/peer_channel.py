"""Exchanges messages between agents over one connection, packed if they cross zones (`packed_message`, `Packing`).

Small messages are packed and unpacked at once, large ones by other threads. Messages are sent in the order of `send`:
what comes behind a large one waits until that is packed, and `drain` waits as well. What a message unpacks to is
counted in the connection's memory budget before it is unpacked. A malformed one ends the connection.

`NumberedQuestions` asks another agent over one such connection; answers may come in any order. The connection is made
for the first question, and again for the next question after it ended. When it ends, every waiting caller gets an
error.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Generic, TypeVar

from kafka_log.crc32c import Buffer
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.packed_message import (
    IN_PIECES,
    MAX_STREAMED_BYTES,
    STREAMED,
    PackedMessage,
    PackedTopic,
    Packer,
    Piece,
    TopicRecords,
    Unpacker,
    pack_apart,
)
from replication.wire.packing import Packing
from replication.wire.peer_protocol import MessageKind, PeerCapabilities

MESSAGE_KIND_BYTES = 1
_MIN_PACKED_BYTES = 16
_KINDS = tuple(MessageKind)
_KIND_BYTES = {form: tuple(bytes((kind | form,)) for kind in MessageKind) for form in (0, STREAMED, IN_PIECES)}
_NO_RECORDS: Sequence[TopicRecords] = ()


class PeerChannel:
    """Sends and receives messages between agents, after the hellos. For the event loop."""

    def __init__(
        self,
        connection: FramedConnection,
        packing: Packing | None = None,
        crosses: Callable[[], bool] = lambda: True,
        on_packed: Callable[[Sequence[PackedTopic]], None] = lambda _topics: None,
    ) -> None:
        """Messages are packed with `packing` if both agents agreed on PACKED, while `crosses` returns that bytes cross
        zones.

        `on_packed` is called with the sizes of each packed message's topics.
        """
        self._on_packed = on_packed
        self.connection = connection
        self._packing = packing if PeerCapabilities.PACKED in connection.agreed else None
        self._crosses = crosses
        self._packer = Packer()
        self._unpacker = Unpacker(connection.max_frame_bytes - MESSAGE_KIND_BYTES)
        self._being_packed: asyncio.Future[PackedMessage] | None = None
        self._behind: deque[tuple[MessageKind, tuple[Buffer, ...], Sequence[TopicRecords] | None]] = deque()
        self._is_sent = asyncio.Event()

    def send(self, kind: MessageKind, *body: Buffer, records: Sequence[TopicRecords] | None = _NO_RECORDS) -> None:
        """Send one message. Large buffers must not change until they are sent. Raises ConnectionError.

        `records` are the positions of records in the body; None: they are unknown, so the message is not packed.
        """
        if self._being_packed is not None:
            self._behind.append((kind, body, records))
        else:
            self._send(kind, body, records)

    def send_short(self, kind: MessageKind, body: bytes) -> None:
        """Send a message that is always sent unpacked, because it is short. Raises ConnectionError."""
        if self._being_packed is not None:
            self._behind.append((kind, (body,), _NO_RECORDS))
        else:
            self.connection.write_frame(_KIND_BYTES[0][kind], body)

    def _send(self, kind: MessageKind, body: Sequence[Buffer], records: Sequence[TopicRecords] | None) -> None:
        size, packing = sum(map(len, body)), self._packing
        pieces: list[Piece] = []
        if packing is not None and size >= _MIN_PACKED_BYTES and self._crosses():
            pieces = packing.cut(size, records)
        if packing is None or not pieces:
            self.connection.write_frame(_KIND_BYTES[0][kind], *body)
            return
        whole = memoryview(b"".join(body))
        if size <= MAX_STREAMED_BYTES:
            self._write(packing, kind, self._packer.pack(whole, pieces))
            return
        self._is_sent.clear()
        self._being_packed = asyncio.get_running_loop().run_in_executor(packing.pool, pack_apart, whole, pieces)
        self._being_packed.add_done_callback(lambda packed: self._was_packed(packing, kind, packed))

    def _write(self, packing: Packing, kind: MessageKind, message: PackedMessage) -> None:
        packing.packed(message.topics)
        self._on_packed(message.topics)
        self.connection.write_frame(_KIND_BYTES[message.form][kind], *message.payload)

    def _was_packed(self, packing: Packing, kind: MessageKind, packed: asyncio.Future[PackedMessage]) -> None:
        """Send a large message, and what waits behind it. The tasks of the connection notice that it ended."""
        self._being_packed = None
        try:
            with suppress(ConnectionError):
                self._write(packing, kind, packed.result())
                while self._behind and self._being_packed is None:
                    self._send(*self._behind.popleft())
        except BaseException:  # a message is missing, so nothing may follow
            self.connection.abort()
            raise
        finally:
            if self._being_packed is None:
                self._is_sent.set()

    async def drain(self, patience_s: float | None = None, source: FramedConnection | None = None) -> None:
        """Wait until everything is sent and the peer keeps up (`FramedConnection.drain`)."""
        if self._being_packed is not None:
            await self._is_sent.wait()
        await self.connection.drain(patience_s, source)

    async def receive(self) -> tuple[MessageKind, memoryview] | None:
        """Return the next message; None at the end. Raises MalformedFrameError."""
        frame = await self.connection.read_frame()
        if frame is None:
            return None
        payload = memoryview(frame)
        number = payload[0] & ~(STREAMED | IN_PIECES)
        if number >= len(_KINDS):
            raise MalformedFrameError(0, f"unknown kind of message {number}")
        if number == payload[0]:
            return _KINDS[number], payload[MESSAGE_KIND_BYTES:]
        if self._packing is None:
            raise MalformedFrameError(0, "a packed message from an agent that was not told to pack")
        size = self._unpacker.size(payload)
        await self.connection.hold_unpacked(size)
        if size <= MAX_STREAMED_BYTES:
            return _KINDS[number], self._unpacker.unpack(payload, size)
        loop = asyncio.get_running_loop()
        return _KINDS[number], await loop.run_in_executor(self._packing.pool, self._unpacker.unpack, payload, size)


class PlainFrames(PeerChannel):
    """A channel of bare Kafka frames, where the other side is no agent, or exchanges no messages."""

    def send(self, kind: MessageKind, *body: Buffer, records: Sequence[TopicRecords] | None = _NO_RECORDS) -> None:
        """Send the body as a frame. Raises ConnectionError."""
        self.connection.write_frame(*body)

    async def receive(self) -> tuple[MessageKind, memoryview] | None:
        """Return the next frame as a message; None at the end."""
        frame = await self.connection.read_frame()
        return None if frame is None else (MessageKind.KAFKA, memoryview(frame))


Response = TypeVar("Response")
Connect = Callable[[], Awaitable[FramedConnection]]
"""Dials and exchanges hellos. Raises OSError, ssl.SSLError, PeerRefusedError."""


class NumberedQuestions(Generic[Response]):
    """Sends numbered requests to one agent, and matches its responses by number. For the event loop; `close` it."""

    def __init__(
        self, connect: Connect, read: Callable[[MessageKind, memoryview], tuple[int, Response | Exception]]
    ) -> None:
        """`read` returns the number of the request that a message responds to, and the result or an exception to raise.

        It raises MalformedFrameError if the message is no response, which ends the connection.
        """
        self._connect = connect
        self._read = read
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Response]] = {}
        self._channel: asyncio.Future[PeerChannel] | None = None
        self._running: asyncio.Task[None] | None = None

    async def ask(self, kind: MessageKind, body: Callable[[int], Buffer]) -> Response:
        """Send a request with a new number, and return its result. The caller bounds the time.

        `body` makes the message from the number. Raises the exception in the response, what `connect` raises,
        ConnectionError, MalformedFrameError.
        """
        channel = await self._connected()
        number = next(self._numbers)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
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
