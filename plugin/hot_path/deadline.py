"""A timer that is set again and again."""

import asyncio
from collections.abc import Callable


class DeadlineTimer:
    """Calls a function when the deadline that was set last is reached. For the event loop."""

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
