"""A connection to another agent of the own zone, and what was asked there.

It is made when something is asked first, and anew when something is asked after it ended. Answers come in any order.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

from plugin.segment_metadata import CombinedSegmentId
from replication.follower.range_cache import CachedRange
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_protocol import MessageKind
from replication.wire.shared_reads import RangeRequest, decode_answer, decode_refusal

Connect = Callable[[], Awaitable[FramedConnection]]
"""Dials and exchanges hellos. Raises OSError, ssl.SSLError, PeerRefusedError."""


class RangeRefusedError(Exception):
    """The neighbour does not give the range; the message says why."""


class RangeAlteredError(Exception):
    """What came is not what the neighbour sent."""


class NeighbourConnection:
    """To one neighbour."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._channel: asyncio.Future[PeerChannel] | None = None
        self._running: asyncio.Task[None] | None = None

    async def ask(self, wanted: CachedRange, read: tuple[int, int]) -> bytes:
        """The range; `read` is what the neighbour reads where it has nothing of it. The caller bounds the time.

        Raises RangeRefusedError, RangeAlteredError, what `connect` raises, ConnectionError, MalformedFrameError.
        """
        if not isinstance(wanted.object_id, CombinedSegmentId):
            raise TypeError("neighbours read combined segments alone")
        channel = await self._connected()
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        request = RangeRequest(number, wanted.object_id, wanted.start, wanted.end, read, wanted.custom_metadata)
        self._asked[number] = answer
        try:
            channel.send(MessageKind.RANGE_REQUEST, request.encode())
            data: bytes = await answer
        finally:
            del self._asked[number]
        if len(data) != wanted.end - wanted.start:
            raise RangeAlteredError(f"{len(data)} bytes instead of {wanted.end - wanted.start}")
        return data

    async def _connected(self) -> PeerChannel:
        """Whoever asks meanwhile waits for the same attempt, which goes on when one of them has given up."""
        if self._channel is None:
            loop = asyncio.get_running_loop()
            self._channel = loop.create_future()
            self._running = loop.create_task(self._run(self._channel))
        return await asyncio.shield(self._channel)

    async def _run(self, connected: asyncio.Future[PeerChannel]) -> None:
        error: Exception = ConnectionResetError("the neighbour closed the connection")
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
        if kind is MessageKind.RANGE:
            number, data = decode_answer(body)
            answer = self._asked.get(number)
            if answer is None or answer.done():
                return
            if data is None:
                answer.set_exception(RangeAlteredError("the checksum differs"))
            else:
                answer.set_result(bytes(data))
        elif kind is MessageKind.RANGE_REFUSED:
            number, why = decode_refusal(body)
            answer = self._asked.get(number)
            if answer is not None and not answer.done():
                answer.set_exception(RangeRefusedError(why))
        else:
            raise MalformedFrameError(0, f"{kind.name} from a neighbour")

    async def close(self) -> None:
        """Whoever waits is told that the connection ended."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
