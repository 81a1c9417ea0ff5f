"""The write path's own decisions on a virtual clock: producers, followers and a store around `WritePathCore`.

`WritePathCore`, its `Pacing` and `LinkDecider` are the product's, with its default limits. Around them are plain
models: producers that append batches, the agent's loop with a store, and two followers in other zones. All requests and
bytes are counted in `Counts`.

The same seed gives the same run. Faults, elections, and followers that are far behind are left out.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import numpy as np

from kafka_log.record_batch import BatchSpan
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.offset_ranges import OffsetRange
from perf.cost.load import FOLLOWER_IDS, Counts, Load, WaitingProducer
from plugin.prices import Prices
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.commit.cadence import Cadence
from rlm.write_path.commit.link_policy import LinkDecider, LinkMode
from rlm.write_path.commit.price import Price
from rlm.write_path.core.actions import Action, TellLeftOut, TellStored, Upload
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.core.pacing import LogManagerLimits, Look, UploadNow, Wait
from rlm.write_path.core.write_path_core import WritePathCore
from rlm.write_path.link_costs import LinkCosts
from rlm.write_path.reading.log_task import LogTask, TaskOutcome
from rlm.write_path.uploads.segment_queue import MetaQueueItem, UploadedSegment

UPLOAD_WAIT_S: Final = 0.1
"""The default of remote.wal.link.upload.wait.max.ms."""
PUT_S: Final = 0.010
GET_S: Final = 0.005
ROUND_TRIP_S: Final = 0.0015
"""The time between two zones, with the brokers' part of a fetch."""
_RESPONSE_BYTES: Final = 10 * 1024 * 1024
"""The value of replica.fetch.response.max.bytes."""
_NOISY_P50_S: Final = 0.005
_NOISY_SIGMA: Final = math.log(20) / 2.326
"""The sigma of a lognormal time whose p99 is 20 times its p50: 100 ms."""
_STALL_EVERY_S: Final = 5.0
_STALL_S: Final = 0.2


