"""Reads what all frames of Kafka's flexible versions (KIP-482) have in common.

A frame here is what follows the four-byte size prefix. Lengths are unsigned varints of the length plus one, and 0 means
null.

Input is hostile until proven otherwise. Every length and count is checked against the bytes that are left before it is
used, and one that does not fit raises `MalformedFrameError`.
"""

import struct
from typing import NamedTuple

from kafka_log.byte_cursor import ByteCursor
from kafka_log.crc32c import Buffer
from kafka_log.topic_partition import TOPIC_ID_BYTES, TopicId

MAX_SCANNED_ITEMS = 16384
"""The most array items and tagged fields in one frame. Each may take only two bytes but costs microseconds on the event
loop, so their number bounds the time to read a frame."""

_REQUEST_HEADER = struct.Struct(">hhih")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class MalformedFrameError(ValueError):
    """A frame's lengths or counts contradict its size."""

    def __init__(self, position: int, reason: str) -> None:
        self.position = position
        self.reason = reason
        super().__init__(f"malformed frame at byte {position}: {reason}")


class CostlyFrameError(MalformedFrameError):
    """Reading this frame would block the event loop for too long.

    The frame may be valid; `bound` names the limit it exceeds.
    """

    def __init__(self, position: int, bound: str, reason: str) -> None:
        self.bound = bound
        super().__init__(position, reason)


class RequestHeader(NamedTuple):
    """The fields of a request header that every version has."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str


def parse_request_header(frame: Buffer) -> RequestHeader:
    """Return the header's fields common to all versions. Raises MalformedFrameError."""
    if len(frame) < _REQUEST_HEADER.size:
        raise MalformedFrameError(0, f"{len(frame)} bytes hold no request header")
    api_key, api_version, correlation_id, client_id_bytes = _REQUEST_HEADER.unpack_from(frame, 0)
    start = _REQUEST_HEADER.size
    if client_id_bytes < 0:
        return RequestHeader(api_key, api_version, correlation_id, "")
    if client_id_bytes > len(frame) - start:
        raise MalformedFrameError(start - 2, f"client id of {client_id_bytes} bytes exceeds the frame")
    client_id = bytes(frame[start : start + client_id_bytes]).decode("utf-8", "replace")
    return RequestHeader(api_key, api_version, correlation_id, client_id)


def encode_unsigned_varint(value: int) -> bytes:
    """Encode Kafka's unsigned varint: seven bits a byte, least significant first."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class FrameCursor(ByteCursor):
    """A position in a frame, with methods to read from it. They are for flexible versions unless they say otherwise."""

    __slots__ = ("_items", "_max_items")

    def __init__(self, frame: Buffer, max_items: float = MAX_SCANNED_ITEMS) -> None:
        super().__init__(frame)
        self._items = 0
        self._max_items = max_items

    def fault(self, _reason: str, detail: str) -> MalformedFrameError:
        return MalformedFrameError(self.position, detail)

    def int16(self) -> int:
        return self.fields(_INT16)[0]

    def int32(self) -> int:
        return self.fields(_INT32)[0]

    def topic_id(self) -> TopicId:
        return TopicId(bytes(self.take(TOPIC_ID_BYTES)))

    def array_length(self, min_item_bytes: int) -> int:
        """Read a compact array's length; null counts as 0. Checks that the frame has room for that many items."""
        position = self.position
        length = max(self.unsigned_varint() - 1, 0)
        if length:
            if length * min_item_bytes > self._end - self.position:
                raise MalformedFrameError(position, f"an array of {length} items exceeds the frame")
            self._will_pass(length)
        return length

    def compact_string(self) -> str:
        """Read a compact string; null becomes an empty string."""
        return bytes(self.take(max(self.unsigned_varint() - 1, 0))).decode("utf-8", "replace")

    def inflexible_array_length(self, min_item_bytes: int) -> int:
        """Read an array's length in versions before KIP-482, with the checks of `array_length`."""
        position = self.position
        length = max(self.int32(), 0)
        if length * min_item_bytes > self._end - self.position:
            raise MalformedFrameError(position, f"an array of {length} items exceeds the frame")
        self._will_pass(length)
        return length

    def string(self) -> str:
        """Read a string in versions before KIP-482; null becomes an empty string."""
        return bytes(self.take(max(self.int16(), 0))).decode("utf-8", "replace")

    def skip_tagged_fields(self) -> None:
        """Skip all tagged fields, whatever they hold."""
        if self.position < self._end and self._raw[self.position] == 0:  # no tagged fields: nearly always
            self.position += 1
            return
        for _ in range(self.tagged_field_count()):
            self.unsigned_varint()
            self.skip(self.unsigned_varint())

    def skip_no_tags(self) -> bool:
        """Skip an empty list of tagged fields, the usual case. Returns whether the list was empty."""
        if self.position < self._end and self._raw[self.position] == 0:
            self.position += 1
            return True
        return False

    def skip_untagged(self, count: int, item_bytes: int) -> bool:
        """Skip this many items of one size in one step. Returns False, and skips nothing, if an item has tagged
        fields."""
        size = item_bytes + 1
        run = memoryview(self._raw)[self.position : self.position + count * size]
        if len(run) < count * size or bytes(run[item_bytes::size]) != bytes(count):
            return False
        self.position += count * size
        return True

    def tagged_field_count(self) -> int:
        """Read how many tagged fields follow; each is a tag, a size, and the bytes."""
        position = self.position
        count = self.unsigned_varint()
        if count * 2 > self._end - self.position:
            raise MalformedFrameError(position, f"{count} tagged fields exceed the frame")
        self._will_pass(count)
        return count

    def _will_pass(self, items: int) -> None:
        """Count items against the frame's limit before the first of them is read."""
        self._items += items
        if self._items > self._max_items:
            raise CostlyFrameError(self.position, "items", f"more than {self._max_items} items")

    def expect_end(self) -> None:
        """Raise MalformedFrameError when bytes are left over."""
        if self.position != self._end:
            raise MalformedFrameError(self.position, f"{self._end - self.position} bytes left over")
