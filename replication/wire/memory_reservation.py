"""Waiting for memory that all connections share."""

import asyncio

from replication.wire.memory_budget import MemoryBudget


async def reserve(budget: MemoryBudget, size: int) -> None:
    """Take so much memory, and wait for it if necessary."""
    if budget.try_take(size):
        return
    granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    budget.wait(granted, budget.ticket(), size, 0, lambda: granted.set_result(None))
    try:
        await granted
    except asyncio.CancelledError:
        if granted.done() and not granted.cancelled():
            budget.give_back(size)
        budget.forget(granted)
        raise
