"""Models of two followers in other zones: each fetches all partitions over one connection.

They are answered by the rules of `replication.leader.link_planner`, without frames: stored bytes go as links; bytes
that are worth waiting for wait; the rest goes inline.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from perf.cost.counts import Counts
from perf.cost.load import FOLLOWER_IDS, Load, ProducedLog
from perf.cost.timeline import StoreTimes, Timeline
from rlm.write_path.commit.link_policy import LinkMode
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.core.write_path_core import WritePathCore
from rlm.write_path.uploads.segment_queue import UploadedSegment

GET_S: Final = 0.005
ROUND_TRIP_S: Final = 0.0015
"""The time between two zones, with the brokers' part of a fetch."""
_RESPONSE_BYTES: Final = 10 * 1024 * 1024
"""The value of replica.fetch.response.max.bytes."""


@dataclass(slots=True)
class _Follower:
    """One connection of a follower's fetcher."""

    broker_id: int
    offsets: dict[int, int]
    waits_since: dict[int, float] = field(default_factory=dict)
    fields: dict[int, int] = field(default_factory=dict)
    """The present response: by partition, the end offset of its part."""
    is_parked: bool = False
    """Whether the broker has nothing for it."""
    read_s: dict[int, float] = field(default_factory=dict)
    """The times when the announced parts of objects have been read."""


class CostFollowers:
    """Does and counts the work of the leader's agent and broker for the followers."""

    def __init__(
        self,
        load: Load,
        link_wait_max_s: float,
        core: WritePathCore,
        logs: Sequence[ProducedLog],
        timeline: Timeline,
        counts: Counts,
        go_on: Callable[[], None],
        times: StoreTimes,
    ) -> None:
        """Take the models; `go_on` wakes the write path's loop."""
        self._times = times
        self._load, self._link_wait_max_s = load, link_wait_max_s
        self._core = core
        self._logs = logs
        self._time = timeline
        self._counts = counts
        self._go_on = go_on
        self._followers = [_Follower(one, dict.fromkeys(range(load.partitions), 0)) for one in FOLLOWER_IDS]
        self._waiting: list[_Follower] = []

    def start(self) -> None:
        """Start fetching."""
        for follower in self._followers:
            self._fetch(follower)

    def appended(self) -> None:
        """Answer waiting followers, because something was appended."""
        for follower in self._followers:
            if follower.is_parked:
                follower.is_parked = False
                self._answer(follower)

    def are_pending(self) -> bool:
        """Return whether they are still to get some of the stored records."""
        return any(
            log.object_of and max(log.object_of) >= follower.offsets[log.partition.partition]
            for follower in self._followers
            for log in self._logs
        )

    def stored(self, segment: UploadedSegment) -> None:
        """Send links and announcements, as `LeaderProxy.segment_uploaded` does."""
        sequence, pacing = segment.combined_segment_id.sequence, self._core.pacing
        for item in segment.items:
            log = self._logs[item.topic_id_partition.partition]
            log.object_of.update(dict.fromkeys(range(item.first_offset, item.last_offset + 1), sequence))
        announced = [
            len(item.records)
            for item in segment.items
            if pacing.mode_of(self._led(item.topic_id_partition.partition), 0, self._time.now_s) is LinkMode.LINK
        ]
        for follower in self._followers:
            if announced:
                self._counts.announced(len(announced))
                self._fetched(follower, sequence, sum(announced))
        self.look_again()

    def look_again(self) -> None:
        """Decide again for followers that wait for links, because something was stored or will not be."""
        waiting, self._waiting = self._waiting, []
        for follower in waiting:
            self._decide(follower)

    def _fetched(self, follower: _Follower, sequence: int, size: int) -> None:
        self._counts.get(size)
        follower.read_s[sequence] = self._time.now_s + self._times.took_s(GET_S, self._time.now_s)

    def _led(self, number: int) -> LedPartition:
        return self._core.led[self._logs[number].partition]

    def _fetch(self, follower: _Follower) -> None:
        """Note a fetch, which acknowledges everything before its offsets."""
        for log in self._logs:
            acknowledged = min(one.offsets[log.partition.partition] for one in self._followers)
            acked = [done for end, done in log.high_watermark_waits if end <= acknowledged]
            if acked:
                log.high_watermark_waits = [wait for wait in log.high_watermark_waits if wait[0] > acknowledged]
                for done in acked:
                    self._time.at(self._time.now_s + ROUND_TRIP_S / 3, done)
        self._answer(follower)

    def _answer(self, follower: _Follower) -> None:
        """Answer as the leader's broker does, as soon as it has something."""
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
            if self._core.pacing.mode_of(led, size, self._time.now_s) is not LinkMode.OFF:
                moved = (end - begin) * self._load.batch_bytes
                partition = led.assignment.topic_id_partition
                self._core.pacing.fetched(follower.broker_id, partition, begin, moved, self._time.now_s)
        self._decide(follower)

    def _decide(self, follower: _Follower) -> None:
        """Decide as `LinkPlanner.decide` does."""
        pacing, size = self._core.pacing, self._size_of(follower)
        stored: dict[int, int] = {}
        waiting, linking = list[int](), set[int]()
        for number, end in follower.fields.items():
            led, begin = self._led(number), follower.offsets[number]
            stored[number] = self._stored_to(number, begin, end)
            is_link = pacing.mode_of(led, size, self._time.now_s) is LinkMode.LINK
            linking |= {number} if is_link else set()
            partition = led.assignment.topic_id_partition
            if stored[number] > begin or not is_link or not pacing.upload_expected(partition, begin, self._time.now_s):
                follower.waits_since.pop(number, None)
                continue
            since_s = follower.waits_since.setdefault(number, self._time.now_s)
            if self._time.now_s < since_s + self._link_wait_max_s:
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
            until_s = min(follower.waits_since[number] for number in waiting) + self._link_wait_max_s
            self._time.at(until_s, lambda: self._wait_is_over(follower))
            self._core.pacing.links_wanted([self._logs[number].partition for number in waiting], self._time.now_s)
            self._go_on()

    def _wait_is_over(self, follower: _Follower) -> None:
        since = [one for one in follower.waits_since.values() if self._time.now_s >= one + self._link_wait_max_s]
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
        ready_s = self._time.now_s
        for number, stored_to in stored.items():
            log, begin = self._logs[number], follower.offsets[number]
            objects = dict.fromkeys(log.object_of[at] for at in range(begin, stored_to))
            self._counts.linked((stored_to - begin) * log.batch_bytes, len(objects))
            for sequence in objects:
                if sequence not in follower.read_s:
                    here = sum(log.object_of[at] == sequence for at in range(begin, stored_to))
                    self._fetched(follower, sequence, here * log.batch_bytes)
                ready_s = max(ready_s, follower.read_s[sequence])
            follower.offsets[number] = stored_to
            if number not in linking and number not in waiting:
                self._counts.inline_bytes += (follower.fields[number] - stored_to) * log.batch_bytes
                follower.offsets[number] = follower.fields[number]
        self._time.at(ready_s + ROUND_TRIP_S, lambda: self._fetch(follower))

    def _send_inline(self, follower: _Follower) -> None:
        self._counts.inline_bytes += self._size_of(follower)
        follower.offsets.update(follower.fields)
        self._time.at(self._time.now_s + ROUND_TRIP_S, lambda: self._fetch(follower))
