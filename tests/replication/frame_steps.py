"""Frames of many small items, and how many steps it takes to read them."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from replication.wire.kafka_frame import MalformedFrameError, encode_unsigned_varint


class Looked(bytes):
    """Counts how often something of it is looked at."""

    steps = 0

    def __getitem__(self, key: Any) -> Any:
        self.steps += 1
        return super().__getitem__(key)


def steps_to_read(frame: bytes, read: Callable[[bytes], object]) -> int:
    """How many steps it takes, whether `read` understands the frame or not."""
    looked = Looked(frame)
    with suppress(MalformedFrameError):
        read(looked)
    return looked.steps


def many(count: int, item: bytes) -> bytes:
    """A compact array of equal items."""
    return encode_unsigned_varint(count + 1) + item * count
