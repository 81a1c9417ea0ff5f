"""The write path's own decisions on a virtual clock: producers, followers and a store around `WritePathCore`.

`WritePathCore`, its `Pacing` and `LinkDecider` are the product's, with its default limits. Around them are plain
models: producers that append batches, the loop with a store (`perf.cost.loop`), and two followers in other zones
(`perf.cost.followers`). All requests and bytes are counted in `Counts`.

The same seed gives the same run. Faults, elections, and followers that are far behind are left out.
"""

import math
from collections import deque
from functools import partial
from typing import Final

import numpy as np

from kafka_log.topic_partition import TopicIdPartition
from perf.cost.counts import Counts
from perf.cost.followers import CostFollowers
from perf.cost.load import Assigned, Load, ProducedLog, ProducedTask
from perf.cost.loop import CostLoop
from perf.cost.timeline import StoreTimes, Timeline
from rlm.write_path.commit.link_costs import LinkCosts
from rlm.write_path.commit.link_policy import CostLimits, LinkDecider
from rlm.write_path.commit.producers import ClientConnection, Connections
from rlm.write_path.core.pacing import LogManagerLimits
from rlm.write_path.core.write_path_core import WritePathCore

_JAVA_IN_FLIGHT: Final = 5
"""max.in.flight.requests.per.connection"""
_BUFFER_BYTES: Final = 32 * 1024 * 1024
"""buffer.memory; what comes beyond is not produced."""


class _Producer:
    """A producer with acks=all, and its connection: requests of one batch each, which the broker takes one by one."""

    def __init__(self, load: Load) -> None:
        self._request_bytes = load.batch_bytes
        self._in_flight_max = math.inf if load.request_bytes else _JAVA_IN_FLIGHT
        self._buffered, self._in_flight = deque[float](), deque[float]()
        """When the requests were due that are not sent, and those that are not answered."""
        self._is_taken = False
        self._sent, self._sent_s, self._answered_s = 0, -math.inf, -math.inf

    def produce(self, now_s: float) -> None:
        """Send a request as soon as fewer than allowed are in flight."""
        if len(self._buffered) * self._request_bytes < _BUFFER_BYTES:
            self._buffered.append(now_s)
        self._send(now_s)

    def _send(self, now_s: float) -> None:
        while self._buffered and len(self._in_flight) < self._in_flight_max:
            self._in_flight.append(self._buffered.popleft())
            self._sent, self._sent_s = self._sent + 1, now_s

    def take(self) -> bool:
        """Let the broker take the first request. Returns whether there is one, and none is taken already."""
        is_next = bool(self._in_flight) and not self._is_taken
        self._is_taken |= is_next
        return is_next

    def answer(self, now_s: float) -> float:
        """Answer the request that was taken. Returns when it was due."""
        self._is_taken, self._answered_s = False, now_s
        due_s = self._in_flight.popleft()
        self._send(now_s)
        return due_s

    def connection(self, now_s: float) -> ClientConnection:
        unread = (len(self._in_flight) - self._is_taken) * self._request_bytes
        return ClientConnection(
            self._sent * self._request_bytes, unread, now_s - self._sent_s, now_s - self._answered_s
        )


class CostWorld:
    """One broker's agent for one load."""

    def __init__(
        self,
        load: Load,
        limits: LogManagerLimits,
        cost_limits: CostLimits,
        costs: LinkCosts,
        assigned: Assigned,
        *,
        is_noisy: bool = False,
    ) -> None:
        self._load = load
        self._settle_s = 2 * limits.commit.archive_interval_s + 3
        """The time for work that is still in progress when producers end."""
        self._counts = Counts()
        self._time = Timeline(1000.0)
        self._random = np.random.default_rng(17)
        self.decider = LinkDecider(cost_limits, costs, self.connections)
        self._core = WritePathCore(limits, self.decider)
        times = StoreTimes(18, is_noisy=is_noisy)
        self._loop = CostLoop(self._core, self._time, self._counts, times)
        self._logs = [ProducedLog(number, load.batch_bytes) for number in range(load.partitions)]
        content = memoryview(bytes(2 * max(limits.read_bytes, limits.commit.upload_bytes) + load.batch_bytes))
        self._loop.do(self._core.assigned([assigned.to(log.partition) for log in self._logs]))
        while self._core.has_to_take_on:
            for assignment in self._core.to_take_on():
                log = self._logs[assignment.topic_id_partition.partition]
                self._loop.do(self._core.taken_on(assignment, ProducedTask(log, content)))
        self._followers = CostFollowers(
            load, limits.link_wait_max_s, self._core, self._logs, self._time, self._counts, self._loop.go_on, times
        )
        self._loop.followers = self._followers
        self._until_s = self._time.now_s
        self._producers = [_Producer(load) for _ in range(load.producers)]

    def connections(self) -> Connections:
        """Return the producers' connections, as `agent.client_connections` shows real ones."""
        return {number: one.connection(self._time.now_s) for number, one in enumerate(self._producers)}

    def run(self, seconds: float) -> Counts:
        """Produce for this time, and let work in progress finish."""
        begin_s, self._until_s = self._time.now_s, self._time.now_s + seconds
        for number in range(self._load.producers):
            self._time.at(begin_s + self._random.random() * self._gap_s(), partial(self._produce, number))
        self._followers.start()
        self._loop.go_on()
        self._time.run(self._until_s + self._settle_s)
        self._loop.do(self._core.unwanted.declare_all(self._time.now_s))
        self._counts.seconds = seconds
        self._counts.metadata_bytes = self._loop.metadata.end()
        return self._counts

    def _gap_s(self) -> float:
        """Return the average time between two batches of one producer."""
        return self._load.batch_bytes * self._load.producers / self._load.peak_bytes_per_s

    def _produce(self, number: int) -> None:
        load = self._load
        active_s = load.active_from(self._time.now_s)
        if active_s >= self._until_s:
            return
        if active_s > self._time.now_s:
            self._time.at(active_s + self._random.random() * self._gap_s(), lambda: self._produce(number))
            return
        self._time.at(self._time.now_s + self._random.exponential(self._gap_s()), lambda: self._produce(number))
        if load.acks_all:
            self._producers[number].produce(self._time.now_s)
            self._take_request(number)
        else:
            self._appended(self._append().partition)

    def _append(self) -> ProducedLog:
        log = self._logs[self._random.integers(len(self._logs))]
        log.end += 1
        self._counts.produced_bytes += self._load.batch_bytes
        return log

    def _take_request(self, number: int) -> None:
        """Take the first of a producer's requests, and the next once it is answered."""
        producer = self._producers[number]
        if not producer.take():
            return
        log = self._append()

        def answered() -> None:
            self._counts.latencies_s.append(self._time.now_s - producer.answer(self._time.now_s))
            self._take_request(number)

        log.high_watermark_waits.append((log.end, answered))
        self._appended(log.partition)

    def _appended(self, partition: TopicIdPartition) -> None:
        self._loop.append_seen(partition)
        self._followers.appended()
