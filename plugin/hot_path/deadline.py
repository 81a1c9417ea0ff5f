"""A cheap `asyncio.timeout` for the hot path, on an event loop that is known.

Python 3.11 makes a system call each time it looks for the running loop, which `asyncio.timeout` does three times. The
behaviour is the same: at the deadline the task inside is cancelled, and leaves with a TimeoutError; a cancellation by
anybody else stays one, also if both come together.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType


class Deadline:
    """A timeout for a block of code, to be entered once, by a task of the given event loop."""

    __slots__ = ("_before", "_is_over", "_loop", "_seconds", "_task", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._is_over = False

    def __enter__(self) -> None:
        task = asyncio.current_task(self._loop)
        if task is None:
            raise RuntimeError("a deadline is a task's")
        self._task = task
        self._before = task.cancelling()
        self._timer = self._loop.call_later(max(self._seconds, 0.0), self._over)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if not self._is_over:
            self._timer.cancel()
        elif self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _over(self) -> None:
        self._is_over = True
        self._task.cancel()


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
