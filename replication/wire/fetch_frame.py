"""Finds the records in Kafka's Fetch frames without decoding the records.

A frame here is what follows the four-byte size prefix. Versions 12 to 18 are understood. All are flexible (KIP-482):
lengths are unsigned varints of the length plus one, and 0 means null. Everything else in the frame is skipped and never
interpreted, because the frame is later copied around the records byte for byte.

Source: Kafka's message definitions RequestHeader, FetchRequest and FetchResponse; KIP-482, KIP-516 and KIP-903.

Input is hostile until proven otherwise, see `replication.wire.kafka_frame`.
"""

import math
import struct
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TOPIC_ID_BYTES, TopicId, TopicIdPartition
from replication.wire.kafka_frame import CostlyFrameError, FrameCursor, MalformedFrameError, encode_unsigned_varint
from replication.wire.packed_message import TopicRecords

FETCH_API_KEY = 1
RECORDS_API_KEYS = frozenset({FETCH_API_KEY, 59, 78})
"""The APIs whose responses have records: Fetch, FetchSnapshot, ShareFetch."""
MIN_FETCH_VERSION = 12
"""The first flexible version; Kafka 2.7 and newer send it."""
MAX_FETCH_VERSION = 18
TOPIC_ID_VERSION = 13
"""The first version that names topics by id (KIP-516)."""
REPLICA_STATE_VERSION = 15
"""The first version that has the replica's id in a tagged field (KIP-903)."""

CONSUMER_REPLICA_ID = -1
_WHOLE_EPOCHS = (0, -1)
"""Session epochs of requests that begin a fetch session, or end one or have none."""

MAX_READ_REQUEST_BYTES = 1024 * 1024
_PARTITION_PREFIX = struct.Struct(">ihqqq")  # partition, error, high watermark, last stable offset, log start offset
_FETCH_PARTITION = struct.Struct(">iiqiqi")  # partition, current leader epoch, fetch offset, last fetched epoch, ...
_ABORTED_TRANSACTION_BYTES = 16
_FETCH_WAIT = struct.Struct(">ii")
"""Max wait in milliseconds, min bytes."""
_INT32 = struct.Struct(">i")
_NO_RECORDS = b"\x01"
"""An empty records field: a compact length is the number of bytes plus one."""

_CLUSTER_ID_TAG = 0
_REPLICA_STATE_TAG = 1
_PARTITION_TAG_BYTES = MappingProxyType({0: 16, 1: 8})
"""Sizes by tag: the replica's directory (KIP-853) and its high watermark (KIP-1166)."""


class RecordsField(NamedTuple):
    """One partition of a Fetch response, and the position of its records in the frame."""

    topic_id: TopicId | None
    """None in version 12, which names topics."""
    topic_name: str | None
    """None from version 13 on."""
    partition: int
    error_code: int
    high_watermark: int
    length_start: int
    """Position of the varint with the records' length."""
    records_start: int
    records_end: int


@dataclass(frozen=True, slots=True)
class FetchResponseView:
    """A Fetch response's records fields, in the order of the frame."""

    correlation_id: int
    error_code: int
    session_id: int
    fields: tuple[RecordsField, ...]


class FetchedPartition(NamedTuple):
    """One partition that a Fetch request asks for."""

    topic_id: TopicId | None
    topic_name: str | None
    partition: int
    current_leader_epoch: int
    fetch_offset: int


@dataclass(frozen=True, slots=True)
class FetchRequestView:
    """The parts of a Fetch request that the agent reads. Partitions unchanged in the fetch session are not in it.

    `replica_id` is the follower's broker id, or `CONSUMER_REPLICA_ID` for a consumer.
    """

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    wait_position: int
    """Position of `max_wait_ms` in the frame; `min_bytes` follows it."""
    partitions: tuple[FetchedPartition, ...]
    rack: str = ""
    """The zone that the consumer says it is in; empty if it gives none."""
    rack_position: int = 0
    """Position of the rack in the frame, its length included."""
    is_whole: bool = True
    """Whether `partitions` are all that it fetches, and not only changes to its fetch session (KIP-227)."""
    forgotten: tuple[TopicIdPartition, ...] = ()
    """The partitions that it removes from its fetch session; empty in version 12, which names topics."""


def understands_fetch(api_version: int) -> bool:
    """Whether frames of this Fetch version can be scanned; others are passed through untouched."""
    return MIN_FETCH_VERSION <= api_version <= MAX_FETCH_VERSION


