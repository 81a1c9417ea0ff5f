"""The combined segment's bytes: header, record batches, footer, trailer. Sans-IO.

docs/formats.md has the byte tables.

An object is written once and whole. While batches are gathered it is an OpenCombinedSegment; `seal` lays it out and
returns a SealedCombinedSegment, whose entries know their positions. The payloads are never copied: a sealed segment is
a list of chunks, which a backend writes in order.

If batches are already stored elsewhere (`plugin.adopted_records`), a table of them comes behind the records that the
object holds, and positions are those that all records would have. That is version 2; all others are version 1.

The footer holds the header's checksum, so a header and a footer of different objects do not match. A reader starts from
the object's end: trailer, then footer, then header. All reading functions accept untrusted bytes, and raise ValueError
naming what is wrong.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kafka_log.crc32c import crc32c
from plugin.adopted_records import RECORDS_START, AdoptedRecords, AdoptionTable, RecordsList
from plugin.format import entry_columns
from plugin.format.adoption_note import AdoptionNote
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry

FORMAT_VERSION: Final = 1
ADOPTING_VERSION: Final = 2
"""The version of objects with batches that are elsewhere."""
VERSIONS: Final = (FORMAT_VERSION, ADOPTING_VERSION)
HEADER_BYTES: Final = RECORDS_START
TRAILER_BYTES: Final = 16
MAX_CLUSTER_ID_BYTES: Final = 64

_HEADER_MAGIC: Final = b"RWALSEG\n"
_TRAILER_MAGIC: Final = b"\nRWALEND"
_HEADER: Final = struct.Struct("<8sHHIQQq64sI")
_VERSION: Final = struct.Struct("<H")
_VERSION_AT: Final = 8
_CRC: Final = struct.Struct("<I")
_TABLE: Final = struct.Struct("<III")
"""Position of the table of adopted batches, its length and checksum."""
_TRAILER: Final = struct.Struct("<II8s")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """A combined segment's header: cluster, object id and time."""

    cluster_id: str
    combined_segment_id: CombinedSegmentId
    created_ms: int
    """The writing agent's wall clock, milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class SealedCombinedSegment:
    """A complete object, ready to be written; `chunks` in order are its bytes."""

    header: SegmentHeader
    entries: tuple[RemoteLogSegmentMetadataEntry, ...]
    chunks: tuple[bytes | memoryview, ...]
    size_bytes: int
    note: AdoptionNote | None = None
    """Present if some of its batches are stored elsewhere."""


@dataclass(slots=True)
class OpenCombinedSegment:
    """A combined segment that is being gathered, batch by batch. Not thread-safe."""

    header: SegmentHeader
    _entries: list[RemoteLogSegmentMetadataEntry] = field(default_factory=list)
    _records: list[bytes | memoryview | AdoptedRecords] = field(default_factory=list)
    _position: int = HEADER_BYTES

    def append(self, entry: RemoteLogSegmentMetadataEntry, records: bytes | memoryview | AdoptedRecords) -> None:
        """Add the batches of one entry. The positions and checksum in `entry` are ignored.

        The entry's SHA-256 is kept, but not written into the footer. Raises ValueError when there are no records.
        """
        if not len(records):
            raise ValueError(f"no records for {entry.topic_id_partition}")
        end = self._position + len(records)
        self._entries.append(
            RemoteLogSegmentMetadataEntry(
                entry.topic_id_partition,
                entry.leader_epoch,
                entry.first_offset,
                entry.last_offset,
                self._position,
                end,
                crc32c(records.records if isinstance(records, AdoptedRecords) else records),
                entry.sha256,
            )
        )
        self._records.append(records)
        self._position = end

    def seal(self) -> SealedCombinedSegment:
        """Lay out the complete object. Raises ValueError when a value does not fit the format."""
        table = AdoptionTable.of(self._records, HEADER_BYTES)
        inline = _inline(self._records)
        header = encode_header(self.header, ADOPTING_VERSION if table.lines else FORMAT_VERSION)
        middle, place, note = b"", b"", None
        if table.lines:
            middle = table.encode()
            note = AdoptionNote.of(table, middle, HEADER_BYTES + sum(map(len, inline)))
            place = _TABLE.pack(note.table_start, note.table_bytes, note.table_crc32c)
        footer = header[-_CRC.size :] + place + entry_columns.encode(self._entries)
        trailer = _TRAILER.pack(len(footer), crc32c(footer), _TRAILER_MAGIC)
        chunks = (header, *inline, middle + footer + trailer)
        return SealedCombinedSegment(self.header, tuple(self._entries), chunks, sum(map(len, chunks)), note)


def _inline(records_list: RecordsList) -> list[bytes | memoryview]:
    chunks: list[bytes | memoryview] = []
    for records in records_list:
        chunks += records.inline if isinstance(records, AdoptedRecords) else (records,)
    return chunks


@dataclass(frozen=True, slots=True)
class FooterLocation:
    """The footer's position in the object, [start, end), and the checksum that its bytes must have."""

    start: int
    end: int
    crc32c: int


