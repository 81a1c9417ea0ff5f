"""Decides how much, and for how long, the broker should gather before it answers a follower. Sans-IO.

A broker answers a follower's fetch as soon as it has a single batch (replica.fetch.min.bytes is 1). If producers wait
for their replicas, that is the first of many batches that come within milliseconds. The answer waits here for its link,
the follower gets this one batch only, and all others need another round trip. So while much is uploaded, the broker is
asked to gather as many bytes as the last uploads held for this follower, for a bounded time. This delays nothing,
because a link is not given before the end of the upload. A follower that lacks something stored is not made to wait:
producers may wait for exactly that before they send more.

If most of the bytes do not come within that time (rounds are longer, or nobody waits for them), waiting delayed the
follower and saved little. Then waiting pauses for a while, longer with each such wait in a row.

This differs from `rlm.write_path.commit.group_commit`, which decides when an upload starts. Here the broker is asked to
wait, for each follower's connection separately. The definition of a round and all constants come from there.
"""

import math
from collections.abc import Mapping

from kafka_log.topic_partition import TopicIdPartition
from rlm.write_path.commit.doubling_pause import DoublingPause
from rlm.write_path.commit.group_commit import (
    BULK_BYTES,
    GATHER_MOST,
    GATHER_PAUSE_MAX_S,
    GATHER_PAUSE_MIN_S,
    GATHER_RECENT_S,
    RoundSize,
)


class FetchPatience:
    """The state of one follower's connection. All times are monotonic seconds."""

    def __init__(self, wait_max_ms: int) -> None:
        """`wait_max_ms` bounds how long the broker is asked to wait; 0: requests are not changed."""
        self._wait_max_ms = wait_max_ms
        self._round = RoundSize()
        self._uploaded_s = -math.inf
        self._pause = DoublingPause(GATHER_PAUSE_MIN_S, GATHER_PAUSE_MAX_S)
        self.fetch_offsets: dict[TopicIdPartition, int] = {}
        """What the follower has. Kept, because a request in a fetch session lists only changes."""
        self._lacking: dict[TopicIdPartition, int] = {}
        """By partition, the stored offset that the follower lacks."""

    def uploaded(self, next_offsets: Mapping[TopicIdPartition, int], size_bytes: int, now_s: float) -> None:
        """Record an upload that has so many bytes for this follower, up to these offsets."""
        for partition, next_offset in next_offsets.items():
            if next_offset > self.fetch_offsets.get(partition, -1):
                self._lacking[partition] = next_offset
        if now_s - self._uploaded_s > GATHER_RECENT_S:
            self._round = RoundSize()
        self._round.add(size_bytes)
        self._uploaded_s = now_s

    def fetched(self, partition: TopicIdPartition, offset: int) -> None:
        """Record that the follower has everything below this offset."""
        self.fetch_offsets[partition] = offset
        if offset >= self._lacking.get(partition, math.inf):
            del self._lacking[partition]

    def dropped(self, partition: TopicIdPartition) -> None:
        """Forget a partition that is not led here any more or was truncated."""
        self.fetch_offsets.pop(partition, None)
        self._lacking.pop(partition, None)

    def wait(self, max_wait_ms: int, min_bytes: int, now_s: float) -> tuple[int, int] | None:
        """Return the max wait and min bytes to request instead of the follower's own; None: leave them unchanged.

        It never asks for a longer wait or for fewer bytes than the follower does.
        """
        is_bulk = self._round.size_bytes >= BULK_BYTES and now_s - self._uploaded_s <= GATHER_RECENT_S
        if not is_bulk or self._lacking or not self._pause.is_over(now_s):
            return None
        wait_ms, gathered_bytes = min(max_wait_ms, self._wait_max_ms), int(self._round.whole_bytes)
        return (wait_ms, gathered_bytes) if wait_ms > 0 and gathered_bytes > min_bytes else None

    def answered(self, size_bytes: int, now_s: float) -> None:
        """Record the broker's answer to a request that `wait` had changed."""
        if size_bytes >= self._round.size_bytes * GATHER_MOST:
            self._pause.reset()
        else:
            self._pause.begin(now_s)