def scan_fetch_response(frame: Buffer, api_version: int) -> FetchResponseView:
    """Find the records in a Fetch response of versions 12 to 18.

    Raises MalformedFrameError when a length or count leads out of the frame or bytes are left over, CostlyFrameError.
    """
    cursor = FrameCursor(frame)
    correlation_id = cursor.int32()
    cursor.skip_tagged_fields()
    cursor.skip(4)  # throttle time
    error_code = cursor.int16()
    session_id = cursor.int32()
    by_id = api_version >= TOPIC_ID_VERSION
    fields: list[RecordsField] = []
    for _ in range(cursor.array_length(min_item_bytes=2)):
        topic_id = cursor.topic_id() if by_id else None
        topic_name = None if by_id else cursor.compact_string()
        for _ in range(cursor.array_length(min_item_bytes=_PARTITION_PREFIX.size + 7)):
            fields.append(_scan_partition(cursor, topic_id, topic_name))
        cursor.skip_tagged_fields()
    cursor.skip_tagged_fields()
    cursor.expect_end()
    return FetchResponseView(correlation_id, error_code, session_id, tuple(fields))


def records_in(view: FetchResponseView) -> list[TopicRecords]:
    """Return where in the frame each topic's records are."""
    return [
        TopicRecords(one.topic_id or one.topic_name or "", one.records_start, one.records_end)
        for one in view.fields
        if one.records_end > one.records_start
    ]


def _scan_partition(cursor: FrameCursor, topic_id: TopicId | None, topic_name: str | None) -> RecordsField:
    partition, error_code, high_watermark, _, _ = cursor.fields(_PARTITION_PREFIX)
    for _ in range(cursor.array_length(min_item_bytes=_ABORTED_TRANSACTION_BYTES + 1)):
        cursor.skip(_ABORTED_TRANSACTION_BYTES)
        cursor.skip_tagged_fields()
    cursor.skip(4)  # preferred read replica
    length_start = cursor.position
    records_start = cursor.skip(max(cursor.unsigned_varint() - 1, 0))
    field = RecordsField(
        topic_id,
        topic_name,
        partition,
        error_code,
        high_watermark,
        length_start,
        records_start,
        cursor.position,
    )
    cursor.skip_tagged_fields()
    return field


def scan_fetch_request(frame: Buffer, api_version: int) -> FetchRequestView:
    """Read a Fetch request of versions 12 to 18. Raises MalformedFrameError, CostlyFrameError."""
    if len(frame) > MAX_READ_REQUEST_BYTES:
        raise CostlyFrameError(0, "size", f"a request of {len(frame)} bytes")
    cursor = FrameCursor(frame)
    cursor.skip(8)  # api key, version, correlation id
    cursor.skip(max(cursor.int16(), 0))  # client id
    cursor.skip_tagged_fields()
    replica_id = cursor.int32() if api_version < REPLICA_STATE_VERSION else CONSUMER_REPLICA_ID
    wait_position = cursor.position
    max_wait_ms, min_bytes = cursor.fields(_FETCH_WAIT)
    cursor.skip(4 + 1 + 4)  # max bytes, isolation level, session id
    session_epoch = cursor.int32()
    by_id = api_version >= TOPIC_ID_VERSION
    partitions: list[FetchedPartition] = []
    for _ in range(cursor.array_length(min_item_bytes=2)):
        topic_id = cursor.topic_id() if by_id else None
        topic_name = None if by_id else cursor.compact_string()
        for _ in range(cursor.array_length(min_item_bytes=_FETCH_PARTITION.size + 1)):
            partition, leader_epoch, fetch_offset, _, _, _ = cursor.fields(_FETCH_PARTITION)
            partitions.append(FetchedPartition(topic_id, topic_name, partition, leader_epoch, fetch_offset))
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()
    forgotten: list[TopicIdPartition] = []
    for _ in range(cursor.array_length(min_item_bytes=2)):
        topic_id = cursor.topic_id() if by_id else None
        if topic_id is None:
            cursor.compact_string()
        numbers = cursor.take(4 * cursor.array_length(min_item_bytes=4))
        if topic_id is not None:
            forgotten += [TopicIdPartition(topic_id, number) for (number,) in _INT32.iter_unpack(numbers)]
        cursor.skip_tagged_fields()
    rack_position = cursor.position
    rack = cursor.compact_string()
    replica_id = _to_the_end(_replica_in_tags(cursor, replica_id))
    cursor.expect_end()
    return FetchRequestView(
        replica_id,
        max_wait_ms,
        min_bytes,
        wait_position,
        tuple(partitions),
        rack,
        rack_position,
        session_epoch in _WHOLE_EPOCHS,
        tuple(forgotten),
    )


