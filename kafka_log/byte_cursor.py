"""Reads fields from the front of bytes and never beyond their end; the only place that reads Kafka's varints.

A varint has seven bits a byte, least significant first. Anything that does not fit raises what `fault` makes of it,
which is each format's own error.
"""

import struct

from kafka_log.crc32c import Buffer


class ByteCursor:
    """A position in bytes from which fields are read, and which never goes beyond their end."""

    __slots__ = ("_end", "_raw", "position")

    def __init__(self, raw: Buffer) -> None:
        self._raw = raw
        self._end = len(raw)
        self.position = 0

    def fault(self, reason: str, detail: str) -> Exception:
        """Return the error to raise; subclasses choose its type. `reason` is a short label, the same for all bytes
        with this fault."""
        return ValueError(f"{reason} at byte {self.position}: {detail}")

    @property
    def left(self) -> int:
        return self._end - self.position

    def skip(self, size: int) -> int:
        """Skip `size` bytes; return the position where they began."""
        start = self.position
        end = start + size
        if size < 0 or end > self._end:
            raise self.fault("truncated", f"{size} bytes wanted, {self._end - start} left")
        self.position = end
        return start

    def take(self, size: int) -> Buffer:
        start = self.skip(size)
        return self._raw[start : self.position]

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        start, size = self.position, layout.size
        if start + size > self._end:
            self.skip(size)  # raises the error
        self.position = start + size
        return layout.unpack_from(self._raw, start)

    def unsigned_varint(self, bits: int = 32) -> int:
        """Read an unsigned varint of at most `bits` bits."""
        position, end, raw = self.position, self._end, self._raw
        if position < end and (byte := raw[position]) < 0x80:  # the usual case
            self.position = position + 1
            return byte
        value = shift = 0
        while position < end and shift < bits:
            byte = raw[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if value >> bits:
                    break
                self.position = position
                return value
        else:
            if position == end and shift < bits:
                raise self.fault("truncated", "a varint does not end")
        raise self.fault("varint", f"a varint of more than {bits} bits")


def signed_varint(raw: bytes, position: int) -> tuple[int, int]:
    """Read a zigzag varint of at most 64 bits; return the number and the position behind it. For loops over many.

    Raises ValueError for a longer one, IndexError at the end of the bytes.
    """
    byte = raw[position]
    position += 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift > 63:
            raise ValueError(f"a varint of more than 64 bits at byte {position}")
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), position
