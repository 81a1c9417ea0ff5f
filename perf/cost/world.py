"""The write path's own decisions on a virtual clock: producers, followers and a store around `WritePathCore`.

`WritePathCore`, its `Pacing` and `LinkDecider` are the product's, with its default limits. Around them are plain
models: producers that append batches, the loop with a store (`perf.cost.loop`), and two followers in other zones
(`perf.cost.followers`). All requests and bytes are counted in `Counts`.

The same seed gives the same run. Faults, elections, and followers that are far behind are left out.
"""

from collections import deque
from functools import partial

import numpy as np

from kafka_log.topic_partition import TopicIdPartition
from perf.cost.counts import Counts
from perf.cost.followers import CostFollowers
from perf.cost.load import Assigned, Load, ProducedLog, ProducedTask
from perf.cost.loop import CostLoop
from perf.cost.timeline import StoreTimes, Timeline
from rlm.write_path.commit.link_policy import LinkDecider
from rlm.write_path.core.log_manager_limits import LogManagerLimits
from rlm.write_path.core.write_path_core import WritePathCore


class CostWorld:
    """One broker's agent for one load."""

    def __init__(
        self,
        load: Load,
        limits: LogManagerLimits,
        decider: LinkDecider,
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
        self._core = WritePathCore(limits, decider)
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
        self._requests = deque[float]()
        """The times when the requests that are still unanswered were sent."""

    def run(self, seconds: float) -> Counts:
        """Produce for this time, and let work in progress finish."""
        begin_s, self._until_s = self._time.now_s, self._time.now_s + seconds
        for number in range(self._load.producers):
            self._time.at(begin_s + self._random.random() * self._gap_s(), partial(self._produce, number))
        self._followers.start()
        self._loop.go_on()
        self._time.run(self._until_s + self._settle_s)
        self._loop.do(self._core.unwanted.last_declared(self._time.now_s))
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
        due_s = self._time.now_s + self._random.exponential(self._gap_s())
        if load.request_bytes:
            self._time.at(due_s, lambda: self._produce(number))
            self._requests.append(self._time.now_s)
            if len(self._requests) == 1:
                self._take_request()
            return
        log = self._append()

        def again() -> None:
            self._time.at(max(due_s, self._time.now_s), lambda: self._produce(number))

        if load.acks_all:
            log.high_watermark_waits.append((log.end, again))
        else:
            again()
        self._appended(log.partition)

    def _append(self) -> ProducedLog:
        log = self._logs[self._random.integers(len(self._logs))]
        log.end += 1
        self._counts.produced_bytes += self._load.batch_bytes
        return log

    def _take_request(self) -> None:
        """Take the first of the waiting requests, and the next once it is answered."""
        log = self._append()

        def answered() -> None:
            self._counts.latencies_s.append(self._time.now_s - self._requests.popleft())
            if self._requests:
                self._take_request()

        log.high_watermark_waits.append((log.end, answered))
        self._appended(log.partition)

    def _appended(self, partition: TopicIdPartition) -> None:
        self._loop.append_seen(partition)
        self._followers.appended()
