"""Counts the memory of one connection's responses, from their arrival until the requester has them."""

import asyncio

from replication.follower.hydration import HydrationError
from replication.wire.framed_connection import reserve
from replication.wire.memory_budget import MemoryBudget


class ResponseMemory:
    """Memory taken from the process's budget."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._held_bytes = 0
        """Bytes for queued messages, and for the response that is put together now."""
        self._passing_bytes = 0
        """Bytes of these that are on their way to the requester."""

    def came(self, size: int) -> None:
        """Count a message that has arrived."""
        self._held_bytes += size
        self._budget.take(size)

    def passes(self, size: int) -> None:
        """Mark the next message as on its way to the requester."""
        self._passing_bytes = size

    async def make_room(self, size: int, timeout_s: float) -> None:
        """Wait for the memory to put this message together. Raises HydrationError."""
        if not self._budget.try_take(size):
            try:
                async with asyncio.timeout(timeout_s):
                    await reserve(self._budget, size)
            except TimeoutError as error:
                raise HydrationError("memory", "the frames of other connections take all there is for them") from error
        self._held_bytes += size
        self._passing_bytes += size

    def passed(self) -> None:
        """Release a message that was passed on to the requester."""
        self._give_back(self._passing_bytes)

    def close(self) -> None:
        """Release everything that is left; the connection ended."""
        self._give_back(self._held_bytes)

    def _give_back(self, size: int) -> None:
        if size:
            self._held_bytes -= size
            self._budget.give_back(size)
