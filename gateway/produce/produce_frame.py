"""Finds the records in a client's Produce request without decoding them.

A frame here is what follows the four-byte size prefix. Versions 9 to 13 are understood, the flexible ones (KIP-482),
with request header v2; if requested, also those from 3 on, which Kafka 4 still takes. Anything else (older, newer,
another API, malformed) is `Unread`: it passes unchanged, and the broker decides. So nothing is ever raised here.

Source: Kafka's message definitions RequestHeader and ProduceRequest; KIP-482, KIP-516 (topic ids, version 13).
"""

import struct
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicId
from replication.wire.kafka_frame import CostlyFrameError, FrameCursor, MalformedFrameError

PRODUCE_API_KEY = 0
MIN_PRODUCE_VERSION = 9
"""The first flexible version; Kafka 2.8 and newer take it."""
MIN_TRANSACTIONAL_VERSION = 3
"""The first older version whose records are batches as Kafka keeps them (magic 2)."""
MAX_PRODUCE_VERSION = 13
TOPIC_ID_VERSION = 13
"""The first version that names topics by id (KIP-516)."""
ACKS_ALL = -1
ACKS_NONE = 0
ACKS_LEADER = 1

_API = struct.Struct(">hhi")
_PARAMETERS = struct.Struct(">hi")  # acks, time-out in milliseconds
_INT16 = struct.Struct(">h")
_MIN_PARTITION_BYTES = 6
"""Index, length of the records, tags."""
_MIN_TOPIC_BYTES = 6
"""Size in versions before KIP-482: the name's length, the number of partitions."""
_MIN_INFLEXIBLE_PARTITION_BYTES = 8


class Unread(Enum):
    """Why a Produce request is relayed unread; the value labels a counter."""

    OTHER_API = "other_api"
    VERSION = "version"
    MALFORMED = "malformed"
    COSTLY = "costly"
    """Beyond the limit on what reading one frame may take."""


class ProducedRecords(NamedTuple):
    """One partition of a Produce request, and the position of its records in the frame."""

    topic_id: TopicId | None
    """None before version 13, which names topics."""
    topic_name: str | None
    """None from version 13 on."""
    partition: int
    records_start: int
    """Position after the varint with the records' length."""
    records_end: int


@dataclass(frozen=True, slots=True)
class ProduceRequestView:
    """A Produce request's records fields, in the order of the frame."""

    api_version: int
    correlation_id: int
    acks: int
    acks_position: int
    """Position of `acks` in the frame, a 16-bit integer."""
    timeout_ms: int
    is_transactional: bool
    fields: tuple[ProducedRecords, ...]


def scan_produce_request(frame: Buffer, min_version: int = MIN_PRODUCE_VERSION) -> ProduceRequestView | Unread:
    """Find the records in a client's request; record bytes are not looked at. Never raises.

    Versions below `min_version`, at least MIN_TRANSACTIONAL_VERSION, are not scanned.
    """
    if len(frame) < _API.size:
        return Unread.MALFORMED
    api_key, api_version, correlation_id = _API.unpack_from(frame, 0)
    if api_key != PRODUCE_API_KEY:
        return Unread.OTHER_API
    if not min_version <= api_version <= MAX_PRODUCE_VERSION:
        return Unread.VERSION
    scan = _scan if api_version >= MIN_PRODUCE_VERSION else _scan_inflexible
    try:
        return scan(FrameCursor(frame), api_version, correlation_id)
    except CostlyFrameError:
        return Unread.COSTLY
    except MalformedFrameError:
        return Unread.MALFORMED


def client_id_of(frame: Buffer) -> bytes:
    """Copy the client id of a request that was scanned, with its length in front."""
    size = max(_INT16.unpack_from(frame, _API.size)[0], 0)
    return bytes(frame[_API.size : _API.size + _INT16.size + size])


def with_acks_of_leader(frame: Buffer, view: ProduceRequestView) -> bytearray:
    """Return a copy of a request with acks=1 in place of its acks."""
    changed = bytearray(frame)
    _INT16.pack_into(changed, view.acks_position, ACKS_LEADER)
    return changed


def _scan(cursor: FrameCursor, api_version: int, correlation_id: int) -> ProduceRequestView:
    cursor.skip(_API.size)
    cursor.skip(max(cursor.int16(), 0))  # client id
    cursor.skip_tagged_fields()
    is_transactional = _skip_transactional_id(cursor, api_version)
    acks_position = cursor.position
    acks, timeout_ms = cursor.fields(_PARAMETERS)
    by_id = api_version >= TOPIC_ID_VERSION
    fields: list[ProducedRecords] = []
    for _ in range(cursor.array_length(min_item_bytes=2)):
        topic_id = cursor.topic_id() if by_id else None
        topic_name = None if by_id else cursor.compact_string()
        for _ in range(cursor.array_length(_MIN_PARTITION_BYTES)):
            partition = cursor.int32()
            start = cursor.skip(max(cursor.unsigned_varint() - 1, 0))
            fields.append(ProducedRecords(topic_id, topic_name, partition, start, cursor.position))
            cursor.skip_tagged_fields()
        cursor.skip_tagged_fields()
    cursor.skip_tagged_fields()
    cursor.expect_end()
    parameters = acks, acks_position, timeout_ms, is_transactional
    return ProduceRequestView(api_version, correlation_id, *parameters, tuple(fields))


def _scan_inflexible(cursor: FrameCursor, api_version: int, correlation_id: int) -> ProduceRequestView:
    """Scan a version before KIP-482: lengths and counts have fixed sizes, null is -1, and nothing has tags."""
    cursor.skip(_API.size)
    cursor.skip(max(cursor.int16(), 0))  # client id
    is_transactional = _skip_transactional_id(cursor, api_version)
    acks_position = cursor.position
    acks, timeout_ms = cursor.fields(_PARAMETERS)
    fields: list[ProducedRecords] = []
    for _ in range(cursor.inflexible_array_length(_MIN_TOPIC_BYTES)):
        name = cursor.string()
        for _ in range(cursor.inflexible_array_length(_MIN_INFLEXIBLE_PARTITION_BYTES)):
            partition = cursor.int32()
            start = cursor.skip(max(cursor.int32(), 0))
            fields.append(ProducedRecords(None, name, partition, start, cursor.position))
    cursor.expect_end()
    parameters = acks, acks_position, timeout_ms, is_transactional
    return ProduceRequestView(api_version, correlation_id, *parameters, tuple(fields))


def _skip_transactional_id(cursor: FrameCursor, api_version: int) -> bool:
    """Skip the transactional id. Returns whether there is one."""
    size = cursor.unsigned_varint() - 1 if api_version >= MIN_PRODUCE_VERSION else cursor.int16()
    cursor.skip(max(size, 0))
    return size >= 0
