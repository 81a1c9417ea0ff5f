"""What one task sleeps on, until somebody wakes it or its time has come. Event loop only.

asyncio.Event does as much for any number of tasks, and asks for the running loop at each wait, which Python 3.11 takes
to the kernel.
"""

import asyncio


class Wake:
    """Of one task."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_set = False
        self._sleeper: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Something happened. That holds until `clear`."""
        self._is_set = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def clear(self) -> None:
        """All that happened so far is known."""
        self._is_set = False

    async def within(self, delay_s: float | None) -> None:
        """Until something happened, for at most so many seconds; None: for however long."""
        if self._is_set:
            return
        loop = self._loop = self._loop or asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer = loop.call_later(delay_s, self.set) if delay_s is not None else None
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            if timer is not None:
                timer.cancel()
