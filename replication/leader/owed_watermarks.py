"""Decides how long a follower that has not seen the latest high watermark may wait at the broker. Sans-IO.

A consumer at a follower gets records below the high watermark that this follower knows. The leader sends it with the
follower's next answer: with the next records, or when the Fetch request's max wait is over. It does not answer sooner
because the high watermark has risen. So while a follower has records above the high watermark that it knows, its
requests get a short max wait, and an answer without records brings the high watermark. If an answer's records would
wait for an upload first, it is sent without them: they are requested again, and wait then.

The high watermark may not move, for instance while another replica is away. So after some unsuccessful answers each
wait is twice as long as the one before, up to the follower's own, until the follower or its known high watermark moves
on.
"""

from typing import Final

from kafka_log.topic_partition import TopicIdPartition

IN_VAIN: Final = 8
"""So many short waits follow each other before they get longer: the slowest replica needs a round of its own."""
READ_AGAIN_BYTES: Final = 64 * 1024
"""The largest answer that may be sent without its records while they wait for an upload: the broker reads them
twice.
"""


class OwedWatermarks:
    """The state of one follower's connection."""

    def __init__(self, wait_ms: int) -> None:
        """`wait_ms` is the short wait; 0: requests are not changed."""
        self._wait_ms = wait_ms
        self._offsets: dict[TopicIdPartition, int] = {}
        """The follower has everything below. Kept, because a request in a fetch session lists only changes."""
        self._told: dict[TopicIdPartition, int] = {}
        """The high watermarks that the follower knows."""
        self._owed: set[TopicIdPartition] = set()
        self._in_vain = 0

    def fetched(self, partition: TopicIdPartition, offset: int) -> None:
        """Record that the follower has everything below this offset."""
        if self._wait_ms:
            self._learn(self._offsets, partition, offset)

    def told(self, partition: TopicIdPartition, high_watermark: int) -> bool:
        """Record a high watermark in an answer to the follower. Returns whether it was owed."""
        if not self._wait_ms:
            return False
        is_news = partition in self._owed and high_watermark > self._told[partition]
        self._learn(self._told, partition, high_watermark)
        return is_news

    def _learn(self, known: dict[TopicIdPartition, int], partition: TopicIdPartition, offset: int) -> None:
        if known.get(partition) == offset:
            return
        known[partition] = offset
        self._in_vain = 0
        if self._offsets.get(partition, -1) > self._told.get(partition, offset):
            self._owed.add(partition)
        else:
            self._owed.discard(partition)

    def dropped(self, partition: TopicIdPartition) -> None:
        """Forget a partition that is not led here any more or was truncated."""
        self._offsets.pop(partition, None)
        self._told.pop(partition, None)
        self._owed.discard(partition)

    def wait_ms(self, max_wait_ms: int) -> int | None:
        """Return the max wait to request instead of the follower's own; None: leave it unchanged."""
        if not self._owed:
            return None
        wait_ms = self._wait_ms << max(self._in_vain - IN_VAIN, 0)
        if wait_ms >= max_wait_ms:
            return None
        self._in_vain += 1
        return wait_ms
