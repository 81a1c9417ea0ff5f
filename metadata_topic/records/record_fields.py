"""The common parts of all records of the metadata topic, and the error for undecodable ones.

A value begins with a format version, then the record's type and its fields, big endian.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

from kafka_log.byte_cursor import ByteCursor

FORMAT_VERSION: Final = 1
DIGEST_VERSION: Final = 2
"""The version of records whose entries have digests."""
_TYPES_WITH_DIGESTS: Final = (b"\x01", b"\x04", b"\x13")
"""Combined segments, from their writers and from a rebuild; committed archive objects."""
FOREIGN_KEY: Final = "foreign_key"
"""The fault of a record that is no agent's."""
HIGHEST_INCARNATION: Final = 2**48 - 1


class UndecodableRecordError(ValueError):
    """The record is not one of the agents', is damaged, or has another format. `reason` is a short label for
    counting."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}")


class RecordReader(ByteCursor):
    """Reads fields from a record's value. Raises UndecodableRecordError when it is too short."""

    __slots__ = ()

    def fault(self, reason: str, detail: str) -> UndecodableRecordError:
        return UndecodableRecordError(reason, detail)

    def read_rest(self) -> bytes:
        return bytes(self.take(self.left))

    def rows(self, layout: struct.Struct, count: int) -> Iterator[tuple[Any, ...]]:
        """Read `count` rows, after checking that there is room for them."""
        return layout.iter_unpack(self.take(count * layout.size))

    def end(self) -> None:
        if self.left:
            raise self.fault("trailing", f"{self.left} bytes after the end")


def value_of_known_version(value: bytes | None) -> bytes:
    """Return the value if its format version is known and it has a record type. Raises UndecodableRecordError."""
    if value is None:
        raise UndecodableRecordError("no_value", "a tombstone; this topic has none")
    newest = DIGEST_VERSION if value[1:2] in _TYPES_WITH_DIGESTS else FORMAT_VERSION
    if value and not FORMAT_VERSION <= value[0] <= newest:
        raise UndecodableRecordError("version", f"format version {value[0]}, this reader knows {newest}")
    if len(value) < 2:
        raise UndecodableRecordError("truncated", "the value ends before the record type")
    return value


def packed(subject: str, layout: struct.Struct, *fields: object) -> bytes:
    """Pack fields as bytes. Raises ValueError, which names the `subject`, when a field does not fit the format."""
    try:
        return layout.pack(*fields)
    except struct.error as error:
        raise ValueError(f"{subject}: {error}") from error
