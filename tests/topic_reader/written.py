"""Batches as producers write them, with every codec."""

import gzip
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from kafka_log.record_batch import CODECS
from kafka_log.zstd import ZstdCompressor
from tests.kafka_log.batches import Headers, batch_around, record

XERIAL = b"\x82SNAPPY\x00" + (1).to_bytes(4, "big") * 2
TRANSACTIONAL, CONTROL, LOG_APPEND_TIME = 0x10, 0x20, 0x08
BASE_MS = 1_700_000_000_000


class Written(NamedTuple):
    key: bytes | None = None
    value: bytes | None = b"x"
    timestamp_ms: int = BASE_MS
    headers: Headers = ()


def compressed(body: bytes, codec: str) -> bytes:
    """As producers do: librdkafka's snappy is plain, `xerial` is that of Java, in blocks."""
    match codec:
        case "none":
            return body
        case "gzip":
            return gzip.compress(body)
        case "zstd":  # of unknown size, as a stream that is written
            writer = ZstdCompressor()
            return writer.compress(body) + writer.flush()
        case "xerial":
            blocks = [compressed(body[at : at + 100], "snappy") for at in range(0, len(body), 100)]
            return XERIAL + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
        case _:
            return bytes(pa.Codec(codec).compress(body, asbytes=True))


def written_batch(
    base_offset: int,
    records: Sequence[Written],
    *,
    codec: str = "none",
    leader_epoch: int = 0,
    attributes: int = 0,
    appended_ms: int | None = None,
    producer_id: int = -1,
) -> bytes:
    """`appended_ms`: the broker's time, where the topic has LogAppendTime."""
    base_ms = records[0].timestamp_ms
    body = b"".join(
        record(delta, one.value, one.key, delta_ms=one.timestamp_ms - base_ms, headers=one.headers)
        for delta, one in enumerate(records)
    )
    attributes |= CODECS.index("snappy" if codec == "xerial" else codec)
    newest_ms = max(one.timestamp_ms for one in records) if appended_ms is None else appended_ms
    return batch_around(
        compressed(body, codec),
        base_offset,
        len(records),
        leader_epoch,
        attributes=attributes | (0 if appended_ms is None else LOG_APPEND_TIME),
        timestamp_ms=base_ms,
        max_timestamp_ms=newest_ms,
        producer_id=producer_id,
    )


def marker(base_offset: int, producer_id: int, *, commits: bool) -> bytes:
    key = b"\x00\x00\x00" + bytes([commits])
    attributes = TRANSACTIONAL | CONTROL
    return written_batch(base_offset, [Written(key, bytes(6))], attributes=attributes, producer_id=producer_id)
