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
_MIN_TOPIC_BYTES = 2
"""The name's length, the number of partitions."""


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
    try:
        return _scan(FrameCursor(frame), api_version, correlation_id)
    except CostlyFrameError:
        return Unread.COSTLY
    except MalformedFrameError:
        return Unread.MALFORMED


def client_id_of(frame: Buffer) -> bytes:
    """Copy the client id of a request that was scanned, with its length in front."""
    size = max(_INT16.unpack_from(frame, _API.size)[0], 0)
    return bytes(frame[_API.size : _API.size + _INT16.size + size])


def with_acks_of_leader(frame: Buffer, view: ProduceRequestView) -> list[Buffer]:
    """Return a request, as buffers, with acks=1 in place of its acks; records are not copied."""
    whole, at = memoryview(frame), view.acks_position
    return [whole[:at], _INT16.pack(ACKS_LEADER), whole[at + _INT16.size :]]


def _scan(cursor: FrameCursor, api_version: int, correlation_id: int) -> ProduceRequestView:
    """Scan a request. Before KIP-482 lengths and counts have fixed sizes, null is -1, and nothing has tags."""
    is_flexible, by_id = api_version >= MIN_PRODUCE_VERSION, api_version >= TOPIC_ID_VERSION
    array_length = cursor.array_length if is_flexible else cursor.inflexible_array_length
    name = cursor.compact_string if is_flexible else cursor.string
    cursor.skip(_API.size)
    cursor.skip(max(cursor.int16(), 0))  # client id
    if is_flexible:
        cursor.skip_tagged_fields()
    transactional_id_bytes = cursor.unsigned_varint() - 1 if is_flexible else cursor.int16()
    cursor.skip(max(transactional_id_bytes, 0))
    acks_position = cursor.position
    acks, timeout_ms = cursor.fields(_PARAMETERS)
    fields: list[ProducedRecords] = []
    for _ in range(array_length(_MIN_TOPIC_BYTES)):
        topic_id = cursor.topic_id() if by_id else None
        topic_name = None if by_id else name()
        for _ in range(array_length(_MIN_PARTITION_BYTES)):
            partition = cursor.int32()
            start = cursor.skip(max(cursor.unsigned_varint() - 1 if is_flexible else cursor.int32(), 0))
            fields.append(ProducedRecords(topic_id, topic_name, partition, start, cursor.position))
            if is_flexible:
                cursor.skip_tagged_fields()
        if is_flexible:
            cursor.skip_tagged_fields()
    if is_flexible:
        cursor.skip_tagged_fields()
    cursor.expect_end()
    parameters = acks, acks_position, timeout_ms, transactional_id_bytes >= 0
    return ProduceRequestView(api_version, correlation_id, *parameters, tuple(fields))