def with_rack(frame: Buffer, view: FetchRequestView, rack: str) -> bytes:
    """Return a copy of a Fetch request with this rack (KIP-392). The original must have no rack."""
    named = rack.encode()
    before, after = frame[: view.rack_position], frame[view.rack_position + 1 :]
    return b"".join((before, encode_unsigned_varint(len(named) + 1), named, after))


def with_fetch_wait(frame: Buffer, view: FetchRequestView, max_wait_ms: int, min_bytes: int) -> Buffer:
    """Return a copy of a Fetch request with another maximum wait and minimum of bytes."""
    changed = bytearray(frame)
    _FETCH_WAIT.pack_into(changed, view.wait_position, max_wait_ms, min_bytes)
    return changed


def without_records(frame: Buffer, view: FetchResponseView) -> list[Buffer]:
    """Return a Fetch response without its records, as buffers: like a broker's response when a quota is used up.

    Offsets and sessions do not change, so the receiver asks for the same records again.
    """
    whole, parts, position = memoryview(frame), list[Buffer](), 0
    for field in view.fields:
        parts += (whole[position : field.length_start], _NO_RECORDS)
        position = field.records_end
    return [*parts, whole[position:]]


def replica_of(frame: Buffer, api_version: int) -> Generator[None, None, int]:
    """Find the replica id in a Fetch request of any version up to 18 and any size; yield after each item.

    It reads exactly what Kafka reads: a tagged field whose size differs from what its tag says makes the frame
    malformed. So no frame is read differently here than by the broker. Raises MalformedFrameError.
    """
    cursor = FrameCursor(frame, math.inf)
    cursor.skip(8)  # api key, version, correlation id
    cursor.skip(max(cursor.int16(), 0))  # client id
    if api_version >= MIN_FETCH_VERSION:
        yield from _skip_tags(cursor)
    if api_version < REPLICA_STATE_VERSION:
        return cursor.int32()
    cursor.skip(_FETCH_WAIT.size + 4 + 1 + 4 + 4)  # max bytes, isolation level, session id and epoch
    for _ in range(cursor.array_length(min_item_bytes=TOPIC_ID_BYTES + 2)):
        yield
        cursor.skip(TOPIC_ID_BYTES)
        count = cursor.array_length(min_item_bytes=_FETCH_PARTITION.size + 1)
        if not cursor.skip_untagged(count, _FETCH_PARTITION.size):
            for _ in range(count):
                yield
                cursor.skip(_FETCH_PARTITION.size)
                yield from _skip_tags(cursor, _PARTITION_TAG_BYTES)
        yield from _skip_tags(cursor)
    for _ in range(cursor.array_length(min_item_bytes=TOPIC_ID_BYTES + 2)):  # forgotten topics
        yield
        cursor.skip(TOPIC_ID_BYTES)
        cursor.skip(4 * cursor.array_length(min_item_bytes=4))
        yield from _skip_tags(cursor)
    cursor.skip(max(cursor.unsigned_varint() - 1, 0))  # rack
    return (yield from _replica_in_tags(cursor, CONSUMER_REPLICA_ID))


def _skip_tags(cursor: FrameCursor, known: Mapping[int, int] = MappingProxyType({})) -> Iterator[None]:
    """Skip tagged fields. `known` has the sizes of the tags that Kafka reads without checking the size in the frame."""
    if cursor.skip_no_tags():
        return
    for _ in range(cursor.tagged_field_count()):
        yield
        tag, size = cursor.unsigned_varint(), cursor.unsigned_varint()
        if known.get(tag, size) != size:
            raise MalformedFrameError(cursor.position, f"tag {tag} of {size} bytes")
        cursor.skip(size)


def _replica_in_tags(cursor: FrameCursor, replica_id: int) -> Generator[None, None, int]:
    for _ in range(cursor.tagged_field_count()):
        yield
        tag, size = cursor.unsigned_varint(), cursor.unsigned_varint()
        end = cursor.position + size
        if tag == _CLUSTER_ID_TAG:
            cursor.skip(max(cursor.unsigned_varint() - 1, 0))
        elif tag == _REPLICA_STATE_TAG:
            replica_id = cursor.int32()
            cursor.skip(8)  # its epoch
            yield from _skip_tags(cursor)
        else:
            cursor.skip(size)
        if cursor.position != end:
            raise MalformedFrameError(end, f"tag {tag} is not of {size} bytes")
    return replica_id


def _to_the_end(walk: Generator[None, None, int]) -> int:
    while True:
        try:
            next(walk)
        except StopIteration as end:
            return int(end.value)
