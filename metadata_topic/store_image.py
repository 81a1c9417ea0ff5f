"""A store's whole content as plain values: what a snapshot is written from and read into."""

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.fencing import PlacedRegistration
from metadata_topic.records import PublishedSegment
from metadata_topic.retained_records import RetainedRecord
from plugin.segment_metadata import CombinedSegmentId


@dataclass(frozen=True, slots=True)
class WriterImage:
    """What is remembered of one incarnation's objects that are gone or refused: half open intervals."""

    broker_id: int
    incarnation: int
    deleted: Sequence[tuple[int, int]]
    fenced: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class DeadTail:
    """Of that object's records of that partition and epoch, all from `first_offset` on are dead."""

    combined_segment_id: CombinedSegmentId
    topic_id_partition: TopicIdPartition
    leader_epoch: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class StoreImage:
    """Consistent: taken at one point of the topic, which `progress` names."""

    progress: dict[int, int]
    """Partition of the metadata topic to the offset that is to be read next."""
    writers: Sequence[WriterImage]
    registrations: Sequence[PlacedRegistration]
    dead: Sequence[DeadTail]
    retained: Sequence[RetainedRecord]
    segments: Sequence[PublishedSegment]
    """All that are not deleted."""
