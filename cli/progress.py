"""Shows a command's progress on standard error: one changing line on a terminal, else a new line from time to time."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cli.tables import plain_console

if TYPE_CHECKING:
    from rich.status import Status

_LINE_EVERY_S: Final = 10.0
"""The interval of lines for a step that counts, so that the log stays readable."""


class ShownProgress:
    """Shows a command's progress on standard error. Thread-safe, except `stop`."""

    def __init__(self, status: "Status | None", write: Callable[[str], object], clock: Callable[[], float]) -> None:
        """Take `status`, the changing line of a terminal; without one, lines are written. `clock`: monotonic
        seconds.
        """
        self._status = status
        self._write = write
        self._clock = clock
        self._step = ""
        self._next_line_s = float("-inf")

    @property
    def is_on_terminal(self) -> bool:
        """Whether the output is a terminal, where a line can change."""
        return self._status is not None

    def update(self, text: str) -> None:
        """Show `step` or `step: progress`; a new step is shown at once."""
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(text))
            return
        step, now_s = text.partition(":")[0], self._clock()
        if step != self._step or now_s >= self._next_line_s:
            self._step, self._next_line_s = step, now_s + _LINE_EVERY_S
            self._write(f"{text}\n")

    def stop(self) -> None:
        """Stop showing progress, because something else shows it from now on."""
        if self._status is not None:
            self._status.stop()


@contextmanager
def shown_progress(first: str) -> Iterator[ShownProgress]:
    """Show the progress of this process inside the block; it begins with the step `first`."""
    from rich.text import Text

    console = plain_console(stderr=True)
    if console.is_terminal:
        with console.status(Text(first)) as status:
            yield ShownProgress(status, sys.stderr.write, time.monotonic)
        return
    shown = ShownProgress(None, sys.stderr.write, time.monotonic)
    shown.update(first)
    yield shown
