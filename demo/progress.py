"""Shows which step of the demonstration runs, and a line for each that is done."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(slots=True)
class _Step:
    title: str
    begun_s: float
    note: str = ""


class Progress:
    """Begin and end steps on one thread, within `with`."""

    def __init__(self, console: "Console", clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._status = console.status("")
        self._step: _Step | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def begin(self, title: str, note: str = "") -> None:
        """Begin a step; the one before, if it still runs, is done."""
        self.end()
        self._step = _Step(title, self._clock())
        self.note(note)

    def note(self, text: str) -> None:
        """Show what the step under way does now."""
        if self._step is not None:
            self._step.note = text
            self._status.update(f"[bold]{self._step.title}[/] {text}")

    def end(self, note: str | None = None) -> None:
        """Tell how long the step under way took, and what came of it."""
        if (step := self._step) is None:
            return
        took_s, told = self._clock() - step.begun_s, step.note if note is None else note
        self._console.print(f"{took_s:5.1f} s  {step.title:<34} {told}", highlight=False, soft_wrap=True)
        self._step = None
