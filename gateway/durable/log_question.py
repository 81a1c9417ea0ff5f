"""Messages by which agents ask each other whether logs are stored and published up to some offsets. Sans-IO.

Source: STORED_REQUEST and STORED of `replication.wire.peer_protocol`.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from kafka_log.byte_cursor import ByteCursor
from kafka_log.crc32c import Buffer
from replication.wire.kafka_frame import MalformedFrameError

MAX_LOGS: Final = 100
"""Most logs in one question, so that it is small enough to be packed."""

_HEAD = struct.Struct(">QH")  # number, logs
_NAME = struct.Struct(">H")
_LOG = struct.Struct(">iq")  # partition, end offset
_ANSWER = struct.Struct(">QB")


class LogUpTo(NamedTuple):
    """All of a log below an offset."""

    topic: str
    partition: int
    end_offset: int


class StoredAnswer(IntEnum):
    """How a question ended."""

    STORED = 0
    NOT_HERE = 1
    """Somebody else leads one of the logs, or it is not known here: look again who does."""


class _Cursor(ByteCursor):
    __slots__ = ()

    def fault(self, _reason: str, detail: str) -> MalformedFrameError:
        return MalformedFrameError(self.position, detail)


def encode_question(number: int, logs: Iterable[LogUpTo]) -> bytes:
    """Encode a question about at most MAX_LOGS logs."""
    wanted = list(logs)
    parts = [_HEAD.pack(number, len(wanted))]
    for topic, partition, end_offset in wanted:
        name = topic.encode()
        parts += (_NAME.pack(len(name)), name, _LOG.pack(partition, end_offset))
    return b"".join(parts)


def decode_question(body: Buffer) -> tuple[int, list[LogUpTo]]:
    """Return a question's number and its logs. Raises MalformedFrameError."""
    cursor = _Cursor(body)
    number, count = cursor.fields(_HEAD)
    if not 0 < count <= MAX_LOGS:
        raise MalformedFrameError(0, f"a question of {count} logs")
    logs = []
    for _ in range(count):
        name = bytes(cursor.take(cursor.fields(_NAME)[0])).decode("utf-8", "replace")
        logs.append(LogUpTo(name, *cursor.fields(_LOG)))
    if cursor.left:
        raise MalformedFrameError(cursor.position, f"{cursor.left} bytes left over")
    return number, logs


def encode_answer(number: int, answer: StoredAnswer) -> bytes:
    """Encode the answer to the question with this number."""
    return _ANSWER.pack(number, answer)


def decode_answer(body: Buffer) -> tuple[int, bool]:
    """Return an answer's question number, and whether all of the logs are stored. Raises MalformedFrameError."""
    if len(body) != _ANSWER.size:
        raise MalformedFrameError(0, f"an answer of {len(body)} bytes")
    number, answer = _ANSWER.unpack(body)
    return number, answer == StoredAnswer.STORED
