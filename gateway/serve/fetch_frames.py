"""Reads and writes whole Fetch frames of versions 13 to 18, as the gateway needs them to answer for a broker. Sans-IO.

`with_zone` writes the zone into consumers' requests that have no rack, so that brokers send them to a replica there.

Only a plain consumer's request is read: anything with tagged fields (a follower's state, a cluster id) raises, and goes
to the broker unchanged.

Source: Kafka's message definitions RequestHeader, FetchRequest and FetchResponse; KIP-227, KIP-516.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, NamedTuple

from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.wire.fetch_frame import (
    CONSUMER_REPLICA_ID,
    FETCH_API_KEY,
    MAX_FETCH_VERSION,
    MAX_READ_REQUEST_BYTES,
    REPLICA_STATE_VERSION,
    TOPIC_ID_VERSION,
    scan_fetch_request,
    understands_fetch,
    with_rack,
)
from replication.wire.kafka_frame import FrameCursor, MalformedFrameError, encode_unsigned_varint

MAX_EDITED_BYTES = 64 * 1024
"""Some 2,000 partitions. A larger request passes unchanged."""
_KEY_AND_VERSION = struct.Struct(">hh")
READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

_HEADER = struct.Struct(">hhi")
_REPLICA = struct.Struct(">i")
_LIMITS = struct.Struct(">iiibii")  # max wait, min bytes, max bytes, isolation level, session id, session epoch
_WANTED = struct.Struct(">iiqiqi")
_ANSWERED = struct.Struct(">ihqqq")  # partition, error, high watermark, last stable offset, log start offset
_ABORTED = struct.Struct(">qq")
_SESSION = struct.Struct(">i")
_RESPONSE_HEAD = struct.Struct(">ibihi")  # correlation id, no tags, throttle time, error, session id
_NO_PREFERRED_REPLICA = struct.pack(">i", -1)
_NO_TAGS = b"\0"


class WantedPartition(NamedTuple):
    """One partition in a Fetch request. Epochs are -1 if unknown."""

    log: TopicIdPartition
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A consumer's Fetch request."""

    head: bytes
    """The header, from the API key up to its tagged fields."""
    api_version: int
    correlation_id: int
    client_id: str
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: tuple[WantedPartition, ...]
    forgotten: tuple[TopicIdPartition, ...]
    rack: bytes
    """The encoded rack."""


class AbortedTransaction(NamedTuple):
    """A producer's aborted transaction, as a Fetch response names it."""

    producer_id: int
    first_offset: int


class ResponsePartition(NamedTuple):
    """One partition of a Fetch response."""

    log: TopicIdPartition
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...]
    preferred_replica: int
    records: memoryview


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """A Fetch response of a broker."""

    throttle_ms: int
    error: int
    session_position: int
    """Position of the session id in the frame."""
    partitions: tuple[ResponsePartition, ...]


class ServedPartition(NamedTuple):
    """One partition of a response that the gateway gives itself."""

    log: TopicIdPartition
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[AbortedTransaction] | None
    """None for consumers that read uncommitted records."""
    records: Sequence[Buffer]


def api_key_of(frame: Buffer) -> int:
    """Return the API key of a request; -1 if it has none."""
    return int.from_bytes(bytes(frame[:2]), "big", signed=True) if len(frame) >= _HEADER.size else -1


def decode_request(frame: Buffer) -> FetchRequest:
    """Read a consumer's Fetch request. Raises MalformedFrameError for every other frame."""
    cursor = FrameCursor(frame)
    api_key, version, correlation_id = cursor.fields(_HEADER)
    is_known = api_key == FETCH_API_KEY and TOPIC_ID_VERSION <= version <= MAX_FETCH_VERSION
    if not is_known or len(frame) > MAX_READ_REQUEST_BYTES:
        raise cursor.fault("version", "no Fetch request that is read here")
    client_id = cursor.string()
    _expect_no_tags(cursor)
    head = bytes(frame[: cursor.position])
    if version < REPLICA_STATE_VERSION and cursor.int32() != CONSUMER_REPLICA_ID:
        raise cursor.fault("replica", "a follower's request")
    max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = cursor.fields(_LIMITS)
    wanted: list[WantedPartition] = []
    for _ in range(cursor.array_length(min_item_bytes=18)):
        topic_id = cursor.topic_id()
        for _ in range(cursor.array_length(min_item_bytes=_WANTED.size + 1)):
            partition, *asked = cursor.fields(_WANTED)
            wanted.append(WantedPartition(TopicIdPartition(topic_id, partition), *asked))
            _expect_no_tags(cursor)
        _expect_no_tags(cursor)
    forgotten: list[TopicIdPartition] = []
    for _ in range(cursor.array_length(min_item_bytes=18)):
        topic_id = cursor.topic_id()
        count = cursor.array_length(min_item_bytes=4)
        forgotten += [TopicIdPartition(topic_id, cursor.int32()) for _ in range(count)]
        _expect_no_tags(cursor)
    begin = cursor.position
    cursor.compact_string()
    rack = bytes(frame[begin : cursor.position])
    _expect_no_tags(cursor)
    cursor.expect_end()
    return FetchRequest(
        head, version, correlation_id, client_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id,
        session_epoch, tuple(wanted), tuple(forgotten), rack,
    )  # fmt: skip


