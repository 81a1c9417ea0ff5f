"""A pause after an unsuccessful attempt, doubled with each one in a row. Sans-IO."""

import math


class DoublingPause:
    """The state of one pause. All times are monotonic seconds."""

    def __init__(self, min_s: float, max_s: float) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._next_s = min_s
        self.until_s = -math.inf

    def begin(self, now_s: float) -> None:
        """Begin a pause after an unsuccessful attempt."""
        self.until_s = now_s + self._next_s
        self._next_s = min(2 * self._next_s, self._max_s)

    def reset(self) -> None:
        """Make the next pause a short one, after a success."""
        self._next_s = self._min_s

    def is_over(self, now_s: float) -> bool:
        """Whether the next attempt may be made."""
        return now_s >= self.until_s
