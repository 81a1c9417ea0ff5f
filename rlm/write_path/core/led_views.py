"""The read-only view of the led partitions that replication uses."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kafka_log.record_batch import BatchSpan
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.format.archive_object_id import StoredObjectId
from plugin.inline_reason import InlineReason
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from rlm.write_path.commit.link_policy import LinkMode


@dataclass(frozen=True, slots=True)
class StoredLog:
    """A led partition's log, and up to which offset it is in object storage."""

    topic_id_partition: TopicIdPartition
    directory: Path
    uploaded_offset: int
    """Every batch below was uploaded, here or by an earlier leader; negative while that is unknown."""
    link_policy: LinkPolicy


@dataclass(frozen=True, slots=True)
class ProvedRun:
    """An entry of a combined segment, or a run of an archive object, that has the same bytes as the log."""

    object_id: StoredObjectId
    entry: RemoteLogSegmentMetadataEntry
    records: memoryview
    batches: tuple[BatchSpan, ...]
    """Positions are relative to `records`; in the object, `entry.start_file_position` is added."""
    custom_metadata: bytes = b""
    """The combined segment's custom metadata."""
    digests: tuple[bytes, ...] = ()
    """The batches' SHA-256, if they are taken."""


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """The runs of a log from an offset on that are in objects."""

    runs: list[ProvedRun]
    refused_to: int = 0
    """Exclusive. Above 0, the runs end at one that the log does not prove and that reaches up to here: a new look below
    this offset finds nothing."""


class LedPartitions(Protocol):
    """The subset of the write path that the leader proxy needs."""

    def mode_of(self, partition: TopicIdPartition) -> LinkMode:
        """Return how the newest bytes should travel to a follower that waits for them now."""

    def fetched(self, follower_id: int, partition: TopicIdPartition, offset: int, size: int) -> None:
        """Record that a follower is about to get `size` bytes from this offset on, by link or inline."""

    def upload_expected(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether the batch at this offset is not stored yet, and will be soon."""

    def is_always_linked(self, partition: TopicIdPartition) -> bool:
        """Whether the topic's link policy is `always`: its bytes are linked whatever that costs."""

    def why_inline(self, partition: TopicIdPartition) -> InlineReason:
        """Return the reason for which the partition's bytes go inline, if they do."""

    def links_wanted(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Start the upload now, because followers wait for links to these partitions."""

    def find(self, topic_id: bytes | None, partition: int) -> TopicIdPartition | None:
        """Return the partition, if it is led here with the feature on."""
