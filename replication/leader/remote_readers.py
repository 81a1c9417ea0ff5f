"""By which agents of other zones consumers read a partition led here, of late.

They read objects as followers' agents do, each of them once for all of its consumers. So links pay for them as for
followers, and a partition that nobody in another zone follows is linked for them.
"""

from collections.abc import Callable

from kafka_log.topic_partition import TopicIdPartition

KEEP_S = 300.0
"""A consumer that is away for longer is as one that comes anew: its first bytes may go inline, while links begin."""


class RemoteReaders:
    """Told in the event loop; any thread may ask."""

    def __init__(self, clock: Callable[[], float], keep_s: float = KEEP_S) -> None:
        """`clock` gives monotonic seconds."""
        self.on_new: Callable[[], None] = lambda: None
        """Called when one reads that did not count until now."""
        self._clock = clock
        self._keep_s = keep_s
        self._read_s: dict[TopicIdPartition, dict[int, float]] = {}
        self._swept_s = clock()

    def read(self, partition: TopicIdPartition, broker_id: int) -> None:
        """A consumer was sent records of this partition by the agent beside this broker."""
        now_s = self._clock()
        if now_s - self._swept_s >= self._keep_s:
            self._swept_s = now_s
            self._read_s = {one: found for one, found in self._read_s.items() if self._living(found)}
        is_new = broker_id not in self.of(partition)
        self._read_s.setdefault(partition, {})[broker_id] = now_s
        if is_new:
            self.on_new()

    def of(self, partition: TopicIdPartition) -> frozenset[int]:
        """The brokers beside which they are."""
        return self._living(self._read_s.get(partition, {}))

    def _living(self, read_s: dict[int, float]) -> frozenset[int]:
        since_s = self._clock() - self._keep_s
        return frozenset(one for one, at_s in read_s.copy().items() if at_s > since_s)
