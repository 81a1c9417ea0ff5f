"""Waits that end by a deadline."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, or for so long; `math.inf`: until it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if seconds == math.inf else max(seconds, 0.0)):
            await event.wait()


class DeadlineTimer:
    """A timer that is set again and again, and calls a function at the last deadline. For the event loop."""

    def __init__(self, look_again: Callable[[], object]) -> None:
        self._look_again = look_again
        self._handle: asyncio.TimerHandle | None = None

    def set(self, at_s: float | None) -> None:
        """Set the deadline, in the event loop's time; None removes it."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = None if at_s is None else asyncio.get_running_loop().call_at(at_s, self._came)

    def _came(self) -> None:
        self._handle = None
        self._look_again()
