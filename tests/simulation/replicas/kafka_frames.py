"""What model brokers say to each other: Kafka's Fetch of versions 12 to 18, and requests that agents pass on unread.

Written down a second time, by Kafka's message definitions and apart from the product's scanner, as kafka-python's codec
takes too long for simulations; tests hold both against each other. There is one topic.
"""

import random
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

FETCH, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH = 1, 2, 23
_BY_ID, _REPLICA_STATE = 13, 15
_HEADER = struct.Struct(">hhih")
_WAITS = struct.Struct(">iiibii")  # max wait, min bytes, max bytes, isolation level, session id and epoch
_ASKED = struct.Struct(">iiqiqi")
_ANSWERED = struct.Struct(">ihqqq")
_QUESTION = struct.Struct(">iiq")
_REPLY = struct.Struct(">hiq")
_NO_TAGS = b"\0"
_INCARNATION_SHIFT = 20


class KafkaError(IntEnum):
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    NOT_LEADER_OR_FOLLOWER = 6
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75


class EpochEnd(NamedTuple):
    """Where a leader epoch ends (KIP-101)."""

    leader_epoch: int
    end_offset: int


class Asked(NamedTuple):
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    log_start: int
    max_bytes: int


class Answered(NamedTuple):
    partition: int
    error: int
    high_watermark: int
    log_start: int
    records: bytes = b""
    diverging: EpochEnd | None = None


@dataclass(slots=True)
class FetchRequest:
    version: int
    correlation_id: int
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    asked: list[Asked]
    forgotten: list[int] = field(default_factory=list)
    replica_epoch: int = 1

    def encode(self, topic: str, topic_id: bytes) -> bytes:
        name = _topic(self.version, topic, topic_id)
        client = b"broker-%d-fetcher-0" % self.replica_id
        parts = [_HEADER.pack(FETCH, self.version, self.correlation_id, len(client)), client, _NO_TAGS]
        if self.version < _REPLICA_STATE:
            parts.append(struct.pack(">i", self.replica_id))
        parts.append(
            _WAITS.pack(self.max_wait_ms, self.min_bytes, self.max_bytes, 0, self.session_id, self.session_epoch)
        )
        parts.append(_varint(2 if self.asked else 1))
        if self.asked:
            parts += [
                name,
                _varint(len(self.asked) + 1),
                *(_ASKED.pack(*one) + _NO_TAGS for one in self.asked),
                _NO_TAGS,
            ]
        parts.append(_varint(2 if self.forgotten else 1))
        if self.forgotten:
            numbers = struct.pack(f">{len(self.forgotten)}i", *self.forgotten)
            parts += [name, _varint(len(self.forgotten) + 1), numbers, _NO_TAGS]
        parts.append(_varint(1))  # rack id
        if self.version < _REPLICA_STATE:
            parts.append(_NO_TAGS)
        else:
            parts += [
                _varint(1),
                _varint(1),
                _varint(13),
                struct.pack(">iq", self.replica_id, self.replica_epoch),
                _NO_TAGS,
            ]
        return b"".join(parts)

    @classmethod
    def decode(cls, frame: bytes) -> "FetchRequest":
        read = _Reader(frame)
        _, version, correlation_id, client_bytes = read.unpack(_HEADER)
        read.position += client_bytes + 1
        replica_id = read.int32() if version < _REPLICA_STATE else -1
        max_wait_ms, min_bytes, max_bytes, _, session_id, session_epoch = read.unpack(_WAITS)
        asked, forgotten = list[Asked](), list[int]()
        for _ in range(read.varint() - 1):
            read.topic(version)
            for _ in range(read.varint() - 1):
                asked.append(Asked(*read.unpack(_ASKED)))
                read.position += 1
            read.position += 1
        for _ in range(read.varint() - 1):
            read.topic(version)
            forgotten += [read.int32() for _ in range(read.varint() - 1)]
            read.position += 1
        read.skip(read.varint() - 1)  # rack id
        for _ in range(read.varint()):
            tag, size = read.varint(), read.varint()
            if tag == 1:
                replica_id = int.from_bytes(frame[read.position : read.position + 4], "big")
            read.position += size
        assert read.position == len(frame)
        return cls(
            version, correlation_id, replica_id, max_wait_ms, min_bytes, max_bytes, session_id, session_epoch, asked,
            forgotten,
        )  # fmt: skip


