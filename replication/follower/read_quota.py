"""Decides which reads for a local broker that is far behind are made, and when. Sans-IO.

A read begins when the quota allows it. If that takes longer than `wait_max_s`, the read is not made. So the quota moves
a catch-up from object storage to cross-zone traffic, and never slows it down by more than that wait.
"""

from dataclasses import dataclass

from rlm.write_path.commit.bandwidth import TokenBucket


@dataclass(frozen=True, slots=True)
class CatchUpReadLimits:
    """Limits in threads, bytes, bytes per second and seconds."""

    threads: int
    bytes_per_s: int
    under_way_bytes: int
    """The most bytes that may be planned or being read; announcements beyond it are dropped."""
    wait_max_s: float


class ReadQuota:
    """The quota over all leaders, as KIP-956 has one for reads from KIP-405's tier. Times are monotonic seconds."""

    def __init__(self, limits: CatchUpReadLimits) -> None:
        self._limits = limits
        self._bucket = TokenBucket(limits.bytes_per_s)
        self.under_way_bytes = 0
        """Bytes of reads that were planned and have not ended."""

    def has_room(self, size: int) -> bool:
        """Whether so many more bytes may be planned as a hint."""
        return self.under_way_bytes + size <= self._limits.under_way_bytes

    def is_spent(self, now_s: float) -> bool:
        """Whether a read would have to wait for longer than allowed."""
        return self._bucket.wait_s(now_s) > self._limits.wait_max_s

    def plan(self, size: int, now_s: float) -> float:
        """Plan a read of so many bytes. Returns the seconds until it may begin; `ended` must follow."""
        self.under_way_bytes += size
        return self._bucket.take(size, now_s)

    def ended(self, size: int) -> None:
        """Record the end of a read of so many bytes, whatever its result."""
        self.under_way_bytes -= size
