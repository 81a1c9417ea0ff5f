"""Asks another agent of the own zone for ranges of objects."""

from plugin.segment_metadata import CombinedSegmentId
from replication.follower.range_cache import CachedRange
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_channel import Connect, NumberedQuestions
from replication.wire.peer_protocol import MessageKind
from replication.wire.shared_reads import RangeRequest, decode_answer, decode_refusal


class RangeRefusedError(Exception):
    """The neighbour does not give the range; the message says why."""


class RangeAlteredError(Exception):
    """The bytes that arrived are not those that the neighbour sent."""


class NeighbourConnection:
    """The connection to one neighbour."""

    def __init__(self, connect: Connect) -> None:
        self._questions = NumberedQuestions(connect, _read)

    async def ask(self, wanted: CachedRange, read: tuple[int, int]) -> bytes:
        """Request a range; the neighbour reads all of `read` if it has none of it. The caller bounds the time.

        Raises RangeRefusedError, RangeAlteredError, what `connect` raises, ConnectionError, MalformedFrameError.
        """
        object_id = wanted.object_id
        if not isinstance(object_id, CombinedSegmentId):
            raise TypeError("neighbours read combined segments alone")
        data = await self._questions.ask(
            MessageKind.RANGE_REQUEST,
            lambda number: RangeRequest(
                number, object_id, wanted.start, wanted.end, read, wanted.custom_metadata
            ).encode(),
        )
        if len(data) != wanted.end - wanted.start:
            raise RangeAlteredError(f"{len(data)} bytes instead of {wanted.end - wanted.start}")
        return data

    async def close(self) -> None:
        """Close the connection; waiting callers get an error."""
        await self._questions.close()


def _read(kind: MessageKind, body: memoryview) -> tuple[int, bytes | Exception]:
    if kind is MessageKind.RANGE:
        number, data = decode_answer(body)
        return number, RangeAlteredError("the checksum differs") if data is None else bytes(data)
    if kind is MessageKind.RANGE_REFUSED:
        number, why = decode_refusal(body)
        return number, RangeRefusedError(why)
    raise MalformedFrameError(0, f"{kind.name} from a neighbour")
