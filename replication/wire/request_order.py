"""Pairs a broker's answers with the requests of a connection by their order. Sans-IO.

A broker answers the requests of one connection in the order in which they came; it never answers Produce with acks=0.
Correlation ids are the client's choice: it may use one twice, so they name no request. They only have to match.

After SaslHandshake of version 0 a client sends tokens that are no Kafka requests, each of which is answered by one. So
until it produces, nothing is matched.
"""

import struct
from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from kafka_log.crc32c import Buffer
from replication.wire.kafka_frame import FrameCursor, MalformedFrameError

T = TypeVar("T")

_REQUEST: Final = struct.Struct(">hhi")  # API key, version, correlation id
_ANSWER: Final = struct.Struct(">i")
_PRODUCE: Final = 0
_SASL_HANDSHAKE: Final = 17
_FLEXIBLE: Final = 9
"""The first version of Produce with tagged fields (KIP-482)."""
_TRANSACTIONAL: Final = 3
"""The first version of Produce with a transactional id."""
MAX_UNANSWERED: Final = 4_000
"""Most requests of a connection that wait for answers. A guess: brokers send one or a few, clients some hundreds."""


def is_answered(frame: Buffer) -> bool:
    """Return whether a broker responds to this request: to all but Produce with acks=0. The frame's beginning is
    enough."""
    if len(frame) < _REQUEST.size:
        return True
    api_key, api_version, _ = _REQUEST.unpack_from(frame)
    if api_key != _PRODUCE:
        return True
    cursor = FrameCursor(frame)
    try:
        cursor.skip(_REQUEST.size)
        cursor.skip(max(cursor.int16(), 0))  # client id
        if api_version >= _FLEXIBLE:
            cursor.skip_tagged_fields()
            cursor.skip(max(cursor.unsigned_varint() - 1, 0))
        elif api_version >= _TRANSACTIONAL:
            cursor.skip(max(cursor.int16(), 0))
        return cursor.int16() != 0
    except MalformedFrameError:
        return True


class RequestOrder(Generic[T]):
    """The requests of one connection that wait for their responses, each with a note of the caller."""

    def __init__(self) -> None:
        self._sent: deque[tuple[int | None, T]] = deque()
        """Correlation ids, None where they are not matched."""
        self._has_tokens = False

    def __len__(self) -> int:
        return len(self._sent)

    def __iter__(self) -> Iterator[T]:
        return (what for _, what in self._sent)

    def asked(self, frame: Buffer, what: T) -> None:
        """Add a request, which goes to the broker next, with a note; the frame's beginning is enough.

        Raises MalformedFrameError if more than MAX_UNANSWERED wait.
        """
        if len(self._sent) >= MAX_UNANSWERED:
            raise MalformedFrameError(0, f"{len(self._sent)} requests wait for their answers already")
        if len(frame) < _REQUEST.size:
            self._sent.append((None, what))
            return
        api_key, version, correlation_id = _REQUEST.unpack_from(frame)
        self._has_tokens = self._has_tokens and api_key != _PRODUCE
        if is_answered(frame):
            self._sent.append((None if self._has_tokens else correlation_id, what))
        self._has_tokens = self._has_tokens or (api_key, version) == (_SASL_HANDSHAKE, 0)

    def add(self, correlation_id: int, what: T) -> None:
        """Add a request, whose response has this correlation id, with a note."""
        self._has_tokens = False
        self._sent.append((correlation_id, what))

    def answered(self, frame: Buffer) -> T:
        """Return the note of the request that this response belongs to, and remove it.

        Raises MalformedFrameError if it does not belong to the next request: then responses can no longer be paired.
        """
        correlation_id = _ANSWER.unpack_from(frame)[0] if len(frame) >= _ANSWER.size else None
        if not self._sent or self._sent[0][0] not in (None, correlation_id):
            raise MalformedFrameError(0, "an answer that does not belong to the next request of the connection")
        return self.pop_first()

    def pop_first(self) -> T:
        """Remove the first request, which gets no response from the broker, and return its note."""
        return self._sent.popleft()[1]
