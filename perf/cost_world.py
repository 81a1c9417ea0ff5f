"""The write path's own decisions on a virtual clock: producers, followers and a store around `WritePathCore`.

`WritePathCore`, its `Pacing` and `LinkDecider` are the product's, with its default limits. Around them stand plain
models: producers that append batches, two followers in other zones that fetch all partitions over one connection each,
and a store that takes a fixed time for a request. Followers are answered by the rules of
`replication.leader.link_planner`, without frames: what is stored goes as links; what is worth waiting for waits; the
rest goes inline. All requests and bytes are counted in `Counts`.

The same seed gives the same run. Left out are faults, elections, and followers that are far behind.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final

import numpy as np

from kafka_log.topic_partition import TopicIdPartition
from perf.cost_counts import Counts, MetadataVolume
from perf.cost_load import FOLLOWER_IDS, Assigned, Load, ProducedLog, ProducedTask
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.actions import Action, DeclareNotWanted, TellLeftOut, TellStored, Upload
from rlm.write_path.group_commit import Gather, UploadNow, Wait
from rlm.write_path.led_partition import LedPartition
from rlm.write_path.link_policy import LinkDecider, LinkMode
from rlm.write_path.log_manager_limits import LogManagerLimits
from rlm.write_path.uploaded_segment import UploadedSegment
from rlm.write_path.write_path_core import WritePathCore

PUT_S: Final = 0.010
GET_S: Final = 0.005
ROUND_TRIP_S: Final = 0.0015
"""Between two zones, with the brokers' part of a fetch."""
_RESPONSE_BYTES: Final = 10 * 1024 * 1024
"""replica.fetch.response.max.bytes."""
_LOOK_S: Final = 0.002
"""As `AppendWatcher.pause` looks for appends while it gathers."""


@dataclass(slots=True)
class _Follower:
    """One connection of a follower's fetcher."""

    broker_id: int
    offsets: dict[int, int]
    waits_since: dict[int, float] = field(default_factory=dict)
    fields: dict[int, int] = field(default_factory=dict)
    """The response at hand: partition to the end of what it has of it."""
    is_parked: bool = False
    """The broker has nothing for it."""
    read_s: dict[int, float] = field(default_factory=dict)
    """When what was announced of an object is there."""


