"""Limits spending: how many requests of a kind may be sent to the store in a minute.

In normal use the upload interval and the link policy stay far below it. A defect that makes tiny objects, or reads the
same range over and over, would otherwise cost without limit and show only on the bill. Beyond the ceiling each call
fails as if the store refused it, so that all bytes go inline until the minute is over.
"""

import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

_WINDOW_S = 60.0


class RequestCeiling:
    """The ceiling on requests of one kind per minute. Thread-safe."""

    def __init__(self, kind: str, per_minute: int, setting: str, clock: Callable[[], float]) -> None:
        """`setting` is the key that sets the ceiling, for messages."""
        self.refused = 0
        self._kind = kind
        self._per_minute = per_minute
        self._setting = setting
        self._clock = clock
        self._lock = threading.Lock()
        self._since_s = float("-inf")
        self._sent_before = 0
        self._calls = 0
        self._is_reached = False

    def admits(self, sent: int) -> bool:
        """Whether one more call may be made; `sent` is the number of requests since the start, retries included."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._since_s >= _WINDOW_S:
                self._since_s, self._sent_before, self._calls, self._is_reached = now_s, sent, 0, False
            if max(sent - self._sent_before, self._calls) < self._per_minute:
                self._calls += 1
                return True
            self.refused += 1
            is_news, self._is_reached = not self._is_reached, True
        if is_news:
            log.error(
                "store_request_ceiling_reached", kind=self._kind, per_minute=self._per_minute, consequence="inline"
            )
        return False

    @property
    def alarm(self) -> str | None:
        """The text of the alarm while the ceiling is reached; else None."""
        if not self._is_reached or self._clock() - self._since_s >= _WINDOW_S:
            return None
        return f"object storage was sent {self._per_minute} {self._kind} requests within a minute ({self._setting})"
