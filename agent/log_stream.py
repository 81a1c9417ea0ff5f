"""Writes the agent's log so that nothing of the agent waits for it or fails by it.

A thread of its own writes the lines. A line that cannot be written (a full disk, a pipe without a reader) is lost and
counted, and so is one that comes while too many wait. Whoever connects from outside can cause lines of one event again
and again: they are limited by time, and counted too.
"""

import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter

LINES_MAX: Final = 10_000
EVENTS_PER_S: Final = 20
"""Lines of one event in a second. A guess: no event of a working agent comes so often for long."""


def lost_lines(registry: CollectorRegistry | None = None) -> Counter:
    """Return the metric that counts log lines that could not be written, by cause."""
    what = "Lines that are not in the log: it could not be written, was too slow, or had enough of one event"
    return Counter("remote_wal_log_lines_lost", what, ["reason"], registry=registry)


class LogStream(io.TextIOBase):
    """A text stream to a file descriptor that never blocks and never raises. Any thread may write."""

    encoding = "utf-8"

    def __init__(self, descriptor: int, lost: Counter) -> None:
        self._descriptor = descriptor
        self._lost = lost
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._is_writing = False
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    def fileno(self) -> int:
        """Return the file descriptor, for callers that write past the queue."""
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        """Queue a line, which a thread of its own writes soon."""
        with self._changed:
            if len(self._lines) < LINES_MAX:
                self._lines.append(text.encode(errors="backslashreplace"))
                self._changed.notify_all()
            else:
                self._lost.labels("slow").inc()
        return len(text)

    def drain(self, timeout_s: float = 2.0) -> None:
        """Wait until all lines are written, for `timeout_s` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._is_writing, timeout_s)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                lines, self._is_writing = list(self._lines), True
                self._lines.clear()
            for line in lines:
                try:
                    while line:
                        line = line[os.write(self._descriptor, line) :]
                except OSError:
                    self._lost.labels("unwritable").inc()


class RepeatedEvents:
    """A structlog processor that drops events that come too often; the next line of the event has their number."""

    def __init__(self, lost: Counter, clock: Callable[[], float] = time.monotonic) -> None:
        self._lost = lost
        self._clock = clock
        self._second: dict[str, tuple[int, int]] = {}
        """By event, the last second in which it came, and how often."""
        self._left_out: dict[str, int] = {}

    def __call__(self, _logger: object, _method: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
        event, now = str(line.get("event")), int(self._clock())
        second, times = self._second.get(event, (now, 0))
        times = times + 1 if second == now else 1
        self._second[event] = now, times
        if times > EVENTS_PER_S:
            self._left_out[event] = self._left_out.get(event, 0) + 1
            self._lost.labels("repeated").inc()
            raise structlog.DropEvent
        if left_out := self._left_out.pop(event, 0):
            line["left_out_before"] = left_out
        return line
