"""Measures the time from an append until the high watermark passes it: the wait of a producer with acks=all.

A leader advances its high watermark when the last in-sync follower asks for the next offset. So the time is taken from
the followers' requests as they pass. A response that reports a high watermark settles the rest, for instance when a
follower is not in sync.
"""

from collections import deque
from dataclasses import dataclass, field

from kafka_log.topic_partition import TopicIdPartition
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.metrics import StageTimes

_MAX_TRACKED = 1024
"""Limit for each partition; beyond it, new appends are not measured until the watermark moves."""


@dataclass(slots=True)
class _Tracked:
    ahead: deque[tuple[int, float, tuple[CombinedSegmentId, ...]]] = field(default_factory=deque)
    """(next offset, when the append was noticed, the objects to report with it), ascending."""
    fetch_offsets: dict[object, int] = field(default_factory=dict)
    """By follower: the last offset that it asked for."""


class WatermarkTimes:
    """Measures the stage `high_watermark`. Used from the event loop only."""

    def __init__(self, stage_times: StageTimes) -> None:
        self._stage_times = stage_times
        self._partitions: dict[TopicIdPartition, _Tracked] = {}
        self._ahead = 0

    @property
    def any_ahead(self) -> bool:
        """Whether the high watermark of a partition has yet to pass something that is stored."""
        return self._ahead > 0

    def stored(
        self,
        partition: TopicIdPartition,
        next_offset: int,
        seen_s: float,
        objects: tuple[CombinedSegmentId, ...] = (),
    ) -> None:
        """Record stored batches below `next_offset`, noticed at this time; `objects` are reported with their time."""
        ahead = self._partitions.setdefault(partition, _Tracked()).ahead
        if len(ahead) < _MAX_TRACKED:
            ahead.append((next_offset, seen_s, objects))
            self._ahead += 1

    def fetched(self, partition: TopicIdPartition, follower: object, offset: int, now_s: float) -> None:
        """Record that a follower asks for this offset, so it has everything below."""
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
        """Forget a partition that is not led here any more."""
        tracked = self._partitions.pop(partition, None)
        if tracked is not None:
            self._ahead -= len(tracked.ahead)

    def drop_follower(self, follower: object) -> None:
        """Forget a follower whose connection ended."""
        for tracked in self._partitions.values():
            tracked.fetch_offsets.pop(follower, None)

    def _passed(self, tracked: _Tracked, offset: int, now_s: float) -> None:
        while tracked.ahead and tracked.ahead[0][0] <= offset:
            _, seen_s, objects = tracked.ahead.popleft()
            self._stage_times.observe("high_watermark", now_s - seen_s, objects)
            self._ahead -= 1
