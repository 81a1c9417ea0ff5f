"""For how long the broker should let a follower wait that was not told of a high watermark yet, sans-IO.

A consumer at a follower gets records below the high watermark that the follower was told of. A leader tells it with the
follower's next answer: with the next records, or once the Fetch request's max wait is over. It does not answer sooner
because the high watermark has risen. So while a follower has more than the high watermark that it was told of, its
requests may wait for a short time alone, and it hears of it with the answer that brings no records. An answer whose
records would wait for an upload first is given without them: they are asked for again, and wait as they would have.

The high watermark may stay where it is, as while another replica is away. So after some answers in vain each wait is
twice as long as the one before, up to the follower's own, until it gets further or is told of more.
"""

from typing import Final

from kafka_log.topic_partition import TopicIdPartition

IN_VAIN: Final = 8
"""So many short waits follow each other before they get longer: the slowest replica takes a round of its own."""
READ_AGAIN_BYTES: Final = 64 * 1024
"""Of an answer that may be given without its records, while they wait for an upload: the broker reads them twice."""


class OwedWatermarks:
    """Of one follower's connection."""

    def __init__(self, wait_ms: int) -> None:
        """`wait_ms` is the short wait; 0: requests stay as they are."""
        self._wait_ms = wait_ms
        self._offsets: dict[TopicIdPartition, int] = {}
        """The follower has all below; in a fetch session only what changed is asked for anew."""
        self._told: dict[TopicIdPartition, int] = {}
        """The high watermarks that it was told of."""
        self._owed: set[TopicIdPartition] = set()
        self._in_vain = 0

    def fetched(self, partition: TopicIdPartition, offset: int) -> None:
        """The follower has all below this offset."""
        if self._wait_ms:
            self._learn(self._offsets, partition, offset)

    def told(self, partition: TopicIdPartition, high_watermark: int) -> bool:
        """An answer that goes to the follower has this one. Whether that is news of what was owed."""
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
        """The partition is not led here any more, or was truncated."""
        self._offsets.pop(partition, None)
        self._told.pop(partition, None)
        self._owed.discard(partition)

    def wait_ms(self, max_wait_ms: int) -> int | None:
        """The max wait to ask for, given that which the follower asks for; None: just this."""
        if not self._owed:
            return None
        wait_ms = self._wait_ms << max(self._in_vain - IN_VAIN, 0)
        if wait_ms >= max_wait_ms:
            return None
        self._in_vain += 1
        return wait_ms
