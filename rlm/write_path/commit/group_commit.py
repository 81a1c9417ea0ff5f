"""Group commit: decides when the active segments are read, and when an upload of what was read starts. Sans-IO.

An object costs its requests, and the agents some 5 ms of CPU whatever its size; a later upload delays those who wait
for it. So, as in a database's group commit, what is appended while others wait shares one object. How long an upload
waits for more bytes depends on who waits:

- Nobody wants links now (small loads, by cost): one archive interval from start to start, because objects cost
  requests.
- Links are wanted because they pay: until the rate has brought enough to pay with something to spare. So objects pay on
  the average, and nobody waits just to fill a single small one. If no producer waits, until an object's requests cost
  little compared with its bytes. If acks=all producers wait and one round pays for an object, as soon as the round is
  complete: a producer has one request at a leader at a time, so waiting longer only lowers its throughput. At the
  latest after the time that an upload may wait.
- Links are wanted whatever they cost: at once while nothing is in flight, so that a single record waits for nothing;
  otherwise one interval after the last start, so that what arrives meanwhile shares an object.
- While producers that wait append much (bulk): when the last object has reached the followers and those who waited for
  it have appended again, so that all share one object, if that pays or links are wanted whatever they cost; after two
  intervals in any case.
- While much is appended without a pause: when the rate has brought a full object, but between one and two intervals
  after the last start. Nobody waits for this one.
- As soon as a whole object's bytes are queued or known to be in the logs. After a failure, not before its back-off has
  ended, and no load counts as bulk until an object is stored.
- Unless an object is whole, not before this agent's share of all agents' objects allows it
  (`spacing_s`).
- In any case, not before the quota in bytes per second allows it, if there is one (as KIP-956 has for KIP-405's
  uploads). What it holds back stays in the log; followers get it inline.

Producers with acks=all append, wait until the followers have it, and append again: between two of their rounds nothing
comes. So an upload should begin as soon as they all wait. They do when as many bytes have come as in the rounds before.
A silence shows it too, but later, because it must be longer than the gaps within a round. Producers with acks=1
continue whatever happens to their records: the pauses between their batches mean nothing, and an upload at each of them
would only make objects small. The broker's files do not show acks; what is appended while an upload is under way does.

`WritePathCore` and its `Pacing` report events and ask `GroupCommit.next_step`; `CommitLoop` carries it out.
`LinkDecider` says for whom an upload is. Intervals, sizes and the quota are settings (`CommitLimits`);
`PartitionSchedule` has a failed log's back-off.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kafka_log.topic_partition import TopicIdPartition
from rlm.write_path.commit.bandwidth import TokenBucket
from rlm.write_path.commit.producers import QUIET_S, WEIGHT, Producers

# All constants of group commit, each with its unit and its reason. "By judgement" means that there is no measurement.

BULK_BYTES: Final = 128 * 1024
"""Bytes in an upload interval, or in an object for one follower, from which on a load is bulk. By judgement: 5 MB/s at
the default interval of 25 ms, where an upload costs the agents more than it saves anybody. Only far above that was
gathering measured: at 25 MB/s it takes a third less CPU."""
BULK_OBJECT_BYTES: Final = 512 * 1024
"""Bytes: the intended size of objects if nobody waits. 25 MB/s with acks=1 took the agents 0.93 core with 90 KB in an
object, 0.68 with 210 KB and 0.52 with 420 KB (docs/performance.md). The KIP's have 300 to 500 KB."""
STRETCH_MAX: Final = 2.0
"""The most intervals between two starts of a bulk load, so sharing costs one interval of latency. By judgement: waiting
longer for larger objects took 8 % less CPU and 5 ms more to the high watermark."""
UPLOAD_WAIT_MAX_S: Final = 0.1
"""The most seconds between two starts if links are wanted because they pay (remote.wal.link.upload.wait.max.ms).
Records reach consumers later by so much."""
WHOLE: Final = 0.99
"""Share of a round that counts as all of it, because batches differ a little in size. By judgement. Starting at a whole
round, together with gathering fetches as below, gave acks=all 4 to 39 % more throughput (docs/performance.md)."""
GATHER_RECENT_S: Final = 0.25
"""Seconds: an older upload says nothing about the load now. By judgement: ten default intervals."""
GATHER_MOST: Final = 0.6
"""Share of a round that a gathered fetch must bring. By judgement: with 128 KB batches, where rounds take longer than a
fetch may wait, gathering without such a limit delayed each fetch and saved nothing."""
GATHER_PAUSE_MIN_S: Final = 0.1
"""Seconds in which fetches are left alone after an unsuccessful gathering; doubled by each in a row. By judgement."""
GATHER_PAUSE_MAX_S: Final = 0.8
"""Seconds. By judgement: unsuccessful gathering delays followers during 3 % of the time (25 ms in 0.8 s)."""


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
    """Links are cheaper, and should be as cheap as possible."""
    BOUNDED_LINKS = 2
    """Links are cheaper, and should come soon."""
    LINKS = 3
    """Followers wait for its links whatever they cost, or producers until their records are stored."""


