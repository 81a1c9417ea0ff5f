"""Reads records of uncompressed batches (magic 2), for logs with few and small records.

Source: org.apache.kafka.common.record.internal.DefaultRecord in Apache Kafka 4.3.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kafka_log.errors import MalformedFileError
from kafka_log.flexible_encoding import MalformedMessageError, MessageReader
from kafka_log.record_batch import (
    BATCH_OVERHEAD_BYTES,
    BatchSpan,
    CorruptBatchError,
    RecordBatchHeader,
    scan_batches,
    verify_batches,
)


class PlainRecord(NamedTuple):
    """A record of a log."""

    offset: int
    key: bytes | None
    value: bytes | None


class PlainFile:
    """A segment, or a snapshot of KRaft's. Raises MalformedFileError when it is not understood, OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._raw = path.read_bytes()
        try:
            spans = scan_batches(self._raw, 0, len(self._raw))
        except CorruptBatchError as error:
            raise MalformedFileError(path, 0, str(error)) from error
        sound = verify_batches(self._raw, spans)
        self.batches = spans[:sound]
        """Batches up to the first damaged one."""
        self.damaged = spans[sound] if sound < len(spans) else None

    def records(self, batch: BatchSpan) -> Iterator[PlainRecord]:
        """Yield the records of one of the batches; none for a control batch."""
        try:
            header = RecordBatchHeader.parse(self._raw, batch.start)
            if header.is_control:
                return
            if header.codec != "none":
                raise MalformedFileError(self._path, 0, f"batch {batch.base_offset} is compressed with {header.codec}")
            reader = _RecordReader(self._raw[batch.start + BATCH_OVERHEAD_BYTES : batch.end])
            for _ in range(header.record_count):
                yield reader.record(header.base_offset)
        except (CorruptBatchError, MalformedMessageError) as error:
            raise MalformedFileError(self._path, 0, str(error)) from error


class _RecordReader(MessageReader):
    """Reads records, whose lengths are zigzag varints."""

    __slots__ = ()

    def record(self, base_offset: int) -> PlainRecord:
        """Read the next record."""
        length = self.signed_varint()
        left_behind = self.left - length
        self.take(1)
        self.signed_varint(64)
        offset = base_offset + self.signed_varint()
        key, value = self._nullable(), self._nullable()
        self.take(self.left - left_behind)
        return PlainRecord(offset, key, value)

    def _nullable(self) -> bytes | None:
        size = self.signed_varint()
        return None if size < 0 else bytes(self.take(size))
