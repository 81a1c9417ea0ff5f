"""Which reads are made for a local broker that is far behind, and when. Sans-IO.

A read begins when the quota lets it, if that is within `wait_max_s`; if it is not, it is not made. So the quota shifts
a catch-up from object storage to the border, and never slows it down by more than that wait.
"""

from dataclasses import dataclass

from rlm.write_path.commit.bandwidth import TokenBucket


@dataclass(frozen=True, slots=True)
class CatchUpReadLimits:
    """Threads, bytes, bytes per second and seconds."""

    threads: int
    bytes_per_s: int
    under_way_bytes: int
    """What may be planned or under way; what is announced beyond is let go."""
    wait_max_s: float


class ReadQuota:
    """Over all leaders (as KIP-956 has for reads from KIP-405's tier). All times are monotonic seconds."""

    def __init__(self, limits: CatchUpReadLimits) -> None:
        self._limits = limits
        self._bucket = TokenBucket(limits.bytes_per_s)
        self.under_way_bytes = 0
        """Of reads that were planned and have not ended."""

    def has_room(self, size: int) -> bool:
        """Whether so much more may be planned as a hint."""
        return self.under_way_bytes + size <= self._limits.under_way_bytes

    def is_spent(self, now_s: float) -> bool:
        """Whether a read would have to wait for longer than one may."""
        return self._bucket.wait_s(now_s) > self._limits.wait_max_s

    def plan(self, size: int, now_s: float) -> float:
        """A read of so many bytes is planned; seconds until it may begin. `ended` must follow."""
        self.under_way_bytes += size
        return self._bucket.take(size, now_s)

    def ended(self, size: int) -> None:
        """A read of so many bytes has ended, one way or another."""
        self.under_way_bytes -= size
