"""Record batches of magic 2, the only kind that Kafka 4 writes, as in segment files and in Fetch frames.

The hot path reads nothing but headers: 27 bytes say where a batch begins and ends, who wrote it and what its
checksum is. The layout is Kafka's DefaultRecordBatch; integers are big endian:

    0 base offset (8), 8 length (4), 12 partition leader epoch (4), 16 magic (1), 17 crc (4),
    21 attributes (2), 23 last offset delta (4), 27 base timestamp (8), 35 max timestamp (8),
    43 producer id (8), 51 producer epoch (2), 53 base sequence (4), 57 record count (4), 61 records

`length` counts from the leader epoch on; the checksum covers everything from the attributes on. Base offset
and leader epoch are outside of it: the leader sets them after the producer computed the checksum.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from kafka_log.crc32c import Buffer, crc32c

BATCH_OVERHEAD_BYTES = 61
"""The header of a batch, up to its first record."""
LOG_OVERHEAD_BYTES = 12
"""Base offset and length, which the length does not count."""
HEADER_PREFIX_BYTES = 21
"""Base offset to checksum. Two batches with the same prefix and valid checksums have the same bytes."""
MAGIC = 2
MIN_LENGTH = BATCH_OVERHEAD_BYTES - LOG_OVERHEAD_BYTES
MAX_BATCH_BYTES = 128 * 1024 * 1024
"""Anything longer is no batch: `message.max.bytes` is some MB, and a request at most 100 MiB by default."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Names of the codec ids in the attributes' lowest three bits."""

_SPAN = struct.Struct(">qiibI2xi")
_HEADER = struct.Struct(">qiibIhiqqqhii")


class CorruptBatchError(Exception):
    """The bytes at `position` of the buffer are no record batch of magic 2."""

    def __init__(self, position: int, reason: str) -> None:
        self.position = position
        self.reason = reason
        super().__init__(f"no record batch at byte {position}: {reason}")


class BatchSpan(NamedTuple):
    """One batch in a scanned buffer: offsets, leader epoch, and position."""

    base_offset: int
    last_offset: int
    """Inclusive."""
    leader_epoch: int
    crc: int
    start: int
    end: int
    """Exclusive, like all ends of positions here."""


def header_fault(length: int, magic: int, base_offset: int, last_offset_delta: int, next_offset: int) -> str | None:
    """Return what is wrong with a batch header; None if it is valid. Its base offset may not be below `next_offset`."""
    if magic != MAGIC:
        return f"magic {magic}, expected {MAGIC}"
    if not MIN_LENGTH <= length <= MAX_BATCH_BYTES - LOG_OVERHEAD_BYTES:
        return f"length {length}"
    if last_offset_delta < 0:
        return f"last offset delta {last_offset_delta}"
    if base_offset < next_offset:
        return f"base offset {base_offset}, expected {next_offset} or more"
    return None


def scan_batches(buffer: Buffer, start: int, end: int) -> list[BatchSpan]:
    """Return all complete batches in `buffer[start:end]`, which must begin with one. Checksums are not checked.

    Ends silently at a batch that is cut off by `end`, and at the zeros that end a preallocated file. Raises
    CorruptBatchError at the first invalid header, and when base offsets do not grow.
    """
    spans: list[BatchSpan] = []
    append = spans.append
    unpack = _SPAN.unpack_from
    new = tuple.__new__
    position = start
    next_offset = 0
    last_header = end - BATCH_OVERHEAD_BYTES
    while position <= last_header:
        base_offset, length, leader_epoch, magic, crc, last_offset_delta = unpack(buffer, position)
        if (
            magic != MAGIC
            or not 49 <= length <= 134217716  # MIN_LENGTH and MAX_BATCH_BYTES, spelt out for speed
            or last_offset_delta < 0
            or base_offset < next_offset
        ):
            if length == 0 and base_offset == 0:
                break
            reason = header_fault(length, magic, base_offset, last_offset_delta, next_offset)
            raise CorruptBatchError(position, reason or "")
        batch_end = position + LOG_OVERHEAD_BYTES + length
        if batch_end > end:
            break
        last_offset = base_offset + last_offset_delta
        append(new(BatchSpan, (base_offset, last_offset, leader_epoch, crc, position, batch_end)))
        next_offset = last_offset + 1
        position = batch_end
    return spans


def verify_batches(buffer: Buffer, spans: Sequence[BatchSpan]) -> int:
    """Return how many of the spans, from the first on, have bytes that match the checksum in their header."""
    with memoryview(buffer) as view:
        for index, span in enumerate(spans):
            if crc32c(view[span.start + HEADER_PREFIX_BYTES : span.end]) != span.crc:
                return index
    return len(spans)


@dataclass(frozen=True, slots=True)
class RecordBatchHeader:
    """The complete header of a batch, for tools; the hot path uses `scan_batches`."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    """-1 without an idempotent producer."""
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def parse(cls, buffer: Buffer, position: int = 0) -> Self:
        """Parse the header at `position`. Raises CorruptBatchError when there is none."""
        if len(buffer) - position < BATCH_OVERHEAD_BYTES:
            raise CorruptBatchError(position, f"{len(buffer) - position} bytes are less than a header")
        header = cls(*_HEADER.unpack_from(buffer, position))
        fault = header_fault(header.length, header.magic, header.base_offset, header.last_offset_delta, 0)
        if fault is not None:
            raise CorruptBatchError(position, fault)
        return header

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return LOG_OVERHEAD_BYTES + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> str:
        """One of CODECS; a newer codec is named by its id."""
        codec_id = self.attributes & 0x07
        return CODECS[codec_id] if codec_id < len(CODECS) else f"codec-{codec_id}"

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 0x10)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 0x20)

    @property
    def has_log_append_time(self) -> bool:
        """Whether the broker's time, `max_timestamp_ms`, is that of all records (LogAppendTime)."""
        return bool(self.attributes & 0x08)
