"""Measures and limits bytes over time. Sans-IO. All times are monotonic seconds."""

import math

from rlm.write_path.commit.constants import BURST_S, RATE_S


class TokenBucket:
    """A limit in bytes per second; while idle, BURST_S's worth is saved up. Not thread-safe."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self.free_s = -math.inf
        """When bytes may be moved without a wait."""

    def wait_s(self, now_s: float) -> float:
        """Return for how many seconds the next bytes would have to wait; takes no tokens."""
        return max(self.free_s - now_s, 0.0)

    def take(self, size_bytes: int, now_s: float) -> float:
        """Take tokens for `size_bytes` in any case. Returns the seconds to wait before these bytes may be moved.

        A request larger than the bucket starts at once when the bucket is full, and later requests wait longer for it.
        """
        begin_s = max(self.free_s, now_s - BURST_S)
        self.free_s = begin_s + size_bytes / self._bytes_per_s
        return max(begin_s - now_s, 0.0)


class RateMeter:
    """An exponential average of bytes per second: after `time_constant_s` a step is visible to 63 %."""

    def __init__(self, time_constant_s: float = RATE_S) -> None:
        self._time_constant_s = time_constant_s
        self._bytes = 0.0
        self._at_s = -math.inf

    def add(self, size: float, now_s: float, over_s: float = 0.0) -> None:
        """Count bytes which came evenly over the last `over_s` seconds."""
        if over_s > 0:  # the earlier ones have decayed since
            size *= self._time_constant_s / over_s * -math.expm1(-over_s / self._time_constant_s)
        self._bytes, self._at_s = self._left(now_s) + size, max(self._at_s, now_s)

    def bytes_per_second(self, now_s: float) -> float:
        return self._left(now_s) / self._time_constant_s

    def _left(self, now_s: float) -> float:
        return self._bytes * math.exp(min(self._at_s - now_s, 0.0) / self._time_constant_s)
