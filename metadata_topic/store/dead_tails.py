"""From which offset on a segment's records of a partition and leader epoch are dead, as newer leaders have declared.

Not thread-safe: the store calls it under its lock.
"""

from collections.abc import Iterator, Mapping, Set

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.store.store_image import DeadTail
from plugin.segment_metadata import CombinedSegmentId

PartitionAndEpoch = tuple[TopicIdPartition, int]


class DeadTails:
    """The dead tails of all segments; a segment without dead records has none."""

    def __init__(self) -> None:
        self._tails: dict[CombinedSegmentId, dict[PartitionAndEpoch, int]] = {}
        self._unpublished: dict[CombinedSegmentId, dict[PartitionAndEpoch, int]] = {}
        """Those that only an earlier topic, or an earlier reading, told: leaders are to declare them again."""

    def __contains__(self, segment_id: CombinedSegmentId) -> bool:
        return segment_id in self._tails

    def all(self) -> list[DeadTail]:
        """Return all dead tails, one for each segment, partition and epoch."""
        return [
            DeadTail(segment_id, *partition_and_epoch, first_offset)
            for segment_id, tails in self._tails.items()
            for partition_and_epoch, first_offset in tails.items()
        ]

    def of(self, segment_id: CombinedSegmentId) -> Mapping[PartitionAndEpoch, int]:
        """Return a segment's first dead offsets, by partition and epoch."""
        return self._tails.get(segment_id, {})

    def of_partition(self, key: PartitionAndEpoch) -> Iterator[tuple[CombinedSegmentId, int]]:
        """Yield the segments with dead records of this partition and epoch, each with the first dead offset."""
        return ((segment_id, tails[key]) for segment_id, tails in self._tails.items() if key in tails)

    def of_partitions(self, keys: Set[PartitionAndEpoch]) -> Iterator[tuple[PartitionAndEpoch, int]]:
        """Yield the first dead offsets of these partitions and epochs, one for each segment that has some."""
        return ((key, tails[key]) for tails in self._tails.values() for key in tails.keys() & keys)

    def is_published(self, segment_id: CombinedSegmentId, key: PartitionAndEpoch) -> bool:
        """Whether the present topic has what is known of the segment's dead records of this partition and epoch."""
        return key not in self._unpublished.get(segment_id, ())

    def know(self, tail: DeadTail) -> None:
        """Add a dead tail from a snapshot, which may be of an earlier topic."""
        tails = self._tails.setdefault(tail.combined_segment_id, {})
        key = (tail.topic_id_partition, tail.leader_epoch)
        tails[key] = min(tails.get(key, tail.first_offset), tail.first_offset)

    def note_published(self, tail: DeadTail) -> None:
        """Record a dead tail that a record of this topic declares."""
        self.know(tail)
        key = (tail.topic_id_partition, tail.leader_epoch)
        unpublished = self._unpublished.get(tail.combined_segment_id, {})
        if unpublished.get(key, -1) >= tail.first_offset:
            del unpublished[key]

    def forget(self, segment_id: CombinedSegmentId) -> None:
        """Forget a segment's dead tails, because it is deleted."""
        self._tails.pop(segment_id, None)
        self._unpublished.pop(segment_id, None)

    def list_unpublished(self) -> list[DeadTail]:
        """Return the dead tails that no record of the present topic declares."""
        return [
            DeadTail(segment_id, *partition_and_epoch, first_offset)
            for segment_id, tails in self._unpublished.items()
            for partition_and_epoch, first_offset in tails.items()
        ]

    def mark_unpublished(self, tail: DeadTail) -> None:
        """Mark a dead tail as unpublished: an earlier process found no record of it in the topic."""
        self._unpublished.setdefault(tail.combined_segment_id, {})[tail.topic_id_partition, tail.leader_epoch] = (
            tail.first_offset
        )

    def begin_anew(self) -> None:
        """Mark all dead tails as unpublished, because the topic was recreated, or is read again from its beginning."""
        self._unpublished = {segment_id: dict(tails) for segment_id, tails in self._tails.items()}
