"""Decides when an upload starts. Sans-IO.

An object costs its requests, and the agents some 5 ms of CPU whatever its size; a later upload delays those who wait
for it. So, as in a database's group commit, what is appended while others wait shares one object:

- Nobody wants links (small loads, by cost): one archive interval from start to start.
- Links are wanted because they pay: until the rate has brought an object that costs little beside its bytes, at the
  latest after the time that an upload may wait. As soon as an object pays and nothing more comes: then all producers
  wait.
- Links are wanted whatever they cost: at once while nothing is in flight, so that a single record waits for nothing.
  Otherwise, or while much is appended, one interval after the last start, and up to two for a large object.
- As soon as a whole object's bytes are queued or known to be in the logs.

After a failure nothing starts before its back-off has ended. Unless an object is whole, nothing starts before this
agent's share of all agents' objects allows it (`spacing_s`). In any case, nothing starts before the quota in bytes per
second allows it, if there is one (as KIP-956 has for KIP-405's uploads).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

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
    retry_s: float
    retry_max_s: float
    bytes_per_s: int | None = None
    """remote.wal.log.manager.copy.max.bytes.per.second"""


class Urgency(IntEnum):
    """For whom an upload is made."""

    ARCHIVE = 0
    """Nobody waits for its links."""
    PAYING_LINKS = 1
    """Links are cheaper, and should stay so."""
    LINKS = 2
    """Followers wait for its links whatever they cost, or producers until their records are stored."""


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
    """How the upload is wanted."""
    since_s: float = -math.inf
    """When the oldest of what waits was appended."""
    bytes_per_s: float = 0.0
    """The recent rate of what may be linked."""
    wanted_bytes: float = 0.0
    """The average size that objects should have."""
    wait_s: float = math.inf
    """How long an append may wait for more."""
    newest_s: float = math.inf
    """When the newest of what is queued was read."""
    enough_bytes: float = math.inf
    """The size from which on an object just pays, if producers may be waiting for it."""


class Cadence:
    """Takes uploads as events, and says when the next one starts. All times are monotonic seconds."""

    def __init__(self, limits: CommitLimits) -> None:
        self._limits = limits
        self._quota = TokenBucket(limits.bytes_per_s or math.inf)
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
        """Return when to read what is due and to start an upload of what is queued; inf: not before something
        happens.
        """
        if not load.queued_bytes and load.due_s > now_s:
            return load.due_s
        if self.is_full:
            return math.inf
        earliest_s = max(self._retry_at_s, self._quota.free_s, self._spaced_from_s(load.queued_bytes))
        is_bulk = self._is_bulk(load)
        at_once = load.urgency is Urgency.LINKS and not self._in_flight_s and not is_bulk
        if at_once or self.is_whole(load.queued_bytes):
            return earliest_s
        if load.urgency is Urgency.ARCHIVE:
            return max(self._last_start_s + self._limits.archive_interval_s, earliest_s)
        interval_s, rate = self._limits.interval_s, max(load.bytes_per_s, 1.0)
        if is_bulk:
            interval_s *= min(max(OBJECT_BYTES / (rate * interval_s), 1.0), 2.0)
        if load.urgency is Urgency.LINKS:
            return max(self._last_start_s + interval_s, earliest_s)
        # Logs are read as soon as an object may just pay: that shows whether all producers wait.
        wanted_bytes = load.wanted_bytes if load.queued_bytes else min(load.enough_bytes, load.wanted_bytes)
        interval_s = stretched_interval_s(interval_s, wanted_bytes / rate, load.wait_s)
        # Producers that wait append again when they have their answers, so their rounds count from the last start.
        is_new = load.since_s - self._last_start_s > max(load.wait_s, interval_s)
        start_s = (load.since_s if is_new else self._last_start_s) + interval_s
        if load.queued_bytes >= load.enough_bytes:  # nothing more comes before producers that wait have their answers
            start_s = min(start_s, load.newest_s + LULL_S)
        return max(start_s, earliest_s)

    def _is_bulk(self, load: Load) -> bool:
        return load.bytes_per_s * self._limits.interval_s >= OBJECT_BYTES / 4 and not self._back_off_s

    def is_whole(self, queued_bytes: int) -> bool:
        """Whether these bytes, with what was not read yet, fill an object."""
        return queued_bytes + sum(self._unread_bytes.values()) >= self._limits.upload_bytes

    @property
    def is_full(self) -> bool:
        """Whether no upload may start before one under way ends."""
        return len(self._in_flight_s) >= self._limits.max_in_flight

    def is_prompt(self, wait_max_s: float, now_s: float) -> bool:
        """Whether nothing fails, and neither the oldest upload nor the quota takes so long."""
        oldest_s = self._in_flight_s[0] if self._in_flight_s else now_s
        return not self._back_off_s and max(now_s - oldest_s, self.held_back_s(now_s)) < wait_max_s

    def held_back_s(self, now_s: float) -> float:
        """Return how long the quota blocks the next upload."""
        return self._quota.wait_s(now_s)

    def _spaced_from_s(self, queued_bytes: int) -> float:
        return -math.inf if self.is_whole(queued_bytes) else self._last_upload_s + self.spacing_s

    def back_off_s(self, now_s: float) -> float:
        """Return how long nothing is tried after the last failure."""
        return max(self._retry_at_s - now_s, 0.0)

    # What happened.

    def left_unread(self, partition: TopicIdPartition, size_bytes: int) -> None:
        """Record that the partition's log has so many bytes that were not read yet."""
        self._unread_bytes[partition] = size_bytes

    def read(self) -> None:
        """Record that everything noticed so far is about to be read."""
        self._unread_bytes.clear()

    def left_out(self, now_s: float) -> None:
        """Delay the next start by an interval: what was read is in no upload, as nobody wants it."""
        self._last_start_s = now_s

    def started(self, now_s: float, size_bytes: int) -> None:
        """Record that an upload of so many bytes began."""
        self._last_start_s = self._last_upload_s = now_s
        self._in_flight_s.append(now_s)
        self._quota.take(size_bytes, now_s)

    def stored(self, started_s: float) -> None:
        """Record that the upload that began then is stored."""
        self._in_flight_s.remove(started_s)
        self._back_off_s, self._retry_at_s = 0.0, -math.inf

    def failed(self, started_s: float, now_s: float) -> None:
        """Record that the upload that began then failed for good; its items will be uploaded again."""
        self._in_flight_s.remove(started_s)
        self._back_off_s = min(2 * self._back_off_s or self._limits.retry_s, self._limits.retry_max_s)
        self._retry_at_s = now_s + self._back_off_s


