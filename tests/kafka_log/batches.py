"""Builds record batches of magic 2 with correct checksums, for the tests of every room."""

import struct

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


def record(offset_delta: int, value: bytes, key: bytes | None = None) -> bytes:
    """One record without headers, its length in front."""
    key_field = varint(-1) if key is None else varint(len(key)) + key
    body = b"\x00" + varint(0) + varint(offset_delta) + key_field + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


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
    has_producer = producer_id >= 0
    after_crc = (
        _AFTER_CRC.pack(
            attributes,
            records - 1,
            timestamp_ms,
            timestamp_ms,
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
