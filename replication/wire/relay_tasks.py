"""Runs the tasks of a relay side by side until one of them ends."""

import asyncio
from collections.abc import Coroutine, Sequence

from replication.wire.framed_connection import FramedConnection


async def until_idle(connections: Sequence[FramedConnection], idle_s: float) -> None:
    """Wait until none of these has received a byte for a whole interval of `idle_s`, which takes one or two
    intervals.
    """
    before, received = -1, sum(one.bytes_received for one in connections)
    while received != before:
        await asyncio.sleep(idle_s)
        before, received = received, sum(one.bytes_received for one in connections)


async def run_until_one_ends(*relays: Coroutine[None, None, None]) -> set[int]:
    """Run these until one ends, then cancel the others. Returns the indexes of those that ended.

    Raises what an ended one raised, except ConnectionError: that is how connections end.
    """
    tasks = [asyncio.get_running_loop().create_task(each) for each in relays]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            error = task.exception()
            if error is not None and not isinstance(error, ConnectionError):
                raise error
        return {place for place, task in enumerate(tasks) if task in done}
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