@dataclass(slots=True)
class FetchResponse:
    correlation_id: int
    error: int
    session_id: int
    answered: list[Answered]

    def encode(self, version: int, topic: str, topic_id: bytes) -> bytes:
        parts = [struct.pack(">ibihi", self.correlation_id, 0, 0, self.error, self.session_id)]
        parts.append(_varint(2 if self.answered else 1))
        if self.answered:
            parts += [_topic(version, topic, topic_id), _varint(len(self.answered) + 1)]
        for one in self.answered:
            parts.append(
                _ANSWERED.pack(one.partition, one.error, one.high_watermark, one.high_watermark, one.log_start)
            )
            parts += [b"\0\xff\xff\xff\xff", _varint(len(one.records) + 1), one.records]
            if one.diverging is None:
                parts.append(_NO_TAGS)
            else:
                parts += [_varint(1), _varint(0), _varint(13), struct.pack(">iq", *one.diverging), _NO_TAGS]
        parts.append(b"\0\0" if self.answered else _NO_TAGS)
        return b"".join(parts)

    @classmethod
    def decode(cls, frame: bytes, version: int) -> "FetchResponse":
        read = _Reader(frame)
        correlation_id, _, _, error, session_id = read.unpack(struct.Struct(">ibihi"))
        answered = list[Answered]()
        for _ in range(read.varint() - 1):
            read.topic(version)
            for _ in range(read.varint() - 1):
                answered.append(_answered(read))
            read.position += 1
        read.position += 1
        assert read.position == len(frame), "bytes are left over in a Fetch response"
        return cls(correlation_id, error, session_id, answered)


def _answered(read: "_Reader") -> Answered:
    partition, error, high_watermark, _, log_start = read.unpack(_ANSWERED)
    read.position += 5  # aborted transactions, preferred read replica
    size = max(read.varint() - 1, 0)
    records = read.take(size)
    diverging = None
    for _ in range(read.varint()):
        tag, size = read.varint(), read.varint()
        if tag == 0:
            diverging = EpochEnd(*struct.unpack_from(">iq", read.frame, read.position))
        read.position += size
    return Answered(partition, error, high_watermark, log_start, records, diverging)


def first_correlation_id(incarnation: int, rng: random.Random) -> int:
    """Of a follower's connection. In the place of the replica epoch, which Fetch has from version 15 on (KIP-903)."""
    return incarnation << _INCARNATION_SHIFT | rng.randrange(1 << _INCARNATION_SHIFT - 1)


def incarnation_of(request: FetchRequest) -> int:
    return request.correlation_id >> _INCARNATION_SHIFT


def question(api: int, correlation_id: int, partition: int, leader_epoch: int, what: int) -> bytes:
    """A ListOffsets (what: -1 for the end, -2 for the start) or an OffsetForLeaderEpoch (what: the epoch).

    As agents do not read them, their bodies are our own.
    """
    return _HEADER.pack(api, 4, correlation_id, -1) + _QUESTION.pack(partition, leader_epoch, what)


def decode_question(frame: bytes) -> tuple[int, int, int, int]:
    """(correlation id, partition, leader epoch, what)."""
    return (*_HEADER.unpack_from(frame)[2:3], *_QUESTION.unpack_from(frame, _HEADER.size))


def reply(correlation_id: int, error: int, found: EpochEnd) -> bytes:
    return struct.pack(">i", correlation_id) + _REPLY.pack(error, *found)


def decode_reply(frame: bytes) -> tuple[int, EpochEnd]:
    error, leader_epoch, offset = _REPLY.unpack_from(frame, 4)
    return error, EpochEnd(leader_epoch, offset)


def correlation_id_of(frame: bytes) -> int:
    return int.from_bytes(frame[:4], "big", signed=True)


def _topic(version: int, topic: str, topic_id: bytes) -> bytes:
    return topic_id if version >= _BY_ID else _compact(topic.encode())


def _compact(raw: bytes) -> bytes:
    return _varint(len(raw) + 1) + raw


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class _Reader:
    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.position = 0

    def unpack(self, fields: struct.Struct) -> tuple[int, ...]:
        position, self.position = self.position, self.position + fields.size
        return fields.unpack_from(self.frame, position)

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def skip(self, size: int) -> None:
        self.position += size

    def take(self, size: int) -> bytes:
        position, self.position = self.position, self.position + size
        assert self.position <= len(self.frame), "a Fetch frame is cut off"
        return self.frame[position : self.position]

    def varint(self) -> int:
        value = shift = 0
        while (byte := self.take(1)[0]) >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def topic(self, version: int) -> None:
        if version >= _BY_ID:
            self.position += 16
        else:
            self.skip(self.varint() - 1)
