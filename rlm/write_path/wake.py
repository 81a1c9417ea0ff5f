"""A cheap event for one task: it sleeps until somebody wakes it or its time has come. Event loop only.

asyncio.Event works for any number of tasks, but looks for the running loop at each wait, which is a system call in
Python 3.11.
"""

import asyncio


class Wake:
    """The wake-up of one task."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_set = False
        self._sleeper: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the task. This lasts until `clear`."""
        self._is_set = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def clear(self) -> None:
        """Forget everything that happened so far."""
        self._is_set = False

    async def within(self, delay_s: float | None) -> None:
        """Sleep until woken, for at most so many seconds; None: without a limit."""
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
