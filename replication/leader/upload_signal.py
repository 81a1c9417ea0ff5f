"""Has those who wait for an upload look again. Used from the event loop alone."""

import asyncio
from collections.abc import Callable

Look = Callable[[], float | None]
"""Gives after how many seconds to look again by itself; None: what was waited for is there, and the wait is over."""


class UploadSignal:
    """Those who wait look in the order in which they came, as everywhere where who is first would be chance otherwise.

    What is told `now` is looked at before the call returns: what is sent by it can go with the announcement of what was
    stored, in one write.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        """Kept, as Python 3.11 asks the kernel each time which one runs."""
        self._waiting: dict[_Wait, None] = {}

    def notify(self) -> None:
        """A mode changed, or the like: look again, in the next turn."""
        for one in self._waiting:
            one.look_soon()

    def notify_now(self) -> None:
        """Something was stored: look again. Raises nothing that a look does."""
        for one in list(self._waiting):
            one.look()

    async def until(self, look: Look, first_s: float) -> None:
        """Until `look` says that it is over, which is asked when somebody notifies and when its time has come, the
        first time after `first_s`. Raises what it does.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        wait = _Wait(self._loop, look, first_s)
        self._waiting[wait] = None
        try:
            await wait.over
        finally:
            del self._waiting[wait]
            wait.end()


class _Wait:
    """Of one who looks."""

    __slots__ = ("_is_looking", "_look", "_loop", "_soon", "_timer", "over")

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Look, first_s: float) -> None:
        self._loop = loop
        self._look = look
        self._is_looking = False
        self._soon: asyncio.Handle | None = None
        self.over: asyncio.Future[None] = loop.create_future()
        self._timer: asyncio.Handle = loop.call_later(max(first_s, 0.0), self.look)

    def look_soon(self) -> None:
        if self._soon is None:
            self._soon = self._loop.call_soon(self.look)

    def look(self) -> None:
        if self._is_looking:  # what it found notifies in its turn
            self.look_soon()
            return
        self.end()
        if self.over.done():
            return
        self._is_looking = True
        try:
            again_s = self._look()
        except Exception as error:
            self.over.set_exception(error)
        else:
            if again_s is None:
                self.over.set_result(None)
            else:
                self._timer = self._loop.call_later(max(again_s, 0.0), self.look)
        finally:
            self._is_looking = False

    def end(self) -> None:
        self._timer.cancel()
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
