"""Builds record batches of magic 2 with correct checksums, for the tests of every package."""

import struct
from collections.abc import Sequence

from kafka_log.crc32c import crc32c

_AFTER_CRC = struct.Struct(">hiqqqhii")
_BEFORE_CRC = struct.Struct(">qiibI")


def varint(value: int) -> bytes:
    """Kafka's zigzag variable-length integer."""
    encoded = (value << 1) ^ (value >> 63)
    out = bytearray()
    while encoded > 0x7F:
        out.append((encoded & 0x7F) | 0x80)
        encoded >>= 7
    out.append(encoded)
    return bytes(out)


Headers = Sequence[tuple[str, bytes | None]]


def record(
    offset_delta: int, value: bytes | None, key: bytes | None = None, *, delta_ms: int = 0, headers: Headers = ()
) -> bytes:
    names = b"".join(_nullable(name.encode(errors="surrogateescape")) + _nullable(header) for name, header in headers)
    fields = varint(delta_ms) + varint(offset_delta) + _nullable(key) + _nullable(value) + varint(len(headers)) + names
    body = b"\x00" + fields
    return varint(len(body)) + body


def _nullable(field: bytes | None) -> bytes:
    return varint(-1) if field is None else varint(len(field)) + field


def batch(
    base_offset: int = 0,
    records: int = 1,
    leader_epoch: int = 0,
    payload: bytes = b"x",
    *,
    key: bytes | None = None,
    attributes: int = 0,
    timestamp_ms: int = 1_700_000_000_000,
    producer_id: int = -1,
) -> bytes:
    """A batch of `records` records from `base_offset` on, each with `payload` as its value."""
    body = b"".join(record(delta, payload, key) for delta in range(records))
    return batch_around(
        body,
        base_offset,
        records,
        leader_epoch,
        attributes=attributes,
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
    )


def batch_around(
    body: bytes,
    base_offset: int,
    records: int,
    leader_epoch: int = 0,
    *,
    attributes: int = 0,
    timestamp_ms: int = 1_700_000_000_000,
    max_timestamp_ms: int | None = None,
    producer_id: int = -1,
) -> bytes:
    """A batch of records that are already encoded, and compressed as the attributes say."""
    has_producer = producer_id >= 0
    after_crc = (
        _AFTER_CRC.pack(
            attributes,
            records - 1,
            timestamp_ms,
            timestamp_ms if max_timestamp_ms is None else max_timestamp_ms,
            producer_id,
            0 if has_producer else -1,
            0 if has_producer else -1,
            records,
        )
        + body
    )
    return _BEFORE_CRC.pack(base_offset, 9 + len(after_crc), leader_epoch, 2, crc32c(after_crc)) + after_crc


def batches(count: int, base_offset: int = 0, records: int = 1, leader_epoch: int = 0, payload: bytes = b"x") -> bytes:
    """`count` such batches one after the other, without holes between their offsets."""
    return b"".join(batch(base_offset + index * records, records, leader_epoch, payload) for index in range(count))
