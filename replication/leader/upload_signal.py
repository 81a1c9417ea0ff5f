"""Wakes responses that wait for an upload. Used from the event loop only."""

import asyncio
from collections.abc import Callable

Look = Callable[[], float | None]
"""Returns the seconds until the next look without a signal; None when the wait is over."""


class UploadSignal:
    """Wakes waiting responses in the order in which they came, so that their order does not depend on chance.

    With `notify_now`, they decide before the call returns: their response can then go out in the same turn as the
    announcement.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        """Kept, because Python 3.11 makes a system call each time it looks for the running loop."""
        self._waiting: dict[_Wait, None] = {}

    def notify(self) -> None:
        """Wake waiting responses in the next turn of the event loop, because a mode changed or the like."""
        for one in self._waiting:
            one.look_soon()

    def notify_now(self) -> None:
        """Wake waiting responses at once, because an object was stored. Exceptions of their looks are not raised
        here."""
        for one in list(self._waiting):
            one.look()

    async def wait_until(self, look: Look, first_s: float) -> None:
        """Wait until `look` returns None; raises what `look` raises.

        `look` is called at each signal and at the time that it returned last, at first after `first_s`.
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
    """One waiting caller."""

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
        if self._is_looking:  # what a look finds notifies again later
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
