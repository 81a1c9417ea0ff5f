"""Fetch requests and responses without partitions, which brokers without any load exchange twice a second. Sans-IO.

In a fetch session (KIP-227) such a request differs from the one before only by its correlation id and session epoch,
and its response has nothing but the session's id. So agents send each other these numbers (IDLE_REQUEST, IDLE_RESPONSE)
and put the frames together again, byte for byte. Both ends remember the last such request that was sent whole.

An agent passes these frames on at once, without its tasks: else they are nine tenths of what it does without any load.
Every `WHOLE_EACH`th request goes the usual way, so that what is told with requests is told within half a minute.
"""

import struct
from typing import Final

from kafka_log.crc32c import Buffer
from replication.wire.fetch_frame import (
    CONSUMER_REPLICA_ID,
    FETCH_API_KEY,
    FetchRequestView,
    scan_fetch_request,
    understands_fetch,
)
from replication.wire.kafka_frame import MalformedFrameError, RequestHeader, parse_request_header

MAX_IDLE_BYTES: Final = 112
"""Only requests up to this size are looked at. Kafka's have 69 bytes, and 53 more for a partition."""
WHOLE_EACH: Final = 64
_NUMBERS: Final = struct.Struct(">ii")
IDLE_MESSAGE_BYTES: Final = 1 + _NUMBERS.size
"""The message's kind, and two numbers."""
_BEFORE_EPOCH: Final = 4 + 4 + 4 + 1 + 4
"""Bytes from max wait to the session epoch: min bytes, max bytes, isolation level and session id are between."""
IDLE_RESPONSE_BYTES: Final = 17
WHOLE_EPOCHS: Final = (bytes(4), b"\xff" * 4)
"""Session epochs that begin and end sessions."""
_NO_TOPICS: Final = b"\x01\x00"
_NO_ERROR: Final = bytes(7)
"""No tagged fields of the header, no throttle time, no error."""


class IdleRequest:
    """The last request without partitions of one connection, from which the next one differs only by numbers."""

    def __init__(self) -> None:
        self._before = self._between = self._after = b""
        self.size_bytes = 0
        self.header: RequestHeader | None = None
        self.view: FetchRequestView | None = None

    def note(self, frame: Buffer) -> None:
        """Remember a request without partitions that is sent whole; others are ignored."""
        try:
            header = parse_request_header(frame)
            if header.api_key != FETCH_API_KEY or not understands_fetch(header.api_version):
                return
            view = scan_fetch_request(frame, header.api_version)
        except MalformedFrameError:
            return
        if view.is_whole or view.partitions or view.forgotten or view.replica_id == CONSUMER_REPLICA_ID:
            return
        epoch, self.size_bytes = view.wait_position + _BEFORE_EPOCH, len(frame)
        self._before, self._between = bytes(frame[:4]), bytes(frame[8:epoch])
        self._after, self.header, self.view = bytes(frame[epoch + 4 :]), header, view

    def numbers(self, frame: Buffer) -> bytes | None:
        """Return the numbers by which a frame differs from the remembered one; None if it differs by more."""
        epoch = 8 + len(self._between)
        is_alike = frame[:4] == self._before and frame[8:epoch] == self._between and frame[epoch + 4 :] == self._after
        numbers = bytes(frame[4:8]) + bytes(frame[epoch : epoch + 4])
        return numbers if is_alike and self.header is not None and numbers[4:] not in WHOLE_EPOCHS else None

    def frame(self, numbers: Buffer) -> bytes:
        """Return the remembered frame with these numbers. Raises MalformedFrameError."""
        if self.header is None or len(numbers) != _NUMBERS.size or numbers[4:] in WHOLE_EPOCHS:
            raise MalformedFrameError(0, "an idle request's numbers, where none was sent whole")
        return b"".join((self._before, numbers[:4], self._between, numbers[4:], self._after))


def response_numbers(frame: Buffer) -> bytes | None:
    """Return the numbers of a Fetch response of versions 12 to 18 that has no partitions; None if it has more than
    numbers."""
    if len(frame) != IDLE_RESPONSE_BYTES or frame[4:11] != _NO_ERROR or frame[15:] != _NO_TOPICS:
        return None
    return bytes(frame[:4]) + bytes(frame[11:15])


def response_frame(numbers: Buffer) -> bytes:
    """Return the Fetch response without partitions that has these numbers. Raises MalformedFrameError."""
    if len(numbers) != _NUMBERS.size:
        raise MalformedFrameError(0, f"{len(numbers)} bytes are no idle response's numbers")
    return b"".join((numbers[:4], _NO_ERROR, numbers[4:], _NO_TOPICS))