@dataclass(frozen=True, slots=True)
class Load:
    """What there is to read and to upload now."""

    queued_bytes: int
    """Bytes that were read and are in no upload under way."""
    due_s: float
    """When the next log is due to be read; inf if none is, or if there is no room for it."""
    has_unread: bool
    """Whether appends were noticed that were not read."""
    expected_bytes: float
    """The bytes that an upload interval brings at the recent rate."""
    urgency: Urgency
    """How the upload is wanted. Meaningless while nothing is queued or due."""
    bytes_per_s: float = 0.0
    """The recent rate."""
    paying_bytes: float = 0.0
    """The average size that objects should have."""
    wait_max_s: float = UPLOAD_WAIT_MAX_S
    """How long an append may wait for more."""
    is_free: bool = False
    """Whether none of its producers waits."""
    full_bytes: float = math.inf
    """The size from which on a larger object would hardly be cheaper."""


@dataclass(frozen=True, slots=True)
class UploadNow:
    """Read what is due, then start an upload of what is queued."""


@dataclass(frozen=True, slots=True)
class Gather:
    """Look for appends from time to time, until a whole round is there or none came for `quiet_s`, at most for
    `delay_s`.
    """

    delay_s: float
    quiet_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for so long, or until something happens; None: only until something happens."""

    delay_s: float | None


Step = UploadNow | Gather | Wait


def stretched_interval_s(interval_s: float, full_s: float = math.inf, wait_max_s: float = UPLOAD_WAIT_MAX_S) -> float:
    """Return the time between starts where links pay and nobody waits: until an object is full, within limits."""
    return min(max(full_s, interval_s), max(wait_max_s, interval_s))


class RoundSize:
    """Estimates how much is appended between two uploads by producers that wait for the one before.

    It follows the largest recent round at once and smaller ones slowly, because one of the waiting producers may be
    late.
    """

    def __init__(self) -> None:
        self.size_bytes = 0.0

    @property
    def whole_bytes(self) -> float:
        """The size from which on a round counts as whole."""
        return self.size_bytes * WHOLE

    def add(self, size_bytes: int) -> None:
        """Record a round of so many bytes."""
        if size_bytes > self.size_bytes:
            self.size_bytes = size_bytes
        else:
            self.size_bytes += WEIGHT * (size_bytes - self.size_bytes)


class GroupCommit:
    """Takes appends and uploads as events, and says what to do next, and when. All times are monotonic seconds."""

    def __init__(self, limits: CommitLimits, producers: Producers | None = None) -> None:
        self._limits = limits
        self._quota = TokenBucket(limits.bytes_per_s or math.inf)
        self._in_flight_s: list[float] = []
        """When the uploads under way were started."""
        self._last_start_s = self._last_upload_s = self._retry_at_s = -math.inf
        self.spacing_s = 0.0
        """The time from one upload to the next at least, as `LinkDecider` says."""
        self._paying_since_s: float | None = None
        """Since when links are wanted because they pay; None: they are not."""
        self._back_off_s = 0.0
        """Back-off after the last failure; 0 when an upload was stored since."""
        self.producers = Producers() if producers is None else producers
        self._round = RoundSize()
        self._unread_bytes: dict[TopicIdPartition, int] = {}

    # What next, and when.

    def next_step(self, load: Load, now_s: float) -> Step:
        """Return what to do now."""
        is_bulk = load.expected_bytes >= BULK_BYTES and not self._back_off_s
        self._note_paying(load, now_s)
        has_work = load.queued_bytes or load.due_s <= now_s
        delay_s = (self._start_s(load, is_bulk) if has_work else load.due_s) - now_s
        if delay_s <= 0:
            return UploadNow()
        if delay_s == math.inf:
            return Wait(None)
        if load.has_unread and (is_bulk or self._has_paying_rounds(load, now_s)):
            return Gather(delay_s, QUIET_S if self.producers.wait else math.inf)
        return Wait(delay_s)

    def _has_paying_rounds(self, load: Load, now_s: float) -> bool:
        """Whether links are wanted because they pay, and recent rounds of producers pay for an object."""
        is_by_cost = load.urgency in (Urgency.PAYING_LINKS, Urgency.BOUNDED_LINKS)
        if not is_by_cost or self._back_off_s or now_s - self._last_start_s > GATHER_RECENT_S:
            return False
        return self.producers.wait and self._round.size_bytes >= load.paying_bytes > 0

    def _note_paying(self, load: Load, now_s: float) -> None:
        if load.urgency not in (Urgency.PAYING_LINKS, Urgency.BOUNDED_LINKS):
            self._paying_since_s = None
        elif self._paying_since_s is None:
            self._paying_since_s = now_s

    def is_round(self, queued_bytes: int) -> bool:
        """Whether these bytes, with what was not read yet, are what all waiting producers append between two
        uploads.
        """
        return self.producers.wait and queued_bytes + self.unread_bytes >= self._round.whole_bytes

    def is_whole(self, queued_bytes: int) -> bool:
        """Whether these bytes, with what was not read yet, fill an object."""
        return queued_bytes + self.unread_bytes >= self._limits.upload_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes that logs are known to hold and that were not read yet."""
        return sum(self._unread_bytes.values())

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

    def is_too_soon(self, queued_bytes: int, now_s: float) -> bool:
        """Whether an upload of these bytes would come too soon after the last one."""
        return now_s < self._spaced_from_s(queued_bytes)

    def _spaced_from_s(self, queued_bytes: int) -> float:
        return -math.inf if self.is_whole(queued_bytes) else self._last_upload_s + self.spacing_s

    def back_off_s(self, now_s: float) -> float:
        """Return how long nothing is tried after the last failure."""
        return max(self._retry_at_s - now_s, 0.0)

    def _start_s(self, load: Load, is_bulk: bool) -> float:
        """Return when an upload may start; inf: not before one ends."""
        if self.is_full:
            return math.inf
        earliest_s = max(self._retry_at_s, self._quota.free_s, self._spaced_from_s(load.queued_bytes))
        at_once = load.urgency is Urgency.LINKS and not self._in_flight_s and not is_bulk
        if at_once or self.is_whole(load.queued_bytes):
            return earliest_s
        begun_s = self._last_start_s if self._paying_since_s is None else max(self._last_start_s, self._paying_since_s)
        return max(begun_s + self._interval_s(load, is_bulk), earliest_s)

    def _interval_s(self, load: Load, is_bulk: bool) -> float:
        """Return the time from one start to the next."""
        if load.urgency is Urgency.ARCHIVE:
            return self._limits.archive_interval_s
        interval_s = self._limits.interval_s
        if load.urgency is Urgency.PAYING_LINKS:
            rate = max(load.bytes_per_s, 1.0)
            if load.is_free or self.producers.nobody_waits:
                return stretched_interval_s(interval_s, max(load.full_bytes, load.paying_bytes) / rate, load.wait_max_s)
            rate = max(rate, self.producers.usual_bytes_per_s)
            interval_s = stretched_interval_s(interval_s, load.paying_bytes / rate, load.wait_max_s)
        if is_bulk:
            full = STRETCH_MAX if self.producers.wait else BULK_OBJECT_BYTES / load.expected_bytes
            interval_s *= min(max(full, 1.0), STRETCH_MAX)
        return interval_s

    # What happened.

    def appended(self, partition: TopicIdPartition, unread_bytes: int) -> None:
        """Record that the partition's log has so many bytes that were not read yet."""
        self._unread_bytes[partition] = unread_bytes

    def read(self) -> None:
        """Record that everything noticed so far is about to be read."""
        self._unread_bytes.clear()

    def note_look(self, now_s: float) -> None:
        """Delay the next look by an interval: what was read is in no upload, being too little or wanted by nobody."""
        self._last_start_s = now_s

    def started(self, now_s: float, size_bytes: int) -> None:
        """Record that an upload of so many bytes began."""
        self._last_start_s = self._last_upload_s = now_s
        self._in_flight_s.append(now_s)
        self._quota.take(size_bytes, now_s)
        self._round.add(size_bytes)

    def stored(self, started_s: float) -> None:
        """Record that the upload that began then is stored."""
        self._in_flight_s.remove(started_s)
        self._back_off_s, self._retry_at_s = 0.0, -math.inf

    def failed(self, started_s: float, now_s: float) -> None:
        """Record that the upload that began then failed for good; its items will be uploaded again."""
        self._in_flight_s.remove(started_s)
        self._back_off_s = min(2 * self._back_off_s or self._limits.retry_s, self._limits.retry_max_s)
        self._retry_at_s = now_s + self._back_off_s


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
