"""Keeps the original of a linked response, so that it can be sent inline when hydration fails."""

from kafka_log.crc32c import Buffer
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.memory_budget import MemoryBudget


class KeptResponse:
    """The kept response of one connection: one at a time, dropped when others need the memory. Event loop only."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._kept: tuple[int, Buffer] | None = None
        self._let_go_of: int | None = None

    def keep(self, correlation_id: int, frame: Buffer) -> None:
        """Keep this response instead of the one before."""
        self.drop()
        self._kept = correlation_id, frame
        self._budget.keep(self, len(frame), self._let_go)

    def drop(self) -> None:
        """Forget the response: nobody will ask for it any more."""
        if self._kept is not None:
            self._budget.keep_no_more(self)
            self._kept = None

    def take(self, correlation_id: int) -> Buffer:
        """Return the response with this correlation id.

        Raises ConnectionResetError when it was dropped, MalformedFrameError when it was never kept.
        """
        if self._kept is None and self._let_go_of == correlation_id:
            raise ConnectionResetError("the response was not kept, as memory was short; the follower fetches it again")
        if self._kept is None or self._kept[0] != correlation_id:
            raise MalformedFrameError(0, f"no response {correlation_id} is kept")
        frame = self._kept[1]
        self.drop()
        return frame

    def _let_go(self) -> None:
        if self._kept is not None:
            self._let_go_of, self._kept = self._kept[0], None
