"""When to read the active segments and start an upload, sans-IO.

- Where links are wanted whatever they cost: at once while nothing is in flight, so that a lone record waits for
  nothing; otherwise one interval after the last start, so that what arrives meanwhile shares an object.
- Where links are wanted because they pay: one interval after the last start, as smaller objects would not pay.
- Where nobody wants links now (small loads, by cost): at the archive interval, as each object costs a request.
- While much is appended (`bulk`) by producers that wait (`AppendRhythm`): when the last object has reached the
  followers and those who waited for it have appended anew, so that all share one object, as in a group commit: when as
  much was appended as in the rounds before, or after a short silence; after two intervals in any case.
- While much is appended without a pause: when the rate has brought a full object (`BULK_OBJECT_BYTES`), but not before
  one interval after the last start and not after two. Each object costs the agents as much CPU as hundreds of kilobytes
  in it do, and nobody waits for this one.
- As soon as the queue holds a whole object's bytes; after a failure, not before its back-off ended.
- Whatever the reason, not before the quota in bytes per second lets it, where there is one (as KIP-956 has for
  KIP-405's uploads). What it holds back stays in the log; followers get it inline.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rlm.bandwidth import TokenBucket

BULK_BYTES: Final = 128 * 1024
"""From so much in an upload interval on, a load is `bulk`."""
BULK_OBJECT_BYTES: Final = 512 * 1024
"""How large objects are meant to be then (the KIP's are 300 to 500 KB)."""
_STRETCH_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class PacerLimits:
    """Intervals in seconds, sizes in bytes."""

    interval_s: float
    """remote.wal.log.manager.combiner.task.interval.ms"""
    archive_interval_s: float
    """remote.wal.archive.interval.ms"""
    upload_bytes: int
    """remote.wal.log.manager.combiner.task.upload.bytes"""
    max_in_flight: int
    """remote.wal.log.manager.combiner.thread.pool.size"""
    retry_s: float
    retry_max_s: float
    bytes_per_s: int | None = None
    """remote.wal.log.manager.copy.max.bytes.per.second"""


class Urgency(IntEnum):
    """For whom an upload is."""

    ARCHIVE = 0
    """Nobody waits for its links."""
    PAYING_LINKS = 1
    LINKS = 2
    """Followers wait for its links, whatever they cost."""


class UploadPacer:
    """Keeps count of uploads and names the time of the next one. All times are monotonic seconds."""

    def __init__(self, limits: PacerLimits) -> None:
        self._limits = limits
        self._last_start_s = float("-inf")
        self._retry_at_s = float("-inf")
        self._started_s: list[float] = []
        self._quota = TokenBucket(limits.bytes_per_s) if limits.bytes_per_s is not None else None
        self.failures_in_a_row = 0

    @property
    def in_flight(self) -> int:
        """Uploads that were started and have neither finished nor failed."""
        return len(self._started_s)

    def oldest_in_flight_s(self, now_s: float) -> float:
        """For how long the oldest upload has been under way; 0 when there is none."""
        return now_s - self._started_s[0] if self._started_s else 0.0

    def next_start_s(
        self, queued_bytes: int, urgency: Urgency, expected_bytes: float = 0.0, producers_wait: bool = False
    ) -> float | None:
        """From when on an upload may start, given that there is something to upload; None: not before one ends.

        `expected_bytes` is what one interval brings at the rate of late.
        """
        if self.in_flight >= self._limits.max_in_flight:
            return None
        bulk = expected_bytes >= BULK_BYTES
        at_once = urgency is Urgency.LINKS and not self._started_s and not bulk
        earliest_s = self._retry_at_s if self._quota is None else max(self._retry_at_s, self._quota.free_s)
        if queued_bytes >= self._limits.upload_bytes or at_once:
            return earliest_s
        interval_s = self._limits.archive_interval_s if urgency is Urgency.ARCHIVE else self._limits.interval_s
        if bulk and urgency is not Urgency.ARCHIVE:
            full = BULK_OBJECT_BYTES / expected_bytes
            interval_s *= _STRETCH_MAX if producers_wait else min(max(full, 1.0), _STRETCH_MAX)
        return max(self._last_start_s + interval_s, earliest_s)

    def held_back_s(self, now_s: float) -> float:
        """For how long the quota lets no upload begin."""
        return 0.0 if self._quota is None else self._quota.wait_s(now_s)

    def back_off_s(self, now_s: float) -> float:
        """For how long nothing is tried after the last failure."""
        return max(self._retry_at_s - now_s, 0.0)

    def started(self, now_s: float, size_bytes: int = 0) -> None:
        """An upload of so many bytes began."""
        self._last_start_s = now_s
        self._started_s.append(now_s)
        if self._quota is not None:
            self._quota.take(size_bytes, now_s)

    def finished(self, started_s: float) -> None:
        """The upload that began then is stored."""
        self._started_s.remove(started_s)
        self.failures_in_a_row = 0
        self._retry_at_s = float("-inf")

    def failed(self, started_s: float, now_s: float) -> None:
        """The upload that began then failed for good; its items will be uploaded again."""
        self._started_s.remove(started_s)
        self.failures_in_a_row += 1
        backoff_s = self._limits.retry_s * 2 ** min(self.failures_in_a_row - 1, 30)
        self._retry_at_s = now_s + min(backoff_s, self._limits.retry_max_s)
