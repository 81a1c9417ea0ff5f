"""The load produced to one broker, its producers, and the bytes and requests that it takes."""

import math
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from retention_job.cost.cost_model import Amounts
from rlm.write_path.assignment import Assignment

FOLLOWER_IDS: Final = (2, 3)
"""The followers' ids; each is in a zone of its own."""
_JAVA_IN_FLIGHT: Final = 5
"""max.in.flight.requests.per.connection"""
_BUFFER_BYTES: Final = 32 * 1024 * 1024
"""buffer.memory; what comes beyond is not produced."""


SHAPES: Final = {"steady": (0.0, 0.0), "0.1 s of 1 s": (0.1, 1.0), "2 s of 10 s": (2.0, 10.0)}
"""The active time and the period of each shape; the rate is higher in the active time."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load that producers put on one broker, and what its topic is set to."""

    bytes_per_s: float
    """The average over all time."""
    shape: str = "steady"
    acks_all: bool = False
    """Whether each producer waits for the followers before its next batch."""
    partitions: int = 12
    request_bytes: int = 0
    """The request size of one producer that sends requests without waiting, which the broker takes one by one, as with
    librdkafka. 0: there is none; `acks_all` must be set with it."""
    is_kept: bool = False
    """Whether something else wants the topic stored, too."""
    object_life_s: float = 3600.0

    @property
    def peak_bytes_per_s(self) -> float:
        """The rate while records are produced."""
        burst_s, period_s = SHAPES[self.shape]
        return self.bytes_per_s * (period_s / burst_s if burst_s else 1.0)

    @property
    def batch_bytes(self) -> int:
        """The bytes that producers send in 5 ms, from 1 KB to a default batch; 128 KB if they wait for each."""
        if self.request_bytes:
            return self.request_bytes
        return int(min(max(self.peak_bytes_per_s * 0.005, 1000), 128_000 if self.acks_all else 16_000))

    @property
    def producers(self) -> int:
        """The number of producers; waiting ones must be enough to reach the rate with rounds of 40 ms."""
        if self.request_bytes:
            return 1
        return max(6, int(self.peak_bytes_per_s * 0.04 / self.batch_bytes) + 1) if self.acks_all else 6

    @property
    def gap_s(self) -> float:
        """The average time between two batches of one producer."""
        return self.batch_bytes * self.producers / self.peak_bytes_per_s

    def active_from(self, now_s: float) -> float:
        """Return the next time from `now_s` on at which the load is not paused."""
        burst_s, period_s = SHAPES[self.shape]
        return now_s if not burst_s or now_s % period_s < burst_s else (now_s // period_s + 1) * period_s

    def assignment(self, partition: TopicIdPartition) -> Assignment:
        directory, followers = Path(f"load-{partition.partition}"), frozenset(FOLLOWER_IDS)
        return Assignment(
            partition, "load", directory, LinkPolicy.COST, 250, False, followers, self.is_kept, self.object_life_s
        )


class WaitingProducer:
    """A producer with acks=all: requests of one batch each, which the broker takes one by one."""

    def __init__(self, load: Load) -> None:
        self._request_bytes = load.batch_bytes
        self._in_flight_max = math.inf if load.request_bytes else _JAVA_IN_FLIGHT
        self._buffered, self._in_flight = deque[float](), deque[float]()
        """When the requests were due that are not sent, and those that are not answered."""
        self._is_taken = False

    def produce(self, now_s: float) -> None:
        """Send a request as soon as fewer than allowed are in flight."""
        if len(self._buffered) * self._request_bytes < _BUFFER_BYTES:
            self._buffered.append(now_s)
        self._send()

    def _send(self) -> None:
        while self._buffered and len(self._in_flight) < self._in_flight_max:
            self._in_flight.append(self._buffered.popleft())

    def take(self) -> bool:
        """Let the broker take the first request. Returns False if there is none, or one is taken already."""
        is_next = bool(self._in_flight) and not self._is_taken
        self._is_taken |= is_next
        return is_next

    def answer(self) -> float:
        """Acknowledge the request that was taken. Returns when it was due."""
        self._is_taken = False
        due_s = self._in_flight.popleft()
        self._send()
        return due_s


_ANNOUNCEMENT_BYTES: Final = 26
_ANNOUNCED_RANGE_BYTES: Final = 8
_LINK_BYTES: Final = 30


@dataclass(slots=True)
class Counts:
    seconds: float = 0.0
    produced_bytes: int = 0
    amounts: Amounts = field(default_factory=Amounts)
    """All that is paid for."""
    linked_bytes: int = 0
    """Bytes to all followers together, as for inline bytes."""
    inline_bytes: int = 0
    latencies_s: list[float] = field(default_factory=list)
    """The times from when a request was sent to its answer."""

    def begin_anew(self) -> None:
        """Forget what was counted so far."""
        self.amounts, self.produced_bytes, self.linked_bytes, self.inline_bytes = Amounts(), 0, 0, 0
        self.latencies_s.clear()

    def put(self, size: int, entries: int, life_s: float) -> None:
        """Count an uploaded object of this size and number of entries, which is stored for `life_s`."""
        self.amounts.puts += 1
        self.amounts.uploaded_bytes += size
        self.amounts.stored_byte_s += size * life_s
        self.amounts.entries += entries

    def get(self, size: int) -> None:
        """Count a read of an object."""
        self.amounts.gets += 1
        self.amounts.retrieved_bytes += size

    def announced(self, entries: int) -> None:
        """Count an object's announcement to a follower with one range per entry; in reality, adjacent ranges are
        joined."""
        self.amounts.crossing_bytes += _ANNOUNCEMENT_BYTES + entries * _ANNOUNCED_RANGE_BYTES

    def linked(self, size: int, links: int) -> None:
        """Count bytes of one partition that a response has as links."""
        self.linked_bytes += size
        self.amounts.crossing_bytes += links * _LINK_BYTES

    def inline(self, size: int) -> None:
        """Count record bytes that a response has inline."""
        self.inline_bytes += size
        self.amounts.crossing_bytes += size
