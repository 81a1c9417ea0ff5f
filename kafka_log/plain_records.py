"""Reads the records of batches (magic 2): whatever the producer wrote, once it is decompressed.

Source: org.apache.kafka.common.record.internal.DefaultRecord in Apache Kafka 4.3.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kafka_log.byte_cursor import signed_varint
from kafka_log.errors import MalformedFileError
from kafka_log.flexible_encoding import MalformedMessageError
from kafka_log.record_batch import (
    BATCH_OVERHEAD_BYTES,
    BatchSpan,
    CorruptBatchError,
    RecordBatchHeader,
    scan_batches,
    verify_batches,
)

Headers = tuple[tuple[str, bytes | None], ...]


class PlainRecord(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    timestamp_type: int
    """0: by the producer (CreateTime); 1: by the broker (LogAppendTime)."""
    headers: Headers


class PlainFile:
    """Reads the records of a segment without compression, or of a KRaft snapshot.

    Raises MalformedFileError when it is damaged, OSError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.raw = path.read_bytes()
        try:
            spans = scan_batches(self.raw, 0, len(self.raw))
        except CorruptBatchError as error:
            raise MalformedFileError(path, 0, str(error)) from error
        sound = verify_batches(self.raw, spans)
        self.batches = spans[:sound]
        """Batches up to the first damaged one."""
        self.damaged = spans[sound] if sound < len(spans) else None

    def records(self, batch: BatchSpan) -> Iterator[PlainRecord]:
        """Yield the records of one of the batches; none for a control batch."""
        try:
            header = RecordBatchHeader.parse(self.raw, batch.start)
            if header.is_control:
                return
            if header.codec != "none":
                raise MalformedFileError(self._path, 0, f"batch {batch.base_offset} is compressed with {header.codec}")
            yield from decode_records(header, self.raw[batch.start + BATCH_OVERHEAD_BYTES : batch.end])
        except (CorruptBatchError, MalformedMessageError) as error:
            raise MalformedFileError(self._path, 0, str(error)) from error


def decode_records(header: RecordBatchHeader, body: bytes) -> Iterator[PlainRecord]:
    """Yield a batch's records; `body` is what follows the header, decompressed. Raises MalformedMessageError."""
    base_offset, base_ms = header.base_offset, header.base_timestamp_ms
    time_type = 1 if header.has_log_append_time else 0
    position, left = 0, len(body)
    new = tuple.__new__  # quicker than the named tuple's own
    try:
        for _ in range(header.record_count):
            size, position = signed_varint(body, position)
            end = position + size
            delta_ms, position = signed_varint(body, position + 1)  # behind the record's attributes
            delta, position = signed_varint(body, position)
            key, position = _nullable(body, position)
            value, position = _nullable(body, position)
            count, position = signed_varint(body, position)
            headers: Headers = ()
            if count:
                headers, position = _headers(body, position, count)
            if not position == end <= left:
                raise MalformedMessageError("record", f"record {delta} does not end where it says")
            time_ms = header.max_timestamp_ms if time_type else base_ms + delta_ms
            yield new(PlainRecord, (base_offset + delta, key, value, time_ms, time_type, headers))
    except (IndexError, ValueError) as error:
        raise MalformedMessageError("record", f"a record of the batch at {base_offset}: {error}") from error


def _nullable(body: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = signed_varint(body, position)
    if size < 0:
        return None, position
    end = position + size
    return body[position:end], end


def _headers(body: bytes, position: int, count: int) -> tuple[Headers, int]:
    if not 0 <= count <= len(body) - position:
        raise MalformedMessageError("count", f"{count} headers")
    found = []
    for _ in range(count):
        key, position = _nullable(body, position)
        value, position = _nullable(body, position)
        found.append(((key or b"").decode(errors="replace"), value))  # as Java's clients do
    return tuple(found), position