def stretched_interval_s(interval_s: float, full_s: float, wait_max_s: float) -> float:
    """Return the time between starts where links pay: until an object is full, within limits."""
    return min(max(full_s, interval_s), max(wait_max_s, interval_s))


HEADROOM: Final = 1.25
"""An agent may want this many times the objects it makes. A limited agent makes a little less than its share, because
uploads begin a little late; without headroom its limit would be lifted."""


def spacing_s(objects_per_s: Iterable[float], bound_per_s: float) -> float:
    """Return the least time from one upload to the next for each agent; 0 if nobody is limited.

    `objects_per_s` are the agents' rates; all together may make `bound_per_s`. Each agent reads the metadata topic's
    records of every object, and gets announcements from the leaders that it follows. So its CPU grows with the objects
    of all agents: at 90 brokers an object every 25 ms from each would be too much for one agent (docs/performance.md).
    Brokers that make few objects leave their share to those that make many: the limit is shared max-min fairly, like
    bandwidth (Bertsekas, Gallager, Data Networks, 6.5.2). All agents read the same topic, so they calculate the same
    share without asking each other.
    """
    wanted = sorted(rate * HEADROOM for rate in objects_per_s)
    left_per_s = bound_per_s
    for place, rate in enumerate(wanted):
        sharing = len(wanted) - place
        if rate * sharing > left_per_s:
            return sharing / left_per_s
        left_per_s -= rate
    return 0.0
