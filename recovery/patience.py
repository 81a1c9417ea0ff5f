"""Waits for a store that throttles or is away: one bad minute must not end a recovery that runs for hours.

The backends retry for seconds, because an agent can send the bytes inline instead. Here there is no alternative. A
request with a temporary error is retried after a wait that grows, with jitter, until it has taken so long that a person
should look.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentCorruptError, RemoteStorageError

T = TypeVar("T")

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0


def _say_nothing(_text: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Patience:
    """Thread-safe, if its callbacks are."""

    sleep: Callable[[float], object]
    uniform: Callable[[float, float], float]
    """Returns random numbers of a range."""
    tell: Callable[[str], None] = _say_nothing
    """Called with what is waited for."""
    total_s: float = 1800.0
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds: a silent store takes longer than the waits alone."""

    def call(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns. Raises the last RemoteStorageError, at once if waiting does not help."""
        waited_s, longest_s, begun_s = 0.0, _FIRST_WAIT_S, self.clock()
        while True:
            try:
                return attempt()
            except RemoteStorageError as error:
                taken_s = max(waited_s, self.clock() - begun_s)
                is_of_the_object = isinstance(error, RemoteResourceNotFoundError | RemoteSegmentCorruptError)
                if is_of_the_object or not error.retriable or taken_s >= self.total_s:
                    raise
                wait_s = self.uniform(longest_s / 2, longest_s)
                self.tell(f"object storage: {error}; again in {wait_s:.0f} s")
            self.sleep(wait_s)
            waited_s += wait_s
            longest_s = min(2 * longest_s, _LONGEST_WAIT_S)


IMPATIENT = Patience(lambda _seconds: None, lambda low, _high: low, total_s=0.0)
"""For callers with an alternative."""