class Timeline:
    """Runs events in the order of their times; two events at one time run in the order in which they were scheduled."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._tickets = count()

    def at(self, when_s: float, happens: Callable[[], None]) -> None:
        """Schedule an event."""
        heapq.heappush(self._events, (when_s, next(self._tickets), happens))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, happens = heapq.heappop(self._events)
            happens()


class ProducedLog:
    """One partition: batches of one size and one record, so an offset determines the position of its bytes."""

    def __init__(self, number: int, batch_bytes: int) -> None:
        self.partition = TopicIdPartition(TopicId(b"c" * 16), number)
        self.batch_bytes = batch_bytes
        self.end = 0
        self.object_of: dict[int, int] = {}
        """By offset, the sequence of the object that holds it."""
        self.high_watermark_waits: list[tuple[int, Callable[[], None]]] = []

    def spans(self, begin: int, end: int) -> tuple[BatchSpan, ...]:
        size = self.batch_bytes
        return tuple(BatchSpan(at, at, 0, 0, size * (at - begin), size * (at - begin + 1)) for at in range(begin, end))


class ProducedTask:
    """A `LogTask` that reads a produced log."""

    def __init__(self, log: ProducedLog, content: memoryview) -> None:
        self._log = log
        self._content = content
        self.topic_id_partition, self.directory = log.partition, Path(f"c-{log.partition.partition}")
        self.next_offset = 0
        self.missing: tuple[OffsetRange, ...] = ()

    def run(self, max_bytes: int, seen_s: float, now_s: float) -> TaskOutcome:
        log, begin = self._log, self.next_offset
        end = min(log.end, begin + max(max_bytes // log.batch_bytes, 1))
        self.next_offset, size = end, (end - begin) * log.batch_bytes
        items = (
            (MetaQueueItem(log.partition, log.spans(begin, end), self._content[:size], seen_s, now_s),) if size else ()
        )
        return TaskOutcome(items, size, end, self.unread_bytes(), None, (), deleted=False)

    run_cached = run

    def unread_bytes(self) -> int:
        return (self._log.end - self.next_offset) * self._log.batch_bytes

    def also_read(self, ranges: object) -> None: ...

    def pass_over(self, offset: int) -> LogTask | None:
        return None

    def close(self) -> None: ...


class CostLoop:
    """Runs the write path's core on the virtual clock: reads, uploads, and notifies the followers' side."""

    def __init__(self, world: "CostWorld") -> None:
        self._world, self._core, self._time = world, world.core, world.time
        self._turn = 0
        """The number of turns, so that a timer of an earlier turn does nothing."""
        self._sequences = count()

    def append_seen(self, partition: TopicIdPartition) -> None:
        if self._core.pacing.append_seen(partition, self._time.now_s):
            self.go_on()

    def go_on(self) -> None:
        """Let the core decide again, because something has changed."""
        self._turn += 1
        turn, pacing = self._turn, self._core.pacing
        while True:
            match pacing.next_step(self._time.now_s):
                case UploadNow():
                    self._read()
                    self.do(self._core.unwanted.drop_queued(self._time.now_s))
                    self._start(pacing.next_upload(self._time.now_s))
                case Look():
                    self._read()
                    self.do(self._core.look(lambda led: led.task.unread_bytes(), self._time.now_s))
                case Wait(delay_s):
                    if delay_s is not None:
                        self._time.at(self._time.now_s + delay_s, lambda: self.go_on() if turn == self._turn else None)
                    return

    def _read(self) -> None:
        reads = self._core.pacing.reads(self._time.now_s)
        if reads is None:
            return
        left = reads.budget_bytes
        for read in reads.reads:
            outcome = read.led.task.run(left, read.seen_s, self._time.now_s) if left > 0 else None
            left -= outcome.read_bytes if outcome is not None else 0
            self.do(self._core.read_done(read, outcome, self._time.now_s))
            if outcome is None:
                unread_bytes = read.led.task.unread_bytes()
                self._core.pacing.commit.left_unread(read.led.assignment.topic_id_partition, unread_bytes)

    def _start(self, upload: Upload | None) -> None:
        if upload is not None:
            self._time.at(self._time.now_s + self._world.store_took_s(PUT_S), lambda: self._stored(upload))

    def _stored(self, upload: Upload) -> None:
        items = tuple(upload.items)
        entries = tuple(item.metadata_entry() for item in items)
        size = sum(len(item.records) for item in items)
        self._world.counts.put(size, len(items), self._world.load.object_life_s)
        segment_id = CombinedSegmentId(1, 1, next(self._sequences))
        stored = UploadedSegment(segment_id, items, entries, size, self._time.now_s)
        actions = self._core.upload_stored(upload, stored, self._time.now_s)
        self.do(actions)
        self.go_on()

    def do(self, actions: Sequence[Action]) -> None:
        """Carry out the actions."""
        for action in actions:
            match action:
                case TellStored(segment):
                    self._world.followers.stored(segment)
                case TellLeftOut():
                    self._world.followers.look_again()


@dataclass(slots=True)
class _Follower:
    """One connection of a follower's fetcher; keys are partitions, but for `read_s`."""

    broker_id: int
    offsets: dict[int, int]
    waits_since: dict[int, float] = field(default_factory=dict)
    fields: dict[int, int] = field(default_factory=dict)
    """The present response: by partition, the end offset of its part."""
    is_parked: bool = False
    """Whether the broker has nothing for it."""
    read_s: dict[int, float] = field(default_factory=dict)
    """By object, the times when its announced parts have been read."""

    def batches(self) -> int:
        """Return the number of batches in the present response."""
        return sum(end - self.offsets[number] for number, end in self.fields.items())


