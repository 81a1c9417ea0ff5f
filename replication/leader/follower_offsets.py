"""How far followers have fetched partitions that somebody waits for. Event loop only.

A follower's fetch offset says what it has, and nothing about the ISR. So it only tells when to ask the broker for its
high watermark; it never proves that something is replicated.
"""

from collections.abc import Callable, Iterable

from kafka_log.topic_partition import TopicIdPartition


class FollowerOffsets:
    """Remembers followers' fetch offsets, for watched partitions alone, and wakes those that wait for one."""

    def __init__(self) -> None:
        self._offsets: dict[TopicIdPartition, dict[int, int]] = {}
        """By follower, for the partitions that were ever waited for."""
        self._waiting: dict[TopicIdPartition, dict[Callable[[], object], int]] = {}

    def wait(self, partition: TopicIdPartition, end_offset: int, wake: Callable[[], object]) -> None:
        """Call `wake` once, when all followers that were seen have fetched up to `end_offset`.

        Of several offsets that one `wake` waits for, the lowest counts. Calls at once where that is so already.
        """
        offsets = self._offsets.setdefault(partition, {})
        if all(offset >= end_offset for offset in offsets.values()):
            wake()
        else:
            waiting = self._waiting.setdefault(partition, {})
            waiting[wake] = min(end_offset, waiting.get(wake, end_offset))

    def forget(self, wake: Callable[[], object]) -> None:
        """Never call it again."""
        for waiting in self._waiting.values():
            waiting.pop(wake, None)

    def watched(self, asked: Iterable[tuple[TopicIdPartition, int]]) -> list[tuple[TopicIdPartition, int]]:
        """Those of a follower's partitions and fetch offsets that are to be told to `fetched`."""
        return [one for one in asked if one[0] in self._offsets] if self._offsets else []

    def fetched(self, partition: TopicIdPartition, follower: int, offset: int) -> None:
        """The broker was sent a follower's Fetch from this offset on."""
        offsets = self._offsets[partition]
        offsets[follower] = offset
        if waiting := self._waiting.get(partition):
            reached = min(offsets.values())
            for wake in [one for one, end_offset in waiting.items() if end_offset <= reached]:
                del waiting[wake]
                wake()

    def drop_follower(self, follower: int) -> None:
        """Its connection ended; those that wait for it ask when their time comes."""
        for offsets in self._offsets.values():
            offsets.pop(follower, None)
