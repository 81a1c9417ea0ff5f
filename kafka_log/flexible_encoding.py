"""Kafka's flexible encoding of messages (KIP-482), as in the records of its own topics. Read only.

Compact strings, bytes and arrays begin with an unsigned varint of their length + 1, where 0 is null; every structure
ends with tagged fields. Lengths and counts are checked against the bytes that are left before anything is made of
them.
"""

from typing import Final

from kafka_log.byte_cursor import ByteCursor

_MAX_STRING_BYTES: Final = 0x7FFF


class MalformedMessageError(ValueError):
    """The bytes are not a valid message; `reason` is a short label, the same for all with this fault."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}")


class MessageReader(ByteCursor):
    """Reads fields in Kafka's flexible encoding (KIP-482). Every method raises MalformedMessageError."""

    __slots__ = ()

    def fault(self, reason: str, detail: str) -> MalformedMessageError:
        return MalformedMessageError(reason, detail)

    def take(self, size: int) -> bytes:
        return bytes(super().take(size))

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
        """Read an array's number of elements, checked against the bytes left. A `nullable` array that is null has
        none."""
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
        """Read the tagged fields; returns each one's bytes by tag."""
        count = self.unsigned_varint()
        if count * 2 > self.left:
            raise MalformedMessageError("count", f"{count} tagged fields cannot stand in {self.left} bytes")
        found = {}
        for _ in range(count):
            tag = self.unsigned_varint()
            found[tag] = self.take(self.unsigned_varint())
        return found
