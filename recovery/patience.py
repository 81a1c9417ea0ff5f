"""Waits for a store that throttles or is away: one bad minute must not end a recovery that runs for hours.

The backends retry for seconds, because an agent can send the bytes inline instead. Here there is no alternative. A
request with a temporary error is retried after a wait that grows, with jitter, until it has taken so long that a person
should look.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception

from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentCorruptError, RemoteStorageError

T = TypeVar("T")

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 30.0


def _say_nothing(_text: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Patience:
    """Retries calls while a store throttles or is unavailable. Thread-safe if its callbacks are."""

    sleep: Callable[[float], Any]
    uniform: Callable[[float, float], float]
    """Returns random numbers of a range."""
    tell: Callable[[str], None] = _say_nothing
    """Called with what is waited for."""
    total_s: float = 1800.0
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds: a silent store takes longer than the waits alone."""

    def call(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns. Raises the last RemoteStorageError, at once if waiting does not help."""
        begun_s = self.clock()

        def has_waited_enough(state: RetryCallState) -> bool:
            return max(state.idle_for, self.clock() - begun_s) >= self.total_s

        retrying = Retrying(
            retry=retry_if_exception(_is_temporary),
            stop=has_waited_enough,
            wait=self._pause_s,
            before_sleep=lambda state: self.tell(
                f"object storage: {state.outcome and state.outcome.exception()}; again in {state.upcoming_sleep:.0f} s"
            ),
            sleep=self.sleep,
            reraise=True,
        )
        return retrying(attempt)

    def _pause_s(self, state: RetryCallState) -> float:
        longest_s = min(_FIRST_WAIT_S * 2 ** min(state.attempt_number - 1, 20), _LONGEST_WAIT_S)
        return self.uniform(longest_s / 2, longest_s)


def _is_temporary(error: BaseException) -> bool:
    is_of_the_object = isinstance(error, RemoteResourceNotFoundError | RemoteSegmentCorruptError)
    return isinstance(error, RemoteStorageError) and error.retriable and not is_of_the_object


IMPATIENT = Patience(lambda _seconds: None, lambda low, _high: low, total_s=0.0)
"""For callers with an alternative."""
