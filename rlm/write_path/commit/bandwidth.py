"""Measures and limits bytes over time. Sans-IO."""

import math

_BURST_S = 0.25


class TokenBucket:
    """A limit in bytes per second, with a quarter of a second's worth saved up while idle. Not thread-safe."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = float("-inf")

    @property
    def free_s(self) -> float:
        """When bytes may be moved without a wait; monotonic."""
        return self._free_s

    def wait_s(self, now_s: float) -> float:
        """Return what `take` would return."""
        return max(self._free_s - now_s, 0.0)

    def take(self, size_bytes: int, now_s: float) -> float:
        """Take tokens for `size_bytes` in any case. Returns the seconds to wait before these bytes may be moved.

        A request larger than the bucket starts at once when the bucket is full, and later requests wait longer for it.
        """
        begin_s = max(self._free_s, now_s - _BURST_S)
        self._free_s = begin_s + size_bytes / self._bytes_per_s
        return max(begin_s - now_s, 0.0)


class RateMeter:
    """An exponential average of bytes per second: after `time_constant_s` a step is visible to 63 %."""

    def __init__(self, time_constant_s: float) -> None:
        self._time_constant_s = time_constant_s
        self._bytes = 0.0
        self._at_s = -math.inf

    def add(self, size: int, now_s: float, over_s: float = 0.0) -> None:
        """Count bytes at this (monotonic) time, which came evenly over the last `over_s` seconds."""
        self._bytes, self._at_s = self._left(now_s), max(self._at_s, now_s)
        if over_s > 0:  # the earlier bytes have decayed since
            size_left = size * self._time_constant_s / over_s * -math.expm1(-over_s / self._time_constant_s)
            self._bytes += size_left
        else:
            self._bytes += size

    def bytes_per_second(self, now_s: float) -> float:
        """Return the rate as of now."""
        return self._left(now_s) / self._time_constant_s

    def _left(self, now_s: float) -> float:
        return self._bytes * math.exp(min(self._at_s - now_s, 0.0) / self._time_constant_s)
