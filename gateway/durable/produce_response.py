"""Finds what a broker's Produce answer says of each partition, and where, so that it can be changed.

A frame here is what follows the four-byte size prefix. Versions 3 to 13, as `produce_frame` reads the requests.

Source: Kafka's message definitions ResponseHeader and ProduceResponse; KIP-482, KIP-516.
"""

import struct
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from gateway.produce.produce_frame import MIN_PRODUCE_VERSION, TOPIC_ID_VERSION, ProduceRequestView
from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TopicId
from replication.wire.kafka_frame import FrameCursor

_OUTCOME = struct.Struct(">hq")  # error, base offset
_REFUSAL = struct.Struct(">hqq")  # error, base offset, log append time
_LOG_START_OFFSET_VERSION: Final = 5
_RECORD_ERRORS_VERSION: Final = 8
_THROTTLE = struct.Struct(">i")
_APPEND_TIME_BYTES = _LOG_START_BYTES = 8
_CORRELATION_BYTES: Final = 4
_MIN_PARTITION_BYTES: Final = 22
_MIN_TOPIC_BYTES: Final = 2

NO_OFFSET: Final = -1


class ResponsePartition(NamedTuple):
    """One partition of a Produce response: its error, offsets, and their positions in the frame."""

    topic: TopicId | str
    """Its id from version 13 on, its name before."""
    partition: int
    error: int
    base_offset: int
    outcome_at: int
    """Where error, base offset and log append time stand in the frame."""


class ProduceResponseView(NamedTuple):
    """A Produce response's partitions, in the order of the frame."""

    partitions: list[ResponsePartition]
    throttle_at: int
    """Where throttle_time_ms stands in the frame."""


def scan_produce_response(answer: Buffer, api_version: int) -> ProduceResponseView:
    """Find what a Produce response says of each partition, and where. Raises MalformedFrameError."""
    cursor = FrameCursor(answer)
    cursor.skip(_CORRELATION_BYTES)
    is_flexible = api_version >= MIN_PRODUCE_VERSION
    if is_flexible:
        cursor.skip_tagged_fields()
    found: list[ResponsePartition] = []
    for _ in range(_array_length(cursor, is_flexible, _MIN_TOPIC_BYTES)):
        topic = _topic(cursor, api_version)
        for _ in range(_array_length(cursor, is_flexible, _MIN_PARTITION_BYTES)):
            found.append(_partition(cursor, topic, api_version))
        if is_flexible:
            cursor.skip_tagged_fields()
    throttle_at = cursor.position
    cursor.skip(_THROTTLE.size)
    if is_flexible:
        cursor.skip_tagged_fields()
    cursor.expect_end()
    return ProduceResponseView(found, throttle_at)


def throttle_ms(answer: Buffer, view: ProduceResponseView) -> int:
    """Return for how long a Produce response tells the client to send nothing, in milliseconds."""
    return int(_THROTTLE.unpack_from(answer, view.throttle_at)[0])


def set_throttle_ms(answer: bytearray, view: ProduceResponseView, throttle_ms: int) -> None:
    """Replace the throttle time in a Produce response, in milliseconds."""
    _THROTTLE.pack_into(answer, view.throttle_at, throttle_ms)


def refuse(answer: bytearray, found: ResponsePartition, error: int) -> None:
    """Replace a partition's success in a Produce response by this error."""
    _REFUSAL.pack_into(answer, found.outcome_at, error, NO_OFFSET, NO_OFFSET)


def refuse_all(request: ProduceRequestView, error: int, message: str) -> bytes:
    """Encode a Produce response that refuses all partitions of a request, with a message from version 8 on."""
    from kafka.protocol.producer import ProduceResponse

    kind = ProduceResponse.TopicProduceResponse
    refused = partial(
        kind.PartitionProduceResponse,
        error_code=error,
        base_offset=NO_OFFSET,
        log_append_time_ms=NO_OFFSET,
        log_start_offset=NO_OFFSET,
        record_errors=[],
        error_message=message,
    )
    topics = [
        kind(
            name=one.topic_name or "",
            topic_id=UUID(bytes=one.topic_id or bytes(16)),
            partition_responses=[refused(index=one.partition)],
        )
        for one in request.fields
    ]
    answer = ProduceResponse(responses=topics, throttle_time_ms=0, version=request.api_version)
    answer.with_header(correlation_id=request.correlation_id)
    return bytes(answer.encode(header=True))


def _topic(cursor: FrameCursor, api_version: int) -> TopicId | str:
    if api_version >= TOPIC_ID_VERSION:
        return cursor.topic_id()
    return cursor.compact_string() if api_version >= MIN_PRODUCE_VERSION else cursor.string()


def _partition(cursor: FrameCursor, topic: TopicId | str, api_version: int) -> ResponsePartition:
    partition = cursor.int32()
    outcome_at = cursor.position
    error, base_offset = cursor.fields(_OUTCOME)
    cursor.skip(_APPEND_TIME_BYTES)
    if api_version >= _LOG_START_OFFSET_VERSION:
        cursor.skip(_LOG_START_BYTES)
    is_flexible = api_version >= MIN_PRODUCE_VERSION
    if api_version >= _RECORD_ERRORS_VERSION:
        for _ in range(_array_length(cursor, is_flexible, 5)):
            cursor.int32()
            _skip_string(cursor, is_flexible)
            if is_flexible:
                cursor.skip_tagged_fields()
        _skip_string(cursor, is_flexible)
    if is_flexible:
        cursor.skip_tagged_fields()
    return ResponsePartition(topic, partition, error, base_offset, outcome_at)


def _array_length(cursor: FrameCursor, is_flexible: bool, min_item_bytes: int) -> int:
    return cursor.array_length(min_item_bytes) if is_flexible else cursor.inflexible_array_length(min_item_bytes)


def _skip_string(cursor: FrameCursor, is_flexible: bool) -> None:
    size = cursor.unsigned_varint() - 1 if is_flexible else cursor.int16()
    cursor.skip(max(size, 0))
