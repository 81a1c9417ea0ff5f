"""Keeps the answers of one connection in the broker's order, although one may be sent twice. Sans-IO.

A linked answer that cannot be put together is requested again as the broker sent it. Answers that the leader's agent
had sent by then arrive before that original and must not overtake it: clients match answers to their requests by order.
"""

from collections import deque

from kafka_log.crc32c import Buffer
from replication.wire.peer_protocol import MessageKind

Answer = tuple[MessageKind, memoryview]


class AnswersInOrder:
    """Takes answers as they arrive, and gives them in the broker's order."""

    def __init__(self) -> None:
        self._waiting: deque[Answer] = deque()
        self._awaited: int | None = None

    def asked_for(self, correlation_id: int) -> None:
        """Record that the answer given last was requested again as original; nothing is given before it arrives."""
        self._awaited = correlation_id

    def came(self, kind: MessageKind, body: memoryview) -> None:
        """Take an answer that arrived, linked or not."""
        if self._awaited is not None and kind is MessageKind.KAFKA and _correlation_id(body) == self._awaited:
            self._awaited = None
            self._waiting.appendleft((kind, body))
        else:
            self._waiting.append((kind, body))

    def next(self) -> Answer | None:
        """Return the next answer; None while nothing may be passed on."""
        return self._waiting.popleft() if self._waiting and self._awaited is None else None


def _correlation_id(frame: Buffer) -> int:
    return int.from_bytes(bytes(frame[:4]), "big", signed=True)
