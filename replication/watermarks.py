"""How long it takes from an append until the high watermark passes it: what a producer with acks=all waits for."""

from collections import deque

from kafka_log.topic_partition import TopicIdPartition
from rlm.measures import StageTimes

_MAX_TRACKED = 1024
"""Per partition; beyond it, new appends go unmeasured until the watermark moves."""


class WatermarkTimes:
    """Measures the stage `high_watermark`. Used from the event loop alone."""

    def __init__(self, stage_times: StageTimes) -> None:
        self._stage_times = stage_times
        self._ahead: dict[TopicIdPartition, deque[tuple[int, float]]] = {}

    def stored(self, partition: TopicIdPartition, next_offset: int, seen_s: float) -> None:
        """Batches below `next_offset`, noticed at this time, are stored."""
        ahead = self._ahead.setdefault(partition, deque())
        if len(ahead) < _MAX_TRACKED:
            ahead.append((next_offset, seen_s))

    def passed(self, partition: TopicIdPartition, high_watermark: int, now_s: float) -> None:
        """The leader's broker reports this high watermark."""
        ahead = self._ahead.get(partition)
        while ahead and ahead[0][0] <= high_watermark:
            self._stage_times.observe("high_watermark", now_s - ahead.popleft()[1])

    def drop(self, partition: TopicIdPartition) -> None:
        """The partition is not led here any more."""
        self._ahead.pop(partition, None)
