"""For how much, and for how long, the broker should gather what it sends a follower, sans-IO.

A broker answers a follower's fetch as soon as it has a single batch (replica.fetch.min.bytes is 1). Where producers
wait for their replicas, that is the first of many that come within milliseconds; it waits here for its link, the
follower gets this one alone, and all the others take another trip of the fetch. So while much is uploaded, the broker
is asked to gather as much as the last uploads held for this follower, or for a bounded time. A link is not given before
the upload's end in any case, so nothing is later for it. A follower that lacks something stored gets it at once: what
it lacks may be what those producers wait for who would bring the rest.

Where most of the bytes do not come within that time (rounds are longer, or nobody waits for them), asking made the
follower later and saved little, so it is left alone for a while, longer with each such wait in a row.

It is no part of `rlm.write_path.commit.group_commit`, which says when an upload starts: here the broker is asked to
wait, for each follower's connection by itself and by what that follower has. What a round is, and all constants, are
from there.
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
    """Of one follower's connection. All times are monotonic seconds."""

    def __init__(self, wait_max_ms: int) -> None:
        """`wait_max_ms` bounds how long the broker is asked to wait; 0: requests stay as they are."""
        self._wait_max_ms = wait_max_ms
        self._round = RoundSize()
        self._uploaded_s = -math.inf
        self._pause = DoublingPause(GATHER_PAUSE_MIN_S, GATHER_PAUSE_MAX_S)
        self.fetch_offsets: dict[TopicIdPartition, int] = {}
        """What the follower has: in a fetch session only what changed is asked for anew."""
        self._lacking: dict[TopicIdPartition, int] = {}
        """What is stored beyond."""

    def uploaded(self, next_offsets: Mapping[TopicIdPartition, int], size_bytes: int, now_s: float) -> None:
        """An object was uploaded that has so many bytes for this follower, up to these offsets."""
        for partition, next_offset in next_offsets.items():
            if next_offset > self.fetch_offsets.get(partition, -1):
                self._lacking[partition] = next_offset
        if now_s - self._uploaded_s > GATHER_RECENT_S:
            self._round = RoundSize()
        self._round.add(size_bytes)
        self._uploaded_s = now_s

    def fetched(self, partition: TopicIdPartition, offset: int) -> None:
        """The follower has all below this offset."""
        self.fetch_offsets[partition] = offset
        if offset >= self._lacking.get(partition, math.inf):
            del self._lacking[partition]

    def dropped(self, partition: TopicIdPartition) -> None:
        """The partition is not led here any more, or was truncated."""
        self.fetch_offsets.pop(partition, None)
        self._lacking.pop(partition, None)

    def wait(self, max_wait_ms: int, min_bytes: int, now_s: float) -> tuple[int, int] | None:
        """The max wait and the min bytes to ask for, given those that the follower asks for; None: just these.

        Never a longer wait, and never for less.
        """
        is_bulk = self._round.size_bytes >= BULK_BYTES and now_s - self._uploaded_s <= GATHER_RECENT_S
        if not is_bulk or self._lacking or not self._pause.is_over(now_s):
            return None
        wait_ms, gathered_bytes = min(max_wait_ms, self._wait_max_ms), int(self._round.whole_bytes)
        return (wait_ms, gathered_bytes) if wait_ms > 0 and gathered_bytes > min_bytes else None

    def answered(self, size_bytes: int, now_s: float) -> None:
        """The broker answered a request that `wait` had changed by so many bytes."""
        if size_bytes >= self._round.size_bytes * GATHER_MOST:
            self._pause.reset()
        else:
            self._pause.begin(now_s)
