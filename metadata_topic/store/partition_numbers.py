"""Partitions by small numbers, that rows of an index have in the place of ids of 20 bytes.

A number is never used again, so a row that is left of a partition that was forgotten means no other one.
"""

from collections.abc import Sequence, Set

import numpy as np

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.store.run_chunk import Int64s, Keys


class PartitionNumbers:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._numbers: dict[TopicIdPartition, int] = {}
        self._partitions: dict[int, TopicIdPartition] = {}
        self._next = 0

    def number_of(self, topic_id_partition: TopicIdPartition) -> int | None:
        """None: it has none."""
        return self._numbers.get(topic_id_partition)

    def partition_of(self, number: int) -> TopicIdPartition:
        """The other way round."""
        return self._partitions[number]

    def made_for(self, partitions: Int64s, topic_ids: Sequence[bytes]) -> Keys:
        """The partitions' numbers, new ones among them; partitions are given as (index into `topic_ids`, partition) in
        one.
        """
        different, place = np.unique(partitions, return_inverse=True)
        numbers = []
        for both in different.tolist():
            partition = TopicIdPartition(TopicId(topic_ids[both >> 31]), both & 0x7FFFFFFF)
            number = self._numbers.get(partition)
            if number is None:
                number = self._numbers[partition] = self._next
                self._partitions[number] = partition
                self._next += 1
            numbers.append(number)
        return np.array(numbers, dtype=np.uint64)[place]

    def keep(self, used: Set[int]) -> None:
        """Forget all others."""
        self._partitions = {number: self._partitions[number] for number in sorted(used)}
        self._numbers = {partition: number for number, partition in self._partitions.items()}
