"""Decides how long a follower's request may wait at the broker, and for how much. Sans-IO."""

import math
from collections.abc import Mapping
from typing import Final

from kafka_log.topic_partition import TopicIdPartition

BULK_BYTES: Final = 128 * 1024
"""Bytes in an object for one follower, from which on its fetches gather (guessed)."""
WHOLE: Final = 0.99
"""Share of a round that counts as all of it, because batches differ a little in size (guessed)."""
GATHER_RECENT_S: Final = 0.25
"""Seconds: an older upload says nothing about the load now. Ten default intervals (guessed)."""
GATHER_MOST: Final = 0.6
"""Share of a round that a gathered fetch must bring (guessed). With 128 KB batches, where rounds take longer than a
fetch may wait, gathering without such a limit delayed each fetch and saved nothing."""
GATHER_PAUSE_MIN_S: Final = 0.1
"""Seconds in which fetches are left alone after an unsuccessful gathering; doubled by each in a row (guessed)."""
GATHER_PAUSE_MAX_S: Final = 0.8
"""The longest of these pauses (guessed): gathering in vain delays followers for 3 % of the time, 25 ms in 0.8 s."""
IN_VAIN: Final = 8
"""Short waits in a row before they get longer (guessed): the slowest replica needs a round of its own."""
READ_AGAIN_BYTES: Final = 64 * 1024
"""The largest response that may be sent without its records while they wait for an upload (guessed): the broker reads
them twice."""


class FetchMinBytesTuner:
    """Raises a follower's fetch.min.bytes while uploads are large, so that it gets a whole upload by one Fetch.

    A broker responds to a follower's fetch as soon as it has a single batch (replica.fetch.min.bytes is 1). If
    producers wait for their replicas, that is the first of many batches that come within milliseconds. The response
    waits here for its link, the follower gets this one batch only, and all others need another round trip. So while
    much is uploaded, the broker is asked to gather as many bytes as the last uploads held for this follower, for a
    bounded time. This delays nothing, because a link is not sent before the end of the upload. A follower that lacks
    something stored is not made to wait: producers may wait for exactly that before they send more.

    If most of the bytes do not come within that time (rounds are longer, or no producer waits for them), waiting
    delayed the follower and saved little. Then the tuner stops for a while, longer with each such wait in a row.

    This differs from `rlm.write_path.commit`, which decides when an upload starts. Here the broker is asked to wait,
    for each follower's connection separately.
    """

    def __init__(self, wait_max_ms: int) -> None:
        """`wait_max_ms` bounds how long the broker is asked to wait; 0: requests are not changed."""
        self._wait_max_ms = wait_max_ms
        self._round_bytes = 0.0
        """Estimate of what is appended between two uploads by producers that wait for the one before. It follows the
        largest recent round at once and smaller ones slowly, because one of the waiting producers may be late.
        """
        self._uploaded_s = self._paused_until_s = -math.inf
        self._pause_s = GATHER_PAUSE_MIN_S
        self.fetch_offsets: dict[TopicIdPartition, int] = {}
        """What the follower has. Kept, because a request in a fetch session lists only changes."""
        self._lacking: dict[TopicIdPartition, int] = {}
        """By partition, the stored offset that the follower lacks."""

    def uploaded(self, next_offsets: Mapping[TopicIdPartition, int], size_bytes: int, now_s: float) -> None:
        """Record an upload with `size_bytes` for this follower, up to `next_offsets` by partition."""
        for partition, next_offset in next_offsets.items():
            if next_offset > self.fetch_offsets.get(partition, -1):
                self._lacking[partition] = next_offset
        if now_s - self._uploaded_s > GATHER_RECENT_S:
            self._round_bytes = 0.0
        self._round_bytes = max(size_bytes, self._round_bytes + (size_bytes - self._round_bytes) / 4)
        self._uploaded_s = now_s

    def fetched(self, partition: TopicIdPartition, offset: int) -> None:
        """Record that the follower has everything below this offset."""
        self.fetch_offsets[partition] = offset
        if offset >= self._lacking.get(partition, math.inf):
            del self._lacking[partition]

    def dropped(self, partition: TopicIdPartition) -> None:
        """Forget a partition that is no longer led here or was truncated."""
        self.fetch_offsets.pop(partition, None)
        self._lacking.pop(partition, None)

    def wait(self, max_wait_ms: int, min_bytes: int, now_s: float) -> tuple[int, int] | None:
        """Return the max wait (ms) and min bytes to put into the request; None: leave the follower's own.

        It never asks for a longer wait or for fewer bytes than the follower does.
        """
        is_bulk = self._round_bytes >= BULK_BYTES and now_s - self._uploaded_s <= GATHER_RECENT_S
        if not is_bulk or self._lacking or now_s < self._paused_until_s:
            return None
        wait_ms, gathered_bytes = min(max_wait_ms, self._wait_max_ms), int(self._round_bytes * WHOLE)
        return (wait_ms, gathered_bytes) if wait_ms > 0 and gathered_bytes > min_bytes else None

    def answered(self, size_bytes: int, now_s: float) -> None:
        """Record the size of the broker's response to a request that `wait` had changed."""
        if size_bytes >= self._round_bytes * GATHER_MOST:
            self._pause_s = GATHER_PAUSE_MIN_S
        else:
            self._paused_until_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, GATHER_PAUSE_MAX_S)


