"""The pauses before retries: short at first, because most failures end soon.

For some tenths of a second a new topic is not known to every broker, and has no leaders; a cluster that is down is not
asked more often than the longest pause allows.
"""

from collections.abc import Callable
from typing import Final

_FIRST_OF_LONGEST: Final = 0.1
_FORGOTTEN_AFTER: Final = 2.0


class RetryPauses:
    """The pauses of one thing that is retried."""

    def __init__(self, longest_s: float, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._longest_s = longest_s
        self._clock = clock
        self._next_s = longest_s * _FIRST_OF_LONGEST
        self._ended_s = float("-inf")

    def next_s(self) -> float:
        """Return the pause after a failure now, in seconds: a tenth of the longest, then twice the one before.

        It is short again once nothing has failed for twice the longest after a pause.
        """
        now_s = self._clock()
        if now_s - self._ended_s > _FORGOTTEN_AFTER * self._longest_s:
            self._next_s = self._longest_s * _FIRST_OF_LONGEST
        pause_s = min(self._next_s, self._longest_s)
        self._next_s = 2 * pause_s
        self._ended_s = now_s + pause_s
        return pause_s
