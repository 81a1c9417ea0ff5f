"""Record batches that a combined segment does not hold, but names where a zone gateway stored them. Sans-IO.

When a broker keeps a batch as it came, it only sets base offset and leader epoch, twelve bytes that no checksum of the
batch covers. So what a gateway stored on a batch's way to its leader equals the log except for these bytes, and need
not be stored again. Such a segment (version 2 of the format) has a table with a line for each batch that is elsewhere;
its entries have the positions that they would have if all batches were in it.

docs/formats.md has the byte tables. All reading functions accept untrusted bytes, and raise ValueError naming
what is wrong.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from kafka_log.crc32c import crc32c
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CUSTOM_METADATA_MAX_BYTES

RECORDS_START: Final = 112
"""Position of a segment's records, behind its header."""
MAX_SOURCES: Final = 12
"""The most objects that one segment may name: so many fit the custom metadata."""
STAMPS: Final = ((0, 8), (12, 4))
"""Position and length in a batch of what the leader sets: base offset, leader epoch."""

_SOURCE: Final = struct.Struct("<IQQQH")
_LINE: Final = struct.Struct("<IHII8s4s")
_COUNTS: Final = struct.Struct("<HI")


class BatchSource(NamedTuple):
    """An object that a gateway wrote, and the custom metadata that locates it."""

    object_id: RouterObjectId
    custom_metadata: bytes
    """The custom metadata by which the storage manager finds it."""


class AdoptedBatch(NamedTuple):
    """A batch among an entry's records, and where a gateway has stored its bytes."""

    start: int
    """Position in the records."""
    length: int
    source: BatchSource
    source_start: int


@dataclass(frozen=True, slots=True)
class AdoptedRecords:
    """An entry's records as the log has them, some batches of which are in gateways' objects."""

    records: bytes | memoryview
    batches: tuple[AdoptedBatch, ...]
    """In their order; equal to what is stored there except for `STAMPS`."""

    def __len__(self) -> int:
        return len(self.records)

    def __bytes__(self) -> bytes:
        return bytes(self.records)

    @property
    def inline(self) -> list[memoryview]:
        """The parts of the records that are stored in the segment itself."""
        view, position = memoryview(self.records), 0
        parts: list[memoryview] = []
        for batch in self.batches:
            parts.append(view[position : batch.start])
            position = batch.start + batch.length
        return [part for part in (*parts, view[position:]) if len(part)]


RecordsList = Sequence[bytes | memoryview | AdoptedRecords]
"""The records of a segment's entries."""


class TableLine(NamedTuple):
    """A line of a segment's adoption table: a batch that is in a gateway's object."""

    start: int
    """Position in the segment, as if all records were in it."""
    inline_before: int
    """Bytes of records before it that are in the object."""
    length: int
    source: BatchSource
    source_start: int
    base_offset: bytes
    leader_epoch: bytes


@dataclass(frozen=True, slots=True)
class AdoptionTable:
    """A combined segment's table of batches that are in gateways' objects."""

    lines: tuple[TableLine, ...]

    @classmethod
    def of(cls, records_list: RecordsList, position: int) -> Self:
        """Build the table for the entries' records, the first of which begin at `position` in the segment."""
        lines: list[TableLine] = []
        inline = 0
        for records in records_list:
            if isinstance(records, AdoptedRecords):
                covered = 0
                for start, length, source, source_start in records.batches:
                    inline += start - covered
                    covered = start + length
                    stamps = (bytes(records.records[start + at : start + at + size]) for at, size in STAMPS)
                    lines.append(TableLine(position + start, inline, length, source, source_start, *stamps))
                inline += len(records) - covered
            else:
                inline += len(records)
            position += len(records)
        return cls(tuple(lines))

    @classmethod
    def read(cls, raw: bytes, crc: int, position: int = RECORDS_START) -> Self:
        """Decode a table whose bytes must have this CRC32C. Raises ValueError."""
        if crc32c(raw) != crc:
            raise ValueError(f"the checksum of the table of adopted batches is wrong, {len(raw)} bytes")
        return cls.decode(raw, position)

    @property
    def sources(self) -> tuple[BatchSource, ...]:
        """The gateways' objects that the table names, each once, in order of their first use."""
        return tuple(dict.fromkeys(line.source for line in self.lines))

    def encode(self) -> bytes:
        """Encode the table as bytes. Raises ValueError when a value does not fit."""
        sources = {source: index for index, source in enumerate(self.sources)}
        if len(sources) > MAX_SOURCES:
            raise ValueError(f"batches of {len(sources)} objects; a segment names {MAX_SOURCES}")
        try:
            parts = [_COUNTS.pack(len(sources), len(self.lines))]
            for object_id, custom_metadata in sources:
                parts += (_SOURCE.pack(*object_id, len(custom_metadata)), custom_metadata)
            inline = 0
            for line in self.lines:
                before = line.inline_before - inline
                inline = line.inline_before
                parts.append(
                    _LINE.pack(
                        before,
                        sources[line.source],
                        line.source_start,
                        line.length,
                        line.base_offset,
                        line.leader_epoch,
                    )
                )
        except struct.error as error:
            raise ValueError(f"the table of adopted batches does not fit: {error}") from error
        return b"".join(parts)

    @classmethod
    def decode(cls, raw: bytes, position: int) -> Self:
        """Decode a table from bytes; the segment's records begin at `position`. Raises ValueError."""
        try:
            source_count, line_count = _COUNTS.unpack_from(raw)
            if source_count > MAX_SOURCES:
                raise ValueError(f"the table of adopted batches names {source_count} objects")
            at = _COUNTS.size
            sources: list[BatchSource] = []
            for _ in range(source_count):
                *numbers, length = _SOURCE.unpack_from(raw, at)
                at += _SOURCE.size + length
                if length > CUSTOM_METADATA_MAX_BYTES or at > len(raw):
                    raise ValueError(f"custom metadata of {length} bytes in the table of adopted batches")
                sources.append(BatchSource(RouterObjectId(*numbers), raw[at - length : at]))
        except struct.error as error:
            raise ValueError(f"the table of adopted batches ends at byte {len(raw)}") from error
        if line_count * _LINE.size != len(raw) - at:
            raise ValueError(f"{line_count} adopted batches in {len(raw) - at} bytes")
        return cls(tuple(_lines(raw[at:], sources, position)))


def _lines(raw: bytes, sources: Sequence[BatchSource], position: int) -> Iterator[TableLine]:
    inline = 0
    for before, source, source_start, length, base_offset, leader_epoch in _LINE.iter_unpack(raw):
        if source >= len(sources) or length < sum(STAMPS[-1]):
            raise ValueError(f"an adopted batch of {length} bytes in object {source} of {len(sources)}")
        inline += before
        position += before
        yield TableLine(position, inline, length, sources[source], source_start, base_offset, leader_epoch)
        position += length


def stamped(line: TableLine, data: bytes, at: int) -> bytes:
    """Return a batch, or its end from byte `at` on, as the log has it: the stored bytes with the fields that the
    leader set."""
    if at >= sum(STAMPS[-1]):
        return data
    stored = bytearray(data)
    for (start, size), stamp in zip(STAMPS, (line.base_offset, line.leader_epoch), strict=True):
        begin, end = max(start, at), min(start + size, at + len(data))
        if begin < end:
            stored[begin - at : end - at] = stamp[begin - start : end - start]
    return bytes(stored)
