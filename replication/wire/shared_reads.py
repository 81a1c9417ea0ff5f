"""Messages about objects that one agent of a zone reads for all of them. Sans-IO.

A leader's agent knows which brokers of a zone follow partitions of an object, and which of their agents are connected.
So each announcement says which of them to ask, in order, and what the first one must read. All agents of a zone get the
same list at the same time, so none needs to know which others are alive.

The order comes from rendezvous hashing: it spreads objects evenly over the readers, and when a reader leaves, only the
objects that it would have read move.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b

from kafka_log.crc32c import Buffer, crc32c
from plugin.segment_metadata import CUSTOM_METADATA_MAX_BYTES, CombinedSegmentId
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_protocol import decode_ranges, encode_ranges

MAX_READERS = 255
_READER = struct.Struct(">i")
_REQUEST = struct.Struct(">Q16sIIII")  # number, object, start, end, and what to read where nothing is there
_ANSWER = struct.Struct(">QI")  # number, CRC32C
_REFUSAL = struct.Struct(">QB")  # number, why
MAX_REQUEST_BYTES = _REQUEST.size + CUSTOM_METADATA_MAX_BYTES


class RangeRefusal(IntEnum):
    """The reason why a neighbour does not give a range."""

    BUSY = 0
    """It already reads and gives as much as it may."""
    NOT_READ = 1
    """Its own read failed, or it asks another agent itself."""


_REASONS = {one.value: one.name.lower() for one in RangeRefusal}


@dataclass(frozen=True, slots=True)
class ZoneReading:
    """Which agents of a zone read an object, and which of its bytes they want together."""

    readers: tuple[int, ...]
    """Brokers in the order in which to ask their agents; the first reads for all."""
    ranges: tuple[tuple[int, int], ...]
    """[start, end) positions in bytes, ascending and apart."""

    def around(self, start: int, end: int) -> tuple[int, int]:
        """Return the range to read for all agents when these bytes are wanted."""
        return next((each for each in self.ranges if each[0] <= start and end <= each[1]), (start, end))

    def encode(self) -> bytes:
        """Encode it; it goes in front of an announcement's body."""
        readers = (_READER.pack(one) for one in self.readers)
        return b"".join((bytes((len(self.readers),)), *readers, encode_ranges(self.ranges)))

    @classmethod
    def decode(cls, body: Buffer) -> tuple["ZoneReading", bytes]:
        """Parse it; also return the announcement's body. Raises MalformedFrameError."""
        end = 1 + body[0] * _READER.size if len(body) else 1
        if len(body) <= end:
            raise MalformedFrameError(0, f"a shared announcement of {len(body)} bytes")
        readers = tuple(one for (one,) in _READER.iter_unpack(bytes(body[1:end])))
        ranges, rest = decode_ranges(body, end)
        return cls(readers, ranges), rest


def in_order(segment_id: CombinedSegmentId, readers: Iterable[int]) -> tuple[int, ...]:
    """Return the readers in the order of rendezvous hashing: the first reads the object, the next ones replace it."""
    key = segment_id.to_bytes()

    def weight(reader: int) -> tuple[bytes, int]:
        return blake2b(_READER.pack(reader), digest_size=8, key=key).digest(), reader

    return tuple(sorted(readers, key=weight)[:MAX_READERS])


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """A request for bytes [start, end) of a combined segment.

    If they are not cached, the neighbour reads all of `read`.
    """

    number: int
    segment_id: CombinedSegmentId
    start: int
    end: int
    read: tuple[int, int]
    custom_metadata: bytes = b""

    def encode(self) -> bytes:
        """Return the message's body."""
        raw_id = self.segment_id.to_bytes()
        return _REQUEST.pack(self.number, raw_id, self.start, self.end, *self.read) + self.custom_metadata

    @classmethod
    def decode(cls, body: Buffer) -> "RangeRequest":
        """Parse a request from a message's body. Raises MalformedFrameError."""
        if not _REQUEST.size <= len(body) <= MAX_REQUEST_BYTES:
            raise MalformedFrameError(0, f"a range request of {len(body)} bytes")
        number, raw_id, start, end, read_start, read_end = _REQUEST.unpack_from(body)
        if not read_start <= start < end <= read_end:
            raise MalformedFrameError(0, f"bytes {start} to {end} of those from {read_start} to {read_end}")
        segment_id = CombinedSegmentId.from_bytes(raw_id)
        return cls(number, segment_id, start, end, (read_start, read_end), bytes(body[_REQUEST.size :]))


def encode_answer(number: int, data: Buffer) -> bytes:
    """Return the header of an answer to a RANGES question; the data follows."""
    return _ANSWER.pack(number, crc32c(data))


def decode_answer(body: memoryview) -> tuple[int, memoryview | None]:
    """Return the request's number and the data; None for data that was altered on its way. Raises
    MalformedFrameError.
    """
    if len(body) < _ANSWER.size:
        raise MalformedFrameError(0, f"an answer of {len(body)} bytes")
    number, checksum = _ANSWER.unpack_from(body)
    data = body[_ANSWER.size :]
    return number, data if crc32c(data) == checksum else None


def encode_refusal(number: int, why: RangeRefusal) -> bytes:
    """Return the message's body."""
    return _REFUSAL.pack(number, why)


def decode_refusal(body: Buffer) -> tuple[int, str]:
    """Return the request's number and the reason. Raises MalformedFrameError."""
    if len(body) != _REFUSAL.size:
        raise MalformedFrameError(0, f"a refusal of {len(body)} bytes")
    number, why = _REFUSAL.unpack(body)
    return number, _REASONS.get(why, "unknown")