def encode_header(header: SegmentHeader, version: int = FORMAT_VERSION) -> bytes:
    """Encode a header as HEADER_BYTES bytes. Raises ValueError when a value does not fit."""
    cluster_id = header.cluster_id.encode("ascii")
    if not 0 < len(cluster_id) <= MAX_CLUSTER_ID_BYTES:
        raise ValueError(f"a cluster id has 1 to {MAX_CLUSTER_ID_BYTES} characters, not {len(cluster_id)}")
    broker_id, incarnation, sequence = header.combined_segment_id
    try:
        raw = _HEADER.pack(
            _HEADER_MAGIC, version, len(cluster_id), broker_id, incarnation, sequence,
            header.created_ms, cluster_id, 0,
        )  # fmt: skip
    except struct.error as error:
        raise ValueError(f"the header of {header.combined_segment_id} does not fit: {error}") from error
    return raw + _CRC.pack(crc32c(raw))


def decode_header(raw: bytes) -> SegmentHeader:
    """Parse a header from an object's first HEADER_BYTES bytes. Raises ValueError."""
    if len(raw) < HEADER_BYTES:
        raise ValueError(f"the object ends at byte {len(raw)}, inside its header")
    magic, version, id_length, broker_id, incarnation, sequence, created_ms, cluster_id, reserved = _HEADER.unpack_from(
        raw
    )
    if magic != _HEADER_MAGIC:
        raise ValueError("no combined segment: wrong magic at byte 0")
    if version not in (FORMAT_VERSION, ADOPTING_VERSION):
        raise ValueError(
            f"format version {version} at byte 8; this reader knows {FORMAT_VERSION} and {ADOPTING_VERSION}"
        )
    if _CRC.unpack_from(raw, _HEADER.size)[0] != crc32c(raw[: _HEADER.size]):
        raise ValueError(f"the header's checksum at byte {_HEADER.size} is wrong")
    if not 0 < id_length <= MAX_CLUSTER_ID_BYTES or cluster_id[id_length:].strip(b"\0") or reserved:
        raise ValueError("the header's cluster id at byte 40 is malformed")
    return SegmentHeader(
        cluster_id[:id_length].decode("ascii"),
        CombinedSegmentId(broker_id, incarnation, sequence),
        created_ms,
    )


def locate_footer(trailer: bytes, object_bytes: int) -> FooterLocation:
    """Find the footer from the object's last TRAILER_BYTES bytes and its size. Raises ValueError."""
    if object_bytes < HEADER_BYTES + TRAILER_BYTES or len(trailer) != TRAILER_BYTES:
        raise ValueError(f"an object of {object_bytes} bytes is too short for a combined segment")
    length, crc, magic = _TRAILER.unpack(trailer)
    end = object_bytes - TRAILER_BYTES
    if magic != _TRAILER_MAGIC:
        raise ValueError(f"no combined segment, or cut off: wrong magic at byte {object_bytes - len(magic)}")
    if not _CRC.size <= length <= end - HEADER_BYTES:
        raise ValueError(f"a footer of {length} bytes does not fit, says the trailer at byte {end}")
    return FooterLocation(end - length, end, crc)


def decode_footer(
    header: bytes, footer: bytes, location: FooterLocation
) -> tuple[SegmentHeader, tuple[RemoteLogSegmentMetadataEntry, ...]]:
    """Parse header and entries of one object, checked against each other and against the object's layout.

    Raises ValueError when a checksum is wrong, the two belong to different objects, or the entries do not fill the
    space between header and footer exactly.
    """
    if len(footer) != location.end - location.start or crc32c(footer) != location.crc32c:
        raise ValueError(f"the footer's checksum is wrong, bytes {location.start} to {location.end}")
    decoded = decode_header(header)
    if footer[: _CRC.size] != header[_HEADER.size : HEADER_BYTES]:
        raise ValueError(f"the footer at byte {location.start} belongs to another header")
    place = table_place(header, footer)
    columns_at = _CRC.size + (_TABLE.size if place is not None else 0)
    try:
        entries = entry_columns.decode(memoryview(footer)[columns_at:])
    except ValueError as error:
        raise ValueError(f"footer at byte {location.start + columns_at}: {error}") from error
    if place is not None and place[0] + place[1] != location.start:
        raise ValueError(f"the table of adopted batches does not end at byte {location.start}")
    if not _fills(entries, location.start if place is None else None):
        raise ValueError(f"the entries do not fill bytes {HEADER_BYTES} to {location.start}")
    return decoded, entries


def table_place(header: bytes, footer: bytes) -> tuple[int, int, int] | None:
    """Return position, length and CRC of an object's adoption table; None if the object holds all its records.

    The input has passed `decode_footer`. Raises ValueError if the footer is too short.
    """
    if _VERSION.unpack_from(header, _VERSION_AT)[0] != ADOPTING_VERSION:
        return None
    if len(footer) < _CRC.size + _TABLE.size:
        raise ValueError(f"a footer of {len(footer)} bytes does not say where the table of adopted batches is")
    start, length, crc = _TABLE.unpack_from(footer, _CRC.size)
    return start, length, crc


def _fills(entries: Sequence[RemoteLogSegmentMetadataEntry], end: int | None) -> bool:
    """Whether the entries fill the object. `end` is None if records are elsewhere, not in the object."""
    expected = HEADER_BYTES
    for entry in entries:
        if entry.start_file_position != expected:
            return False
        expected = entry.end_file_position
    return end is None or expected == end
