"""The part of a combined segment's custom metadata about records that it does not hold (`plugin.adopted_records`).

The custom metadata ends with a note: where the table of such batches is in the object, and which
objects it names. So a reader of a segment finds the table at once, and to find out whether a gateway's object is still
wanted, the metadata is enough.
"""

import hashlib
import struct
from typing import Final, NamedTuple, Self

from kafka_log.crc32c import crc32c
from plugin.adopted_records import AdoptionTable
from plugin.format.bucket_id import BUCKET_ID_BYTES
from plugin.router_object_id import RouterObjectId

_MARK: Final = hashlib.sha256(b"\0adopted records").digest()[:BUCKET_ID_BYTES]
"""No bucket's name has a NUL in it."""
_NOTE: Final = struct.Struct("<8sIIIB")
_ID_BYTES: Final = (4, 6, 5, 6)
_NAMED_BYTES: Final = sum(_ID_BYTES)


class AdoptionNote(NamedTuple):
    """The note in an object's custom metadata about its adoption table: where it is, and its CRC."""

    table_start: int
    """Position in the object."""
    table_bytes: int
    table_crc32c: int
    sources: tuple[RouterObjectId, ...]

    @classmethod
    def of(cls, table: AdoptionTable, encoded: bytes, table_start: int) -> Self:
        """Build the note for a table at this position in the object."""
        return cls(table_start, len(encoded), crc32c(encoded), tuple(one.object_id for one in table.sources))

    def encode(self) -> bytes:
        """Encode the note as bytes. Raises ValueError when a value does not fit."""
        try:
            head = _NOTE.pack(_MARK, *self[:3], len(self.sources))
            named = [number.to_bytes(size) for one in self.sources for number, size in zip(one, _ID_BYTES, strict=True)]
        except (struct.error, OverflowError) as error:
            raise ValueError(f"the note of adopted batches does not fit: {error}") from error
        return head + b"".join(named)


def split_note(custom_metadata: bytes) -> tuple[bytes, AdoptionNote | None]:
    """Return an object's custom metadata without its note, and the note. An unreadable note is left in place."""
    for start in (0, BUCKET_ID_BYTES):
        if custom_metadata.startswith(_MARK, start):
            note = _decode_note(custom_metadata[start:])
            return (custom_metadata[:start], note) if note is not None else (custom_metadata, None)
    return custom_metadata, None


def join_note(custom_metadata: bytes, note: AdoptionNote) -> bytes:
    """Append a note to an object's custom metadata; the inverse of `split_note`."""
    return custom_metadata + note.encode()


def _decode_note(raw: bytes) -> AdoptionNote | None:
    if len(raw) < _NOTE.size:
        return None
    _, table_start, table_bytes, table_crc32c, count = _NOTE.unpack_from(raw)
    if len(raw) != _NOTE.size + count * _NAMED_BYTES:
        return None
    sources: list[RouterObjectId] = []
    position = _NOTE.size
    for _ in range(count):
        numbers: list[int] = []
        for size in _ID_BYTES:
            numbers.append(int.from_bytes(raw[position : position + size]))
            position += size
        sources.append(RouterObjectId(*numbers))
    return AdoptionNote(table_start, table_bytes, table_crc32c, tuple(sources))
