"""Tracks how far followers have fetched the partitions that somebody waits for. Event loop only.

A follower's fetch offset says what it has, and nothing about the ISR. So it only says when to ask the broker for its
high watermark; it never proves that something is replicated.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kafka_log.topic_partition import TopicIdPartition
from rlm.write_path.metrics import StageTimes

MAX_PARTITIONS = 20_000
"""The most partitions to remember. Beyond it all are forgotten, because deleted topics' partitions are among them."""
STALE_FETCHES = 16
"""A follower that was silent while so many fetches came is ignored: it lags, or was moved away."""


class FollowerOffsets:
    """Tracks followers' fetch offsets of watched partitions, and wakes callers that wait for an offset to be
    replicated."""

    def __init__(self) -> None:
        self._fetches = 0
        self._offsets: dict[TopicIdPartition, dict[int, tuple[int, int]]] = {}
        """By follower, for each partition that was ever waited for: its offset, and the number of its last fetch."""
        self._waiting: dict[TopicIdPartition, dict[Callable[[], object], int]] = {}

    def wait(self, partition: TopicIdPartition, end_offset: int, wake: Callable[[], object]) -> None:
        """Call `wake` once when all known followers have fetched up to `end_offset`; at once if they have already.

        If one `wake` waits for several offsets, the lowest counts.
        """
        if len(self._offsets) > MAX_PARTITIONS:
            self._offsets.clear()
        offsets = self._offsets.setdefault(partition, {})
        if self._reached(offsets) >= end_offset:
            wake()
        else:
            waiting = self._waiting.setdefault(partition, {})
            waiting[wake] = min(end_offset, waiting.get(wake, end_offset))

    def forget(self, wake: Callable[[], object]) -> None:
        """Never call `wake` again."""
        for waiting in self._waiting.values():
            waiting.pop(wake, None)
        self._waiting = {partition: waiting for partition, waiting in self._waiting.items() if waiting}

    def watched(self, asked: Iterable[tuple[TopicIdPartition, int]]) -> list[tuple[TopicIdPartition, int]]:
        """Return those of a follower's partitions and fetch offsets that somebody waits for, to be passed to
        `fetched`."""
        return [one for one in asked if one[0] in self._offsets] if self._offsets else []

    def fetched(self, partition: TopicIdPartition, follower: int, offset: int) -> None:
        """Record that a follower's Fetch from this offset on was sent to the broker."""
        offsets = self._offsets.setdefault(partition, {})
        self._fetches += 1
        offsets[follower] = offset, self._fetches
        if waiting := self._waiting.get(partition):
            reached = self._reached(offsets)
            for wake in [one for one, end_offset in waiting.items() if end_offset <= reached]:
                del waiting[wake]
                wake()

    def _reached(self, offsets: dict[int, tuple[int, int]]) -> float:
        newest = max((fetch for _, fetch in offsets.values()), default=0)
        current = (offset for offset, fetch in offsets.values() if newest - fetch < STALE_FETCHES)
        return min(current, default=math.inf)

    def drop_follower(self, follower: int) -> None:
        """Forget a follower whose connection ended; callers that wait for it continue at their own deadline."""
        for offsets in self._offsets.values():
            offsets.pop(follower, None)


_MAX_TRACKED = 1024
"""Limit for each partition; beyond it, new appends are not measured until the watermark moves."""


@dataclass(slots=True)
class _Tracked:
    ahead: deque[tuple[int, float]] = field(default_factory=deque)
    """(next offset, when the append was noticed), ascending."""
    fetch_offsets: dict[object, int] = field(default_factory=dict)
    """By follower: the last offset that it asked for."""


class WatermarkTimes:
    """Measures the time from an append until the high watermark passes it: the wait of a producer with acks=all.

    A leader advances its high watermark when the last in-sync follower asks for the next offset. So the time is taken
    from the followers' requests as they pass. A response that reports a high watermark settles the rest, for instance
    when a follower is not in sync.
    """

    def __init__(self, stage_times: StageTimes) -> None:
        self._stage_times = stage_times
        self._partitions: dict[TopicIdPartition, _Tracked] = {}

    def stored(self, partition: TopicIdPartition, next_offset: int, seen_s: float) -> None:
        """Record that batches below `next_offset` are stored; their append was noticed at `seen_s`."""
        ahead = self._partitions.setdefault(partition, _Tracked()).ahead
        if len(ahead) < _MAX_TRACKED:
            ahead.append((next_offset, seen_s))

    def fetched(self, partition: TopicIdPartition, follower: object, offset: int, now_s: float) -> None:
        """Record that a follower fetches from this offset on, so that it has everything below."""
        tracked = self._partitions.get(partition)
        if tracked is not None:
            tracked.fetch_offsets[follower] = offset
            self._passed(tracked, min(tracked.fetch_offsets.values()), now_s)

    def passed(self, partition: TopicIdPartition, high_watermark: int, now_s: float) -> None:
        """Record the high watermark that the leader's broker reports."""
        tracked = self._partitions.get(partition)
        if tracked is not None:
            self._passed(tracked, high_watermark, now_s)

    def drop(self, partition: TopicIdPartition) -> None:
        """Forget a partition that is no longer led here."""
        self._partitions.pop(partition, None)

    def drop_follower(self, follower: object) -> None:
        """Forget a follower whose connection ended."""
        for tracked in self._partitions.values():
            tracked.fetch_offsets.pop(follower, None)

    def _passed(self, tracked: _Tracked, offset: int, now_s: float) -> None:
        while tracked.ahead and tracked.ahead[0][0] <= offset:
            _, seen_s = tracked.ahead.popleft()
            self._stage_times.observe("high_watermark", now_s - seen_s)
