"""Tracks through which agents of other zones consumers have recently read a partition led here.

They read objects like followers' agents do, each object once for all of their consumers. So links pay for them as for
followers, and a partition that nobody in another zone follows is still linked for them.
"""

from collections.abc import Callable

from kafka_log.topic_partition import TopicIdPartition

KEEP_S = 300.0
"""A consumer that was away for longer counts as new: its first bytes may go inline while links begin."""


class RemoteReaders:
    """Updated in the event loop; any thread may read."""

    def __init__(self, clock: Callable[[], float], keep_s: float = KEEP_S) -> None:
        """`clock` gives monotonic seconds."""
        self.on_new: Callable[[], None] = lambda: None
        """Called when an agent reads that did not count until now."""
        self._clock = clock
        self._keep_s = keep_s
        self._read_s: dict[TopicIdPartition, dict[int, float]] = {}
        self._swept_s = clock()

    def read(self, partition: TopicIdPartition, broker_id: int) -> None:
        """Record that a consumer got records of this partition through the agent of this broker."""
        now_s = self._clock()
        if now_s - self._swept_s >= self._keep_s:
            self._swept_s = now_s
            self._read_s = {one: found for one, found in self._read_s.items() if self._living(found)}
        is_new = broker_id not in self.of(partition)
        self._read_s.setdefault(partition, {})[broker_id] = now_s
        if is_new:
            self.on_new()

    def of(self, partition: TopicIdPartition) -> frozenset[int]:
        """Return the brokers whose agents read this partition."""
        return self._living(self._read_s.get(partition, {}))

    def _living(self, read_s: dict[int, float]) -> frozenset[int]:
        since_s = self._clock() - self._keep_s
        return frozenset(one for one, at_s in read_s.copy().items() if at_s > since_s)
