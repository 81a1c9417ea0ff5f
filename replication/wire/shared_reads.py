"""What agents of one zone say of the objects that one of them reads for all, sans-IO.

A leader's agent knows who in a zone follows partitions of an object, and which of these agents are there: they are
connected. So it says with each announcement whom of them to ask, in order, and what the first one is to read. All of a
zone are told the same at the same time, so none of them has to know who else lives.

The order is by rendezvous hashing: objects are spread evenly over the readers, and when one goes, only the objects that
it would have read move.
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
    """Why a neighbour does not give a range."""

    BUSY = 0
    """It reads and gives as much as it may."""
    NOT_READ = 1
    """Its own read failed, or it asks another one itself."""


_REASONS = {one.value: one.name.lower() for one in RangeRefusal}


@dataclass(frozen=True, slots=True)
class ZoneReading:
    """Who of a zone reads an object, and which of its bytes they want together."""

    readers: tuple[int, ...]
    """Brokers, in the order in which their agents are to be asked; the first reads for all."""
    ranges: tuple[tuple[int, int], ...]
    """[start, end) positions in bytes, ascending and apart."""

    def around(self, start: int, end: int) -> tuple[int, int]:
        """What is read for all where these bytes are wanted."""
        return next((each for each in self.ranges if each[0] <= start and end <= each[1]), (start, end))

    def encode(self) -> bytes:
        """It goes in front of an announcement's body."""
        readers = (_READER.pack(one) for one in self.readers)
        return b"".join((bytes((len(self.readers),)), *readers, encode_ranges(self.ranges)))

    @classmethod
    def decode(cls, body: Buffer) -> tuple["ZoneReading", bytes]:
        """And the announcement's body. Raises MalformedFrameError."""
        end = 1 + body[0] * _READER.size if len(body) else 1
        if len(body) <= end:
            raise MalformedFrameError(0, f"a shared announcement of {len(body)} bytes")
        readers = tuple(one for (one,) in _READER.iter_unpack(bytes(body[1:end])))
        ranges, rest = decode_ranges(body, end)
        return cls(readers, ranges), rest


def in_order(segment_id: CombinedSegmentId, readers: Iterable[int]) -> tuple[int, ...]:
    """By rendezvous hashing: who of these is to read the object, and who in its place."""
    key = segment_id.to_bytes()

    def weight(reader: int) -> tuple[bytes, int]:
        return blake2b(_READER.pack(reader), digest_size=8, key=key).digest(), reader

    return tuple(sorted(readers, key=weight)[:MAX_READERS])


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """Bytes [start, end) of a combined segment; `read` is to be read where they are not there."""

    number: int
    segment_id: CombinedSegmentId
    start: int
    end: int
    read: tuple[int, int]
    custom_metadata: bytes = b""

    def encode(self) -> bytes:
        """The message's body."""
        raw_id = self.segment_id.to_bytes()
        return _REQUEST.pack(self.number, raw_id, self.start, self.end, *self.read) + self.custom_metadata

    @classmethod
    def decode(cls, body: Buffer) -> "RangeRequest":
        """From a message's body. Raises MalformedFrameError."""
        if not _REQUEST.size <= len(body) <= MAX_REQUEST_BYTES:
            raise MalformedFrameError(0, f"a range request of {len(body)} bytes")
        number, raw_id, start, end, read_start, read_end = _REQUEST.unpack_from(body)
        if not read_start <= start < end <= read_end:
            raise MalformedFrameError(0, f"bytes {start} to {end} of those from {read_start} to {read_end}")
        segment_id = CombinedSegmentId.from_bytes(raw_id)
        return cls(number, segment_id, start, end, (read_start, read_end), bytes(body[_REQUEST.size :]))


def encode_answer(number: int, data: Buffer) -> bytes:
    """What goes in front of the data."""
    return _ANSWER.pack(number, crc32c(data))


def decode_answer(body: memoryview) -> tuple[int, memoryview | None]:
    """The request's number, and the data; None where it was altered on its way. Raises MalformedFrameError."""
    if len(body) < _ANSWER.size:
        raise MalformedFrameError(0, f"an answer of {len(body)} bytes")
    number, checksum = _ANSWER.unpack_from(body)
    data = body[_ANSWER.size :]
    return number, data if crc32c(data) == checksum else None


def encode_refusal(number: int, why: RangeRefusal) -> bytes:
    """The message's body."""
    return _REFUSAL.pack(number, why)


def decode_refusal(body: Buffer) -> tuple[int, str]:
    """The request's number, and why. Raises MalformedFrameError."""
    if len(body) != _REFUSAL.size:
        raise MalformedFrameError(0, f"a refusal of {len(body)} bytes")
    number, why = _REFUSAL.unpack(body)
    return number, _REASONS.get(why, "unknown")
