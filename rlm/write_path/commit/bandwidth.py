"""A token bucket: how long to wait so that background work stays below a bandwidth, sans-IO."""

_BURST_S = 0.25


class TokenBucket:
    """Bytes per second, with a quarter of a second's worth saved up while nothing is moved. Not thread-safe."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = float("-inf")

    @property
    def free_s(self) -> float:
        """From when on bytes may be moved without a wait, monotonic."""
        return self._free_s

    def wait_s(self, now_s: float) -> float:
        """What `take` would return."""
        return max(self._free_s - now_s, 0.0)

    def take(self, size_bytes: int, now_s: float) -> float:
        """Take tokens for `size_bytes` in any case; seconds to wait before these bytes may be moved.

        A request larger than the bucket goes at once when the bucket is full, and those after it wait the longer.
        """
        begin_s = max(self._free_s, now_s - _BURST_S)
        self._free_s = begin_s + size_bytes / self._bytes_per_s
        return max(begin_s - now_s, 0.0)
