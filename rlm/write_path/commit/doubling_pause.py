"""A pause after something that was tried in vain, longer with each time in a row, sans-IO."""

import math


class DoublingPause:
    """All times are monotonic seconds."""

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._next_s = min_s
        self.until_s = -math.inf

    def begin(self, now_s: float) -> None:
        """It was in vain."""
        self.until_s = now_s + self._next_s
        self._next_s = min(2 * self._next_s, self._max_s)

    def reset(self) -> None:
        """It was worth it: the next pause is a short one."""
        self._next_s = self._min_s

    def is_over(self, now_s: float) -> bool:
        """Whether it may be tried."""
        return now_s >= self.until_s
