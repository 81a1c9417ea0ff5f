"""The load produced to one broker, and its producers."""

import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from rlm.write_path.assignment import Assignment

FOLLOWER_IDS: Final = (2, 3)
"""The followers' ids; each is in a zone of its own."""
_JAVA_IN_FLIGHT: Final = 5
"""max.in.flight.requests.per.connection"""
_BUFFER_BYTES: Final = 32 * 1024 * 1024
"""buffer.memory; what comes beyond is not produced."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load that producers put on one broker: rate, bursts, partitions, acks."""

    bytes_per_s: float
    """The average over all time."""
    burst_s: float = 0.0
    """The active part of each period; 0: steady."""
    period_s: float = 0.0
    acks_all: bool = False
    """Whether each producer waits for the followers before its next batch."""
    partitions: int = 12
    request_bytes: int = 0
    """The request size of one producer that sends requests without waiting, which the broker takes one by one, as with
    librdkafka. 0: there is none; `acks_all` must be set with it."""

    @property
    def peak_bytes_per_s(self) -> float:
        """The rate while records are produced."""
        return self.bytes_per_s * (self.period_s / self.burst_s if self.burst_s else 1.0)

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
        if not self.burst_s or now_s % self.period_s < self.burst_s:
            return now_s
        return (now_s // self.period_s + 1) * self.period_s


@dataclass(frozen=True, slots=True)
class Assigned:
    """The link policy and retention of the load's partitions."""

    policy: LinkPolicy = LinkPolicy.COST
    is_kept: bool = False
    object_life_s: float = 3600.0

    def to(self, partition: TopicIdPartition) -> Assignment:
        directory, followers = Path(f"load-{partition.partition}"), frozenset(FOLLOWER_IDS)
        return Assignment(
            partition, "load", directory, self.policy, 250, False, followers, self.is_kept, self.object_life_s
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
