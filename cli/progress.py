"""Shows a command's progress on standard error: one changing line on a terminal, else a new line from time to time."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from cli.tables import plain_console

Tell = Callable[[str], None]
"""Takes `step` or `step: progress`. Thread-safe."""

_LINE_EVERY_S: Final = 10.0
"""The interval of lines for a step that counts, so that the log stays readable."""


def lines_from_time_to_time(write: Callable[[str], object], clock: Callable[[], float]) -> Tell:
    """Return what writes a line for each new step at once, and how far it is from time to time; `clock`: monotonic
    seconds.
    """
    last_step, next_line_s = "", float("-inf")

    def tell(text: str) -> None:
        nonlocal last_step, next_line_s
        step, now_s = text.partition(":")[0], clock()
        if step != last_step or now_s >= next_line_s:
            last_step, next_line_s = step, now_s + _LINE_EVERY_S
            write(f"{text}\n")

    return tell


@contextmanager
def shown_progress(first: str) -> Iterator[Tell]:
    """Show the progress of this process inside the block; it begins with the step `first`."""
    from rich.text import Text

    console = plain_console(stderr=True)
    if console.is_terminal:
        with console.status(Text(first)) as status:
            yield lambda text: status.update(Text(text))
        return
    tell = lines_from_time_to_time(sys.stderr.write, time.monotonic)
    tell(first)
    yield tell
