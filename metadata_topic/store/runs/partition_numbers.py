"""Partitions by small numbers, that rows of an index have in the place of ids of 20 bytes.

A number is never used again, so a row that is left of a partition that was forgotten means no other one. Thousands of
partitions are looked up at once, so they stand in sorted arrays: 16 bytes for a partition, and no Python object.
"""

from collections.abc import Sequence, Set
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.store.runs.run_chunk import Int64s, Keys

_TOPIC_SHIFT: Final = 31
_PARTITION: Final = (1 << _TOPIC_SHIFT) - 1


class PartitionNumbers:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._topics: dict[bytes, int] = {}
        """Topics have numbers of their own, of the same kind."""
        self._next_topic = 0
        self._codes: Int64s = np.empty(0, dtype=np.int64)
        """Of each partition its topic's number and its own in one; sorted."""
        self._numbers: Keys = np.empty(0, dtype=np.uint64)
        """Beside them."""
        self._next = 0

    def number_of(self, topic_id_partition: TopicIdPartition) -> int | None:
        """None: it has none."""
        topic = self._topics.get(topic_id_partition.topic_id)
        if topic is None:
            return None
        is_known, places = self._find(np.array([topic << _TOPIC_SHIFT | topic_id_partition.partition]))
        return int(self._numbers[places[0]]) if is_known[0] else None

    def partitions_of(self, numbers: Sequence[int]) -> list[TopicIdPartition]:
        """The other way round; each must have been made."""
        order = self._numbers.argsort()
        places = order[self._numbers.searchsorted(np.array(numbers, dtype=np.uint64), sorter=order)]
        topic_ids = {number: TopicId(topic_id) for topic_id, number in self._topics.items()}
        return [
            TopicIdPartition(topic_ids[code >> _TOPIC_SHIFT], code & _PARTITION)
            for code in self._codes[places].tolist()
        ]

    def made_for(self, topic_ids: Sequence[bytes], topics: Int64s, partitions: Int64s) -> Keys:
        """The number of each partition, new ones among them. `topics` are indexes into `topic_ids`, where an id may
        stand many times.
        """
        numbered = np.array([self._topic_number(topic_id) for topic_id in topic_ids], dtype=np.int64)
        codes = numbered[topics] << _TOPIC_SHIFT | partitions
        is_known, places = self._find(codes)
        if not is_known.all():
            self._add(np.unique(codes[~is_known]))
            _, places = self._find(codes)
        numbers: Keys = self._numbers[places]
        return numbers

    def keep(self, used: Set[int]) -> None:
        """Forget all others."""
        kept = np.isin(self._numbers, np.fromiter(used, dtype=np.uint64, count=len(used)))
        self._codes, self._numbers = self._codes[kept], self._numbers[kept]
        topics = set((self._codes >> _TOPIC_SHIFT).tolist())
        self._topics = {topic_id: number for topic_id, number in self._topics.items() if number in topics}

    def _find(self, codes: Int64s) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
        """Which have numbers, and at what place."""
        places = self._codes.searchsorted(codes)
        if not len(self._codes):
            return np.zeros(len(codes), dtype=np.bool_), places
        return self._codes[np.minimum(places, len(self._codes) - 1)] == codes, places

    def _add(self, new: Int64s) -> None:
        at = self._codes.searchsorted(new)
        self._codes = np.insert(self._codes, at, new)
        self._numbers = np.insert(self._numbers, at, np.arange(self._next, self._next + len(new), dtype=np.uint64))
        self._next += len(new)

    def _topic_number(self, topic_id: bytes) -> int:
        number = self._topics.get(topic_id)
        if number is None:
            number = self._topics[topic_id] = self._next_topic
            self._next_topic += 1
        return number
