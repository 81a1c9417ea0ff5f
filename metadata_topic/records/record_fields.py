"""What all records of the metadata topic have in common: a format version first, then the record's type and its fields,
big endian; and the error that says why one is not understood.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

from kafka_log.byte_cursor import ByteCursor

FORMAT_VERSION: Final = 1
DIGEST_VERSION: Final = 2
"""Of records whose entries have digests; an agent that knows the first version alone keeps them as bytes."""
_TYPES_WITH_DIGESTS: Final = (b"\x01", b"\x04", b"\x11")
"""Combined segments, as their writers and as a rebuild tell of them; committed archive objects."""
HIGHEST_INCARNATION: Final = 2**48 - 1


class UndecodableRecordError(ValueError):
    """Not one of our records, a damaged one, or one of a newer format. `reason` is a short label for
    counting; `newer` says that a newer reader could decode it.
    """

    def __init__(self, reason: str, detail: str, newer: bool = False) -> None:
        self.reason = reason
        self.newer = newer
        super().__init__(f"{reason}: {detail}")


class RecordReader(ByteCursor):
    """Takes fields off a value. Raises UndecodableRecordError."""

    __slots__ = ()

    def fault(self, reason: str, detail: str) -> UndecodableRecordError:
        return UndecodableRecordError(reason, detail)

    def rest(self) -> bytes:
        return bytes(self.take(self.left))

    def rows(self, layout: struct.Struct, count: int) -> Iterator[tuple[Any, ...]]:
        """The count is held against what is there before anything is made of it."""
        return layout.iter_unpack(self.take(count * layout.size))

    def end(self) -> None:
        if self.left:
            raise self.fault("trailing", f"{self.left} bytes after the end")


def value_of_known_version(value: bytes | None) -> bytes:
    """The value, which has a record type. Raises UndecodableRecordError."""
    if value is None:
        raise UndecodableRecordError("no_value", "a tombstone; this topic has none")
    newest = DIGEST_VERSION if value[1:2] in _TYPES_WITH_DIGESTS else FORMAT_VERSION
    if value and not FORMAT_VERSION <= value[0] <= newest:
        detail = f"format version {value[0]}, this reader knows {newest}"
        raise UndecodableRecordError("version", detail, newer=value[0] > newest)
    if len(value) < 2:
        raise UndecodableRecordError("truncated", "the value ends before the record type")
    return value


def packed(subject: str, layout: struct.Struct, *fields: object) -> bytes:
    """Raises ValueError that names the subject when a field is beyond what the format holds."""
    try:
        return layout.pack(*fields)
    except struct.error as error:
        raise ValueError(f"{subject}: {error}") from error
