"""Shows which step of the demonstration runs, and a line for each that is done."""

import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console


class Progress:
    """Begin and end steps on one thread, within `with`."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._status = console.status("")
        self._title: str | None = None
        self._note = ""
        self._begun_s = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def begin(self, title: str, note: str = "") -> None:
        """Begin a step; the one before, if it still runs, is done."""
        self.end()
        self._title, self._begun_s = title, time.monotonic()
        self.note(note)

    def note(self, text: str) -> None:
        """Show what the step under way does now."""
        if self._title is not None:
            self._note = text
            self._status.update(f"[bold]{self._title}[/] {text}")

    def end(self, note: str | None = None) -> None:
        """Tell how long the step under way took, and what came of it."""
        if self._title is None:
            return
        took_s, told = time.monotonic() - self._begun_s, self._note if note is None else note
        self._console.print(f"{took_s:5.1f} s  {self._title:<34} {told}", highlight=False, soft_wrap=True)
        self._title = None
