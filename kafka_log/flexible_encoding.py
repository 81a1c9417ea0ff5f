"""Kafka's flexible encoding of messages (KIP-482), as in the records of its own topics. Read only.

Compact strings, bytes and arrays begin with an unsigned varint of their length + 1, where 0 is null; every structure
ends with tagged fields. Lengths and counts are checked against the bytes that are left before anything is made of
them.
"""

import struct
from typing import Final

_MAX_STRING_BYTES: Final = 0x7FFF


class MalformedMessageError(ValueError):
    """The bytes are not such a message; `reason` is a short label, the same for all with this fault."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}")


class MessageReader:
    """Kafka's flexible encoding, read from the front. Every method raises MalformedMessageError."""

    __slots__ = ("_position", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._raw) - self._position

    def take(self, size: int) -> bytes:
        start = self._advance(size)
        return self._raw[start : self._position]

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack_from(self._raw, self._advance(layout.size))

    def unsigned_varint(self) -> int:
        """At most 32 bits in at most five bytes."""
        number = 0
        for shift in range(0, 35, 7):
            byte = self._raw[self._advance(1)]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                if number > 0xFFFFFFFF:
                    break
                return number
        raise MalformedMessageError("varint", "a varint of more than 32 bits")

    def uuid(self) -> bytes:
        return self.take(16)

    def compact_string(self) -> str:
        length = self.unsigned_varint() - 1
        if not 0 <= length <= _MAX_STRING_BYTES:
            raise MalformedMessageError("string", f"a string of {length} bytes")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedMessageError("string", "it is not UTF-8") from error

    def compact_nullable_bytes(self) -> bytes | None:
        length = self.unsigned_varint() - 1
        return None if length < 0 else self.take(length)

    def compact_array_count(self, least_element_bytes: int, *, nullable: bool = False) -> int:
        """How many elements follow; there is room for them. A `nullable` array that is null has none."""
        count = self.unsigned_varint() - 1
        if count < 0:
            if nullable:
                return 0
            raise MalformedMessageError("count", "an array is null")
        if count * least_element_bytes > self.left:
            raise MalformedMessageError("count", f"{count} elements cannot stand in {self.left} bytes")
        return count

    def skip_tagged_fields(self) -> None:
        self.tagged_fields()

    def tagged_fields(self) -> dict[int, bytes]:
        """The fields' bytes by tag."""
        count = self.unsigned_varint()
        if count * 2 > self.left:
            raise MalformedMessageError("count", f"{count} tagged fields cannot stand in {self.left} bytes")
        found = {}
        for _ in range(count):
            tag = self.unsigned_varint()
            found[tag] = self.take(self.unsigned_varint())
        return found

    def _advance(self, size: int) -> int:
        """Where the next `size` bytes begin."""
        start = self._position
        if size > len(self._raw) - start:
            raise MalformedMessageError("truncated", f"{size} bytes are wanted, {self.left} are left")
        self._position = start + size
        return start
