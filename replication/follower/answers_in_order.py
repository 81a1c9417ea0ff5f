"""Answers of one connection, in the order in which the broker gave them, though one may come twice. Sans-IO.

A linked answer that cannot be put together is asked for as the broker sent it. What the leader's agent had sent by then
comes before that original, and must not overtake it: clients take answers for those of their requests, in order.
"""

from collections import deque

from kafka_log.crc32c import Buffer
from replication.wire.peer_protocol import MessageKind

Answer = tuple[MessageKind, memoryview]


class AnswersInOrder:
    """What came goes in, what is next comes out."""

    def __init__(self) -> None:
        self._waiting: deque[Answer] = deque()
        self._awaited: int | None = None

    def asked_for(self, correlation_id: int) -> None:
        """The answer that came out last is asked for as it was; nothing comes out before it."""
        self._awaited = correlation_id

    def came(self, kind: MessageKind, body: memoryview) -> None:
        """Linked or not."""
        if self._awaited is not None and kind is MessageKind.KAFKA and _correlation_id(body) == self._awaited:
            self._awaited = None
            self._waiting.appendleft((kind, body))
        else:
            self._waiting.append((kind, body))

    def next(self) -> Answer | None:
        """None: nothing may go on now."""
        return self._waiting.popleft() if self._waiting and self._awaited is None else None


def _correlation_id(frame: Buffer) -> int:
    return int.from_bytes(bytes(frame[:4]), "big", signed=True)
