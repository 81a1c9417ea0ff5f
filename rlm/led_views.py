"""The read-only view of the led partitions that replication works with."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.topic_settings import LinkPolicy
from rlm.link_policy import LinkMode


@dataclass(frozen=True, slots=True)
class StoredLog:
    """A led partition's log, and how far it is in object storage."""

    topic_id_partition: TopicIdPartition
    directory: Path
    uploaded_offset: int
    """Every batch below was uploaded, here or by a leader before; negative while that is not known."""
    link_policy: LinkPolicy


class LedPartitions(Protocol):
    """What the leader proxy asks of the write path."""

    def mode_of(self, partition: TopicIdPartition, size: int) -> LinkMode:
        """How `size` bytes should travel to a follower that waits for them now."""

    def fetched(self, follower_id: int, partition: TopicIdPartition, offset: int, size: int) -> None:
        """A follower is about to be sent `size` bytes from this offset on, one way or the other."""

    def upload_expected(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether the batch at this offset is not stored yet, and about to be."""

    def links_wanted(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Followers wait for these partitions' links: upload now."""

    def find(self, topic_id: bytes | None, partition: int) -> TopicIdPartition | None:
        """The partition, if it is led here with the feature on."""