def _expect_no_tags(cursor: FrameCursor) -> None:
    if not cursor.skip_no_tags():
        raise MalformedFrameError(cursor.position, "tagged fields, which no plain consumer sends")


def encode_sessionless(request: FetchRequest, wanted: Iterable[WantedPartition], max_wait_ms: int) -> bytes:
    """Encode a full Fetch request without a session for these partitions, otherwise like `request`."""
    limits = _LIMITS.pack(max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level, 0, -1)
    replica = _REPLICA.pack(CONSUMER_REPLICA_ID) if request.api_version < REPLICA_STATE_VERSION else b""
    topics = []
    for topic_id, of_topic in groupby(wanted, key=lambda one: one.log.topic_id):
        partitions = [_WANTED.pack(one.log.partition, *one[1:]) + _NO_TAGS for one in of_topic]
        count = encode_unsigned_varint(len(partitions) + 1)
        topics.append(b"".join((topic_id, count, *partitions, _NO_TAGS)))
    nothing_forgotten = b"\x01"
    count = encode_unsigned_varint(len(topics) + 1)
    return b"".join((request.head, replica, limits, count, *topics, nothing_forgotten, request.rack, _NO_TAGS))


def decode_response(frame: Buffer) -> FetchResponse:
    """Read a Fetch response of versions 13 to 18. Raises MalformedFrameError."""
    cursor = FrameCursor(frame)
    cursor.skip(4)  # correlation id
    cursor.skip_tagged_fields()
    throttle_ms, error = cursor.int32(), cursor.int16()
    session_position = cursor.skip(_SESSION.size)
    found: list[ResponsePartition] = []
    for _ in range(cursor.array_length(min_item_bytes=18)):
        topic_id = TopicId(bytes(cursor.take(16)))
        for _ in range(cursor.array_length(min_item_bytes=_ANSWERED.size + 7)):
            found.append(_decode_partition(cursor, topic_id))
        cursor.skip_tagged_fields()
    cursor.skip_tagged_fields()
    cursor.expect_end()
    return FetchResponse(throttle_ms, error, session_position, tuple(found))


def _decode_partition(cursor: FrameCursor, topic_id: TopicId) -> ResponsePartition:
    partition, error, high_watermark, last_stable_offset, log_start_offset = cursor.fields(_ANSWERED)
    log = TopicIdPartition(topic_id, partition)
    aborted: list[AbortedTransaction] = []
    for _ in range(cursor.array_length(min_item_bytes=_ABORTED.size + 1)):
        aborted.append(AbortedTransaction(*cursor.fields(_ABORTED)))
        cursor.skip_tagged_fields()
    preferred = cursor.int32()
    records = memoryview(cursor.take(max(cursor.unsigned_varint() - 1, 0)))
    cursor.skip_tagged_fields()
    return ResponsePartition(
        log, error, high_watermark, last_stable_offset, log_start_offset, tuple(aborted), preferred, records
    )


def with_session(frame: Buffer, response: FetchResponse, session_id: int) -> list[Buffer]:
    """Return a broker's response, as buffers, with another session id."""
    whole, at = memoryview(frame), response.session_position
    return [whole[:at], _SESSION.pack(session_id), whole[at + _SESSION.size :]]


def encode_response(
    correlation_id: int, session_id: int, partitions: Iterable[ServedPartition], error: int = 0
) -> list[Buffer]:
    """Encode a response of the gateway itself; record bytes are not copied."""
    topics = [(topic_id, list(of_topic)) for topic_id, of_topic in groupby(partitions, lambda one: one.log.topic_id)]
    head = bytearray(_RESPONSE_HEAD.pack(correlation_id, 0, 0, error, session_id))
    head += encode_unsigned_varint(len(topics) + 1)
    buffers: list[Buffer] = []
    for topic_id, served in topics:
        head += topic_id + encode_unsigned_varint(len(served) + 1)
        for one in served:
            head += _ANSWERED.pack(one.log.partition, 0, *one[1:4])
            if one.aborted is None:
                head += b"\0"
            else:
                head += encode_unsigned_varint(len(one.aborted) + 1)
                head += b"".join(_ABORTED.pack(*each) + _NO_TAGS for each in one.aborted)
            head += _NO_PREFERRED_REPLICA + encode_unsigned_varint(sum(map(len, one.records)) + 1)
            if one.records:
                buffers += [head, *one.records]
                head = bytearray()
            head += _NO_TAGS
        head += _NO_TAGS
    head += _NO_TAGS
    return [*buffers, head]


def with_zone(frame: Buffer, zone: str) -> Buffer:
    """Return a client's frame; if it is a consumer's Fetch without a rack, with the zone as its rack.

    KIP-392: a leader whose `replica.selector.class` knows racks answers such a Fetch with the preferred replica. The
    consumer continues there, whether its own `client.rack` is set or not. Any other frame passes unchanged.
    """
    if not _KEY_AND_VERSION.size < len(frame) <= MAX_EDITED_BYTES:
        return frame
    api_key, api_version = _KEY_AND_VERSION.unpack_from(frame)
    if api_key != FETCH_API_KEY or not understands_fetch(api_version):
        return frame
    try:
        view = scan_fetch_request(frame, api_version)
    except MalformedFrameError:
        return frame  # the broker decides about it
    if view.rack or view.replica_id != CONSUMER_REPLICA_ID:
        return frame
    return with_rack(frame, view, zone)