class PendingHighWatermarks:
    """Shortens a follower's max wait while it has records above the high watermark that it knows.

    A consumer at a follower gets records below the high watermark that this follower knows. The leader sends it with
    the follower's next response: with the next records, or when the Fetch request's max wait is over, but not because
    the high watermark has risen. So while a follower has records above the high watermark that it knows, its requests
    get a short max wait, and a response without records brings the high watermark. If a response's records would wait
    for an upload first, it is sent without them: they are requested again, and wait then.

    The high watermark may not move, for instance while another replica is away. So after some responses in vain, each
    wait is twice as long as the one before, up to the follower's own, until the follower or its known high watermark
    moves on.
    """

    def __init__(self, wait_ms: int) -> None:
        """`wait_ms` is the short wait; 0: requests are not changed."""
        self._wait_ms = wait_ms
        self._offsets: dict[TopicIdPartition, int] = {}
        """The follower has everything below. Kept, because a request in a fetch session lists only changes."""
        self._told: dict[TopicIdPartition, int] = {}
        """The high watermarks that the follower knows."""
        self.owed: set[TopicIdPartition] = set()
        """Whose high watermark the follower does not know."""
        self._in_vain = 0

    def fetched(self, partition: TopicIdPartition, offset: int) -> None:
        """Record that the follower has everything below this offset."""
        if self._wait_ms:
            self._learn(self._offsets, partition, offset)

    def note_watermark(self, partition: TopicIdPartition, high_watermark: int) -> bool:
        """Record a high watermark in a response to the follower. Returns whether the follower lacked it."""
        if not self._wait_ms:
            return False
        is_news = partition in self.owed and high_watermark > self._told[partition]
        self._learn(self._told, partition, high_watermark)
        return is_news

    def _learn(self, known: dict[TopicIdPartition, int], partition: TopicIdPartition, offset: int) -> None:
        if known.get(partition) == offset:
            return
        known[partition] = offset
        self._in_vain = 0
        if self._offsets.get(partition, -1) > self._told.get(partition, offset):
            self.owed.add(partition)
        else:
            self.owed.discard(partition)

    def dropped(self, partition: TopicIdPartition) -> None:
        """Forget a partition that is no longer led here or was truncated."""
        self._offsets.pop(partition, None)
        self._told.pop(partition, None)
        self.owed.discard(partition)

    def wait_ms(self, max_wait_ms: int) -> int | None:
        """Return the max wait (ms) to put into the request; None: leave the follower's own."""
        if not self.owed:
            return None
        wait_ms = self._wait_ms << max(self._in_vain - IN_VAIN, 0)
        if wait_ms >= max_wait_ms:
            return None
        self._in_vain += 1
        return wait_ms
