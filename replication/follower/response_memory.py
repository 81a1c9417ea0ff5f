"""The memory that one connection's responses take, from when they come until who asked has them."""

import asyncio

from replication.follower.hydration import HydrationError
from replication.wire.memory_budget import MemoryBudget
from replication.wire.memory_reservation import reserve


class ResponseMemory:
    """All of it is taken from the process's budget."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._held_bytes = 0
        """For messages that are queued, and for what is put together now."""
        self._passing_bytes = 0
        """What of it is on its way to who asked."""

    def came(self, size: int) -> None:
        """A message was received, and is there."""
        self._held_bytes += size
        self._budget.take(size)

    def passes(self, size: int) -> None:
        """A message that came is next."""
        self._passing_bytes = size

    async def make_room(self, size: int, timeout_s: float) -> None:
        """Wait for what this message is put together from. Raises HydrationError."""
        if not self._budget.try_take(size):
            try:
                async with asyncio.timeout(timeout_s):
                    await reserve(self._budget, size)
            except TimeoutError as error:
                raise HydrationError("memory", "the frames of other connections take all there is for them") from error
        self._held_bytes += size
        self._passing_bytes += size

    def passed(self) -> None:
        """It is given to who asked."""
        self._give_back(self._passing_bytes)

    def close(self) -> None:
        """The connection ended, whatever is left."""
        self._give_back(self._held_bytes)

    def _give_back(self, size: int) -> None:
        if size:
            self._held_bytes -= size
            self._budget.give_back(size)