class CostFollowers:
    """Plays the leader's agent and broker towards the followers, and counts what they send."""

    def __init__(self, world: "CostWorld") -> None:
        self._world = world
        self._counts, self._logs, self._time = world.counts, world.logs, world.time
        self._batch_bytes = world.load.batch_bytes
        self._pacing = world.core.pacing
        self._followers = [_Follower(one, dict.fromkeys(range(len(self._logs)), 0)) for one in FOLLOWER_IDS]
        self._waiting: list[_Follower] = []

    def start(self) -> None:
        for follower in self._followers:
            self._fetch(follower)

    def appended(self) -> None:
        """Respond to waiting followers, because records were appended."""
        for follower in self._followers:
            if follower.is_parked:
                follower.is_parked = False
                self._answer(follower)

    def stored(self, segment: UploadedSegment) -> None:
        """Send links and announcements, as `LeaderProxy.segment_uploaded` does."""
        sequence, announced = segment.combined_segment_id.sequence, list[int]()
        for item in segment.items:
            number = item.topic_id_partition.partition
            self._logs[number].object_of.update(dict.fromkeys(range(item.first_offset, item.last_offset + 1), sequence))
            if self._mode_of(number) is LinkMode.LINK:
                announced.append(len(item.records))
        for follower in self._followers if announced else ():
            self._counts.announced(len(announced))
            self._read(follower, sequence, sum(announced))
        self.look_again()

    def look_again(self) -> None:
        """Decide again for followers that wait for links, because something was stored or will not be."""
        waiting, self._waiting = self._waiting, []
        for follower in waiting:
            self._decide(follower)

    def _mode_of(self, number: int) -> LinkMode:
        return self._world.decider.mode_of(self._world.led(number).assignment, self._time.now_s)

    def _read(self, follower: _Follower, sequence: int, size: int) -> None:
        """Read a part of an object."""
        self._counts.get(size)
        follower.read_s[sequence] = self._time.now_s + self._world.store_took_s(GET_S)

    def _fetch(self, follower: _Follower) -> None:
        """Note a fetch, which acknowledges everything before its offsets."""
        for number, log in enumerate(self._logs):
            acknowledged = min(one.offsets[number] for one in self._followers)
            for end, done in log.high_watermark_waits:
                if end <= acknowledged:
                    self._time.at(self._time.now_s + ROUND_TRIP_S / 3, done)
            log.high_watermark_waits = [wait for wait in log.high_watermark_waits if wait[0] > acknowledged]
        self._answer(follower)

    def _answer(self, follower: _Follower) -> None:
        """Answer as the leader's broker does, as soon as it has something."""
        follower.fields, left = {}, _RESPONSE_BYTES
        for number, log in enumerate(self._logs):
            begin = follower.offsets[number]
            end = min(log.end, begin + left // self._batch_bytes)
            if end > begin:
                follower.fields[number] = end
                left -= (end - begin) * self._batch_bytes
        if not follower.fields:
            follower.is_parked = True
            return
        for number, end in follower.fields.items():
            if self._mode_of(number) is not LinkMode.OFF:
                begin = follower.offsets[number]
                partition, moved = self._logs[number].partition, (end - begin) * self._batch_bytes
                self._pacing.fetched(follower.broker_id, partition, begin, moved, self._time.now_s)
        self._decide(follower)

    def _decide(self, follower: _Follower) -> None:
        """Decide as `LinkPlanner.decide` does."""
        now_s = self._time.now_s
        stored: dict[int, int] = {}
        waiting, linking = list[int](), set[int]()
        for number, end in follower.fields.items():
            partition, begin = self._logs[number].partition, follower.offsets[number]
            stored[number] = self._stored_to(number, begin, end)
            if is_link := self._mode_of(number) is LinkMode.LINK:
                linking.add(number)
            if stored[number] > begin or not is_link or not self._pacing.upload_expected(partition, begin, now_s):
                follower.waits_since.pop(number, None)
            elif now_s < follower.waits_since.setdefault(number, now_s) + self._world.limits.link_wait_max_s:
                waiting.append(number)
        if any(number in linking and stored[number] > follower.offsets[number] for number in stored):
            self._send_linked(follower, stored, linking, waiting)
        elif waiting and len(waiting) == sum(number in follower.waits_since for number in follower.fields):
            self._wait(follower, waiting)
        else:
            for number in waiting:
                del follower.waits_since[number]
            self._send_inline(follower)

    def _wait(self, follower: _Follower, waiting: Sequence[int]) -> None:
        if follower not in self._waiting:
            self._waiting.append(follower)
            until_s = min(follower.waits_since[number] for number in waiting) + self._world.limits.link_wait_max_s
            self._time.at(until_s, lambda: self._wait_is_over(follower))
            self._pacing.links_wanted([self._logs[number].partition for number in waiting], self._time.now_s)
            self._world.loop.go_on()

    def _wait_is_over(self, follower: _Follower) -> None:
        longest_s = self._world.limits.link_wait_max_s
        is_over = any(self._time.now_s >= since_s + longest_s for since_s in follower.waits_since.values())
        if follower in self._waiting and is_over:
            self._waiting.remove(follower)
            follower.waits_since.clear()
            self._send_inline(follower)

    def _stored_to(self, number: int, begin: int, end: int) -> int:
        object_of = self._logs[number].object_of
        while begin < end and begin in object_of:
            begin += 1
        return begin

    def _send_linked(
        self, follower: _Follower, stored: Mapping[int, int], linking: set[int], waiting: Sequence[int]
    ) -> None:
        ready_s = self._time.now_s
        for number, stored_to in stored.items():
            batches = [self._logs[number].object_of[at] for at in range(follower.offsets[number], stored_to)]
            objects = dict.fromkeys(batches)
            self._counts.linked(len(batches) * self._batch_bytes, len(objects))
            for sequence in objects:
                if sequence not in follower.read_s:
                    self._read(follower, sequence, batches.count(sequence) * self._batch_bytes)
                ready_s = max(ready_s, follower.read_s[sequence])
            follower.offsets[number] = stored_to
            if number not in linking and number not in waiting:
                self._counts.inline((follower.fields[number] - stored_to) * self._batch_bytes)
                follower.offsets[number] = follower.fields[number]
        self._time.at(ready_s + ROUND_TRIP_S, lambda: self._fetch(follower))

    def _send_inline(self, follower: _Follower) -> None:
        self._counts.inline(follower.batches() * self._batch_bytes)
        follower.offsets.update(follower.fields)
        self._time.at(self._time.now_s + ROUND_TRIP_S, lambda: self._fetch(follower))


class CostWorld:
    """The simulation of one broker's agent for one load."""

    def __init__(
        self, load: Load, limits: LogManagerLimits, prices: Prices, *, is_off: bool = False, is_noisy: bool = False
    ) -> None:
        """`is_off`: nothing is linked. `is_noisy`: requests have a heavy tail, and the machine stalls now and then."""
        store = prices.s3_express
        price = Price(LinkCosts(prices, store).judge, UPLOAD_WAIT_S)
        self.decider = LinkDecider(price, Cadence(limits.commit), is_off=lambda: is_off)
        self.load, self.limits = load, limits
        self.counts = Counts()
        self.time = Timeline(1000.0)
        self.core = WritePathCore(limits, self.decider)
        self.logs = [ProducedLog(number, load.batch_bytes) for number in range(load.partitions)]
        self._random, self._store_times, self._is_noisy = np.random.default_rng(17), np.random.default_rng(18), is_noisy
        self.loop = CostLoop(self)
        self.followers = CostFollowers(self)
        self._lead()
        self._until_s = self.time.now_s
        self._producers = [WaitingProducer(load) for _ in range(load.producers)]

    def _lead(self) -> None:
        content = memoryview(
            bytes(2 * max(self.limits.read_bytes, self.limits.commit.upload_bytes) + self.load.batch_bytes)
        )
        self.loop.do(self.core.assigned([self.load.assignment(log.partition) for log in self.logs]))
        while self.core.has_to_take_on:
            for assignment in self.core.to_take_on():
                log = self.logs[assignment.topic_id_partition.partition]
                self.loop.do(self.core.taken_on(assignment, ProducedTask(log, content)))

    def led(self, number: int) -> LedPartition:
        """Return the core's view of a partition."""
        return self.core.led[self.logs[number].partition]

    def store_took_s(self, usual_s: float) -> float:
        """Return how long a request to the store that begins now takes; `usual_s` without noise."""
        if not self._is_noisy:
            return usual_s
        stalled_s = max(_STALL_S - self.time.now_s % _STALL_EVERY_S, 0.0)
        return stalled_s + _NOISY_P50_S * float(self._store_times.lognormal(0.0, _NOISY_SIGMA))

    def run(self, seconds: float, after_s: float = 0.0) -> Counts:
        """Produce for `after_s`, which is not counted, then for `seconds`, and let work in progress finish."""
        begin_s = self.time.now_s
        self._until_s = begin_s + after_s + seconds
        self.time.at(begin_s + after_s, self.counts.begin_anew)
        for number in range(self.load.producers):
            self.time.at(begin_s + self._random.random() * self.load.gap_s, partial(self._produce, number))
        self.followers.start()
        self.loop.go_on()
        # Work that is still in progress when producers end gets the time that it needs.
        self.time.run(self._until_s + 2 * self.limits.commit.archive_interval_s + 3)
        self.counts.seconds = seconds
        return self.counts

    def _produce(self, number: int) -> None:
        load, now_s = self.load, self.time.now_s
        active_s = load.active_from(now_s)
        if active_s >= self._until_s:
            return
        if active_s > now_s:
            self.time.at(active_s + self._random.random() * load.gap_s, partial(self._produce, number))
            return
        self.time.at(now_s + self._random.exponential(load.gap_s), partial(self._produce, number))
        if load.acks_all:
            self._producers[number].produce(now_s)
            self._take_request(number)
        else:
            self._appended(self._append().partition)

    def _append(self) -> ProducedLog:
        log = self.logs[self._random.integers(len(self.logs))]
        log.end += 1
        self.counts.produced_bytes += self.load.batch_bytes
        return log

    def _take_request(self, number: int) -> None:
        """Take the first of a producer's requests, and the next once it is answered."""
        producer = self._producers[number]
        if not producer.take():
            return
        log = self._append()

        def answered() -> None:
            self.counts.latencies_s.append(self.time.now_s - producer.answer())
            self._take_request(number)

        log.high_watermark_waits.append((log.end, answered))
        self._appended(log.partition)

    def _appended(self, partition: TopicIdPartition) -> None:
        self.loop.append_seen(partition)
        self.followers.appended()
