"""Decides when an upload starts. Sans-IO. All times are monotonic seconds.

An object costs its requests, and the agents some 5 ms of CPU whatever its size; a later upload delays those who wait
for it. So, as in a database's group commit, what is appended while others wait shares one object. By `Urgency`:

- ARCHIVE, nobody waits for its links (small loads, by cost): one archive interval from start to start.
- PAYING_LINKS, links are cheaper and should stay so: once the time is over that an upload may wait, or as soon as an
  object pays and nothing more comes: then all producers wait.
- LINKS, followers wait for them whatever they cost, or producers until their records are stored: at once while nothing
  is in flight, so that a single record waits for nothing. Otherwise, or while much is appended, one interval after the
  last start, and up to two for a large object.

What fills a whole object, queued or known to be in the logs, waits for none of these. In any case nothing starts before
this agent's share of all agents' objects (`spacing_s`), the quota in bytes per second (as KIP-956 has for KIP-405's
uploads) and the back-off after a failure allow it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from kafka_log.topic_partition import TopicIdPartition
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.bandwidth import TokenBucket
from rlm.write_path.commit.constants import LULL_S, OBJECT_BYTES


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """Limits: intervals in seconds, sizes in bytes."""

    interval_s: float
    """remote.wal.log.manager.combiner.task.interval.ms"""
    archive_interval_s: float
    """remote.wal.archive.interval.ms"""
    upload_bytes: int
    """remote.wal.log.manager.combiner.task.upload.bytes"""
    max_in_flight: int
    """remote.wal.log.manager.combiner.thread.pool.size"""
    retry_s: float = 0.2
    retry_max_s: float = 10.0
    """The back-off after a failure doubles from the first to the second."""
    bytes_per_s: int | None = None
    """remote.wal.log.manager.copy.max.bytes.per.second"""


class Urgency(IntEnum):
    """For whom an upload is made."""

    ARCHIVE = 0
    PAYING_LINKS = 1
    LINKS = 2


@dataclass(frozen=True, slots=True)
class Load:
    """What there is to read and to upload now."""

    of: Iterable[Assignment] = ()
    """The partitions that it is of."""
    queued_bytes: int = 0
    """Bytes that were read and are in no upload under way."""
    due_s: float = math.inf
    """When the next log is due to be read; inf if none is, or if there is no room for it."""
    urgency: Urgency = Urgency.ARCHIVE
    since_s: float = -math.inf
    """When the oldest of what waits was appended."""
    bytes_per_s: float = 0.0
    """The recent rate of what may be linked."""
    wait_s: float = 0.0
    """How long an append may wait for more."""
    newest_s: float = math.inf
    """When the newest of what is queued was read."""
    enough_bytes: float = math.inf
    """The size from which on an object just pays, if producers may be waiting for it."""


class Cadence:
    """Takes uploads as events, and says when the next one starts."""

    def __init__(self, limits: CommitLimits) -> None:
        self._limits, self._quota = limits, TokenBucket(limits.bytes_per_s or math.inf)
        self._in_flight_s: list[float] = []
        """When the uploads under way were started."""
        self._last_start_s = self._last_upload_s = self._retry_at_s = -math.inf
        self.spacing_s = 0.0
        """The time from one upload to the next at least."""
        self._back_off_s = 0.0
        """Back-off after the last failure; 0 when an upload was stored since."""
        self._unread_bytes: dict[TopicIdPartition, int] = {}

    # Questions. They change nothing.

    def start_s(self, load: Load, now_s: float) -> float:
        """Return when to read what is due and to upload what is queued; inf: not before something happens."""
        if not load.queued_bytes and load.due_s > now_s:
            return load.due_s
        if self.is_full:
            return math.inf
        start_s = max(self._retry_at_s, self._quota.free_s, self._last_upload_s + self.spacing_s)
        if load.queued_bytes + sum(self._unread_bytes.values()) >= self._limits.upload_bytes:  # it is whole
            return start_s
        return max(start_s, self._gathered_s(load))

    def _gathered_s(self, load: Load) -> float:
        """Return when enough is gathered for those who want the upload."""
        if load.urgency is Urgency.ARCHIVE:
            return self._last_start_s + self._limits.archive_interval_s
        interval_s, rate = self._limits.interval_s, max(load.bytes_per_s, 1.0)
        if is_bulk := rate * interval_s >= OBJECT_BYTES / 4 and not self._back_off_s:
            interval_s *= min(max(OBJECT_BYTES / (rate * interval_s), 1.0), 2.0)
        if load.urgency is Urgency.LINKS:
            return self._last_start_s + interval_s if self._in_flight_s or is_bulk else -math.inf
        wait_s = max(load.wait_s, interval_s)
        # Producers that wait append again when they have their answers, so their rounds count from the last start.
        is_new = load.since_s - self._last_start_s > wait_s
        if not load.queued_bytes:  # logs are read once an object may just pay: that shows whether all producers wait
            wait_s = min(wait_s, max(load.enough_bytes / rate, interval_s))
        gathered_s = (load.since_s if is_new else self._last_start_s) + wait_s
        if load.queued_bytes >= load.enough_bytes:  # nothing more comes before producers that wait have their answers
            return min(gathered_s, load.newest_s + LULL_S)
        return gathered_s

    @property
    def is_full(self) -> bool:
        """Whether no upload may start before one under way ends."""
        return len(self._in_flight_s) >= self._limits.max_in_flight

    def is_prompt(self, wait_max_s: float, now_s: float) -> bool:
        """Whether no upload failed last, and neither the oldest one nor the quota takes `wait_max_s`."""
        oldest_s = self._in_flight_s[0] if self._in_flight_s else now_s
        return not self._back_off_s and max(now_s - oldest_s, self._quota.wait_s(now_s)) < wait_max_s

    def back_off_s(self, now_s: float) -> float:
        return max(self._retry_at_s - now_s, 0.0)

    # What happened.

    def left_unread(self, partition: TopicIdPartition, size_bytes: int) -> None:
        """Record how many bytes of the partition's log are known and not read yet."""
        self._unread_bytes[partition] = size_bytes

    def read(self) -> None:
        """Forget what `left_unread` recorded, because all logs are about to be read."""
        self._unread_bytes.clear()

    def left_out(self, now_s: float) -> None:
        """Delay the next start by an interval, because what was just read is in no upload: nothing needs it stored."""
        self._last_start_s = now_s

    def started(self, now_s: float, size_bytes: int) -> None:
        self._last_start_s = self._last_upload_s = now_s
        self._in_flight_s.append(now_s)
        self._quota.take(size_bytes, now_s)

    def stored(self, started_s: float) -> None:
        self._in_flight_s.remove(started_s)
        self._back_off_s, self._retry_at_s = 0.0, -math.inf

    def failed(self, started_s: float, now_s: float) -> None:
        """Record that the upload begun at `started_s` failed; its items are uploaded again after a back-off."""
        self._in_flight_s.remove(started_s)
        self._back_off_s = min(2 * self._back_off_s or self._limits.retry_s, self._limits.retry_max_s)
        self._retry_at_s = now_s + self._back_off_s