class CostWorld:
    """One broker's agent for one load."""

    def __init__(self, load: Load, limits: LogManagerLimits, decider: LinkDecider, assigned: Assigned) -> None:
        self._load, self._limits = load, limits
        self.counts = Counts()
        self._metadata = MetadataVolume()
        self._now_s = 1000.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._tickets = count()
        self._random = np.random.default_rng(17)
        self._core = WritePathCore(limits, decider)
        self._logs = [ProducedLog(number, load.batch_bytes) for number in range(load.partitions)]
        content = memoryview(bytes(2 * max(limits.read_bytes, limits.commit.upload_bytes) + load.batch_bytes))
        self._do(self._core.assigned([assigned.to(log.partition) for log in self._logs]))
        while self._core.has_to_take_on:
            for assignment in self._core.to_take_on():
                log = self._logs[assignment.topic_id_partition.partition]
                self._do(self._core.taken_on(assignment, ProducedTask(log, content)))
        self._followers = [_Follower(one, dict.fromkeys(range(load.partitions), 0)) for one in FOLLOWER_IDS]
        self._waiting: list[_Follower] = []
        self._untold: dict[TopicIdPartition, None] = {}
        """Appended to while the loop gathers."""
        self._gathers = False
        self._turn = 0
        """Counts the loop's turns, so that a timer of an earlier one does nothing."""
        self._uploads = 0
        self._sequence = 0
        self._until_s = self._now_s

    def run(self, seconds: float) -> Counts:
        """Produce for so long, and let what is under way come to its end."""
        begin_s, self._until_s = self._now_s, self._now_s + seconds
        for number in range(self._load.producers):
            self._at(begin_s + self._random.random() * self._gap_s(), partial(self._produce, number))
        for follower in self._followers:
            self._fetch(follower)
        self._go_on()
        while self._events and self._events[0][0] <= self._until_s + 2 * self._limits.commit.archive_interval_s + 3:
            self._now_s, _, happens = heapq.heappop(self._events)
            happens()
        self._do(self._core.unwanted.last_declared(self._now_s))
        self.counts.seconds = seconds
        self.counts.metadata_bytes = self._metadata.end()
        return self.counts

    def _at(self, when_s: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._tickets), happens))

    # Producers.

    def _gap_s(self) -> float:
        """Between two batches of one producer, on the average."""
        return self._load.batch_bytes * self._load.producers / self._load.peak_bytes_per_s

    def _produce(self, number: int) -> None:
        load = self._load
        active_s = load.active_from(self._now_s)
        if active_s >= self._until_s:
            return
        if active_s > self._now_s:
            self._at(active_s + self._random.random() * self._gap_s(), lambda: self._produce(number))
            return
        log = self._logs[self._random.integers(len(self._logs))]
        log.end += 1
        self.counts.produced_bytes += load.batch_bytes
        due_s = self._now_s + self._random.exponential(self._gap_s())

        def again() -> None:
            self._at(max(due_s, self._now_s), lambda: self._produce(number))

        if load.acks_all:
            log.high_watermark_waits.append((log.end, again))
        else:
            again()
        self._appended(log.partition)

    def _appended(self, partition: TopicIdPartition) -> None:
        if self._gathers:
            self._untold[partition] = None
        elif self._core.pacing.append_seen(partition, self._now_s):
            self._go_on()
        for follower in self._followers:
            if follower.is_parked:
                follower.is_parked = False
                self._answer(follower)

    # The write path's loop, as `CommitLoop` is.

    def _go_on(self) -> None:
        if self._gathers:
            return
        self._turn += 1
        turn, pacing = self._turn, self._core.pacing
        while True:
            match pacing.next_step(self._now_s):
                case UploadNow():
                    self._read()
                    self._do(self._core.unwanted.let_go(self._now_s))
                    self._start(pacing.next_upload(self._now_s))
                case Gather(delay_s, quiet_s):
                    self._gathers = True
                    round_is_over = not self._uploads and not self._replication_is_pending()
                    self._look(self._now_s + delay_s, quiet_s, self._now_s, round_is_over)
                    return
                case Wait(delay_s):
                    if delay_s is not None:
                        self._at(self._now_s + delay_s, lambda: self._go_on() if turn == self._turn else None)
                    return

    def _look(self, until_s: float, quiet_s: float, seen_s: float, round_is_over: bool) -> None:
        """For appends, while gathering."""
        pacing = self._core.pacing
        if self._untold:
            seen_s = self._now_s
            self._take()
            if pacing.round_is_gathered():
                self._gathered()
                return
        elif self._now_s - seen_s >= quiet_s and round_is_over:
            self._gathered()
            return
        if self._now_s >= until_s or self._now_s - seen_s >= quiet_s:
            self._gathers = False
            self._go_on()
            return
        next_s = self._now_s + min(quiet_s / 2, max(until_s - self._now_s, 1e-4), max(_LOOK_S, quiet_s / 2))
        self._at(next_s, lambda: self._look(until_s, quiet_s, seen_s, round_is_over))

    def _gathered(self) -> None:
        self._gathers = False
        self._read()
        if self._core.pacing.gathered_pays(self._now_s):
            self._start(self._core.pacing.next_upload(self._now_s))
        self._go_on()

    def _take(self) -> None:
        pacing = self._core.pacing
        for partition in self._untold:
            pacing.append_seen(partition, self._now_s)
            self._tell_unread(self._core.led[partition])
        self._untold.clear()

    def _tell_unread(self, led: LedPartition) -> None:
        self._core.pacing.commit.appended(led.assignment.topic_id_partition, led.task.unread_bytes())

    def _read(self) -> None:
        reads = self._core.pacing.reads(self._now_s)
        if reads is None:
            return
        left = reads.budget_bytes
        for read in reads.reads:
            outcome = read.led.task.run(left, read.seen_s, self._now_s) if left > 0 else None
            left -= outcome.read_bytes if outcome is not None else 0
            self._do(self._core.read_done(read, outcome, self._now_s))
            if outcome is None:
                self._tell_unread(read.led)

    def _start(self, upload: Upload | None) -> None:
        if upload is not None:
            self._uploads += 1
            self._at(self._now_s + PUT_S, lambda: self._stored(upload))

    def _stored(self, upload: Upload) -> None:
        self._uploads -= 1
        sequence = self._sequence
        self._sequence += 1
        items = tuple(upload.items)
        entries = tuple(item.metadata_entry() for item in items)
        size = sum(len(item.records) for item in items)
        self.counts.put(size)
        segment_id = CombinedSegmentId(1, 1, sequence)
        self._metadata.object(segment_id, items, self._now_s)
        self._do(
            self._core.upload_stored(
                upload, UploadedSegment(segment_id, items, entries, size, self._now_s), self._now_s
            )
        )
        self._take()
        pacing = self._core.pacing
        pacing.stored(upload, sum(led.task.unread_bytes() for led in pacing.appended()), self._now_s)
        self._go_on()

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case TellStored(segment):
                    self._tell_stored(segment)
                case TellLeftOut():
                    self._look_again()
                case DeclareNotWanted(assignment, ranges):
                    self._metadata.not_wanted(assignment.topic_id_partition, ranges, self._now_s)

    def _replication_is_pending(self) -> bool:
        return any(
            log.object_of and max(log.object_of) >= follower.offsets[log.partition.partition]
            for follower in self._followers
            for log in self._logs
        )

    # The followers' side, by the planner's rules.

    def _tell_stored(self, segment: UploadedSegment) -> None:
        """Links and announcements, as `LeaderProxy.segment_uploaded`."""
        sequence, pacing = segment.combined_segment_id.sequence, self._core.pacing
        for item in segment.items:
            log = self._logs[item.topic_id_partition.partition]
            log.object_of.update(dict.fromkeys(range(item.first_offset, item.last_offset + 1), sequence))
        announced = [
            len(item.records)
            for item in segment.items
            if pacing.mode_of(self._led(item.topic_id_partition.partition), 0, self._now_s) is LinkMode.LINK
        ]
        for follower in self._followers:
            if announced:
                self.counts.announced(len(announced))
                self._fetched(follower, sequence, sum(announced))
        self._look_again()

    def _look_again(self) -> None:
        """Who waits for links, as something was stored, or will not be."""
        waiting, self._waiting = self._waiting, []
        for follower in waiting:
            self._decide(follower)

    def _fetched(self, follower: _Follower, sequence: int, size: int) -> None:
        self.counts.get(size)
        follower.read_s[sequence] = self._now_s + GET_S

    def _led(self, number: int) -> LedPartition:
        return self._core.led[self._logs[number].partition]

    def _fetch(self, follower: _Follower) -> None:
        """It asks from its offsets on, so it has all before."""
        for log in self._logs:
            acknowledged = min(one.offsets[log.partition.partition] for one in self._followers)
            acked = [done for end, done in log.high_watermark_waits if end <= acknowledged]
            if acked:
                log.high_watermark_waits = [wait for wait in log.high_watermark_waits if wait[0] > acknowledged]
                for done in acked:
                    self._at(self._now_s + ROUND_TRIP_S / 3, done)
        self._answer(follower)

    def _answer(self, follower: _Follower) -> None:
        """The leader's broker answers as soon as it has something."""
        follower.fields, left = {}, _RESPONSE_BYTES
        for log in self._logs:
            number = log.partition.partition
            begin = follower.offsets[number]
            end = min(log.end, begin + left // log.batch_bytes)
            if end > begin:
                follower.fields[number] = end
                left -= (end - begin) * log.batch_bytes
        if not follower.fields:
            follower.is_parked = True
            return
        size = _RESPONSE_BYTES - left
        for number, end in follower.fields.items():
            led, begin = self._led(number), follower.offsets[number]
            if self._core.pacing.mode_of(led, size, self._now_s) is not LinkMode.OFF:
                moved = (end - begin) * self._load.batch_bytes
                partition = led.assignment.topic_id_partition
                self._core.pacing.fetched(follower.broker_id, partition, begin, moved, self._now_s)
        self._decide(follower)

    def _decide(self, follower: _Follower) -> None:
        """As `LinkPlanner.decide`."""
        pacing, size = self._core.pacing, self._size_of(follower)
        stored: dict[int, int] = {}
        waiting, linking = list[int](), set[int]()
        for number, end in follower.fields.items():
            led, begin = self._led(number), follower.offsets[number]
            stored[number] = self._stored_to(number, begin, end)
            is_link = pacing.mode_of(led, size, self._now_s) is LinkMode.LINK
            linking |= {number} if is_link else set()
            partition = led.assignment.topic_id_partition
            if stored[number] > begin or not is_link or not pacing.upload_expected(partition, begin, self._now_s):
                follower.waits_since.pop(number, None)
                continue
            since_s = follower.waits_since.setdefault(number, self._now_s)
            if self._now_s < since_s + self._limits.link_wait_max_s:
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
            until_s = min(follower.waits_since[number] for number in waiting) + self._limits.link_wait_max_s
            self._at(until_s, lambda: self._wait_is_over(follower))
            self._core.pacing.links_wanted([self._logs[number].partition for number in waiting], self._now_s)
            self._go_on()

    def _wait_is_over(self, follower: _Follower) -> None:
        since = [one for one in follower.waits_since.values() if self._now_s >= one + self._limits.link_wait_max_s]
        if follower in self._waiting and since:
            self._waiting.remove(follower)
            follower.waits_since.clear()
            self._send_inline(follower)

    def _size_of(self, follower: _Follower) -> int:
        offsets = follower.offsets
        return sum(end - offsets[number] for number, end in follower.fields.items()) * self._load.batch_bytes

    def _stored_to(self, number: int, begin: int, end: int) -> int:
        object_of = self._logs[number].object_of
        while begin < end and begin in object_of:
            begin += 1
        return begin

    def _send_linked(
        self, follower: _Follower, stored: dict[int, int], linking: set[int], waiting: Sequence[int]
    ) -> None:
        ready_s = self._now_s
        for number, stored_to in stored.items():
            log, begin = self._logs[number], follower.offsets[number]
            objects = dict.fromkeys(log.object_of[at] for at in range(begin, stored_to))
            self.counts.linked((stored_to - begin) * log.batch_bytes, len(objects))
            for sequence in objects:
                if sequence not in follower.read_s:
                    here = sum(log.object_of[at] == sequence for at in range(begin, stored_to))
                    self._fetched(follower, sequence, here * log.batch_bytes)
                ready_s = max(ready_s, follower.read_s[sequence])
            follower.offsets[number] = stored_to
            if number not in linking and number not in waiting:
                self.counts.inline_bytes += (follower.fields[number] - stored_to) * log.batch_bytes
                follower.offsets[number] = follower.fields[number]
        self._at(ready_s + ROUND_TRIP_S, lambda: self._fetch(follower))

    def _send_inline(self, follower: _Follower) -> None:
        self.counts.inline_bytes += self._size_of(follower)
        follower.offsets.update(follower.fields)
        self._at(self._now_s + ROUND_TRIP_S, lambda: self._fetch(follower))
