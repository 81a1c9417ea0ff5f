"""Where a record is in object storage: from topic id, partition, offset and leader epochs to object and position.

The combined segments are asked first, as they are in the faster store, then the archive. In this order nothing is
missed while a range moves from one to the other: the archive object is committed before its sources are released, so
who found no source any more finds the archive object.

An answer may be out of date when it is used, as objects are deleted; then the read says that the object is gone, and
to ask again leads to the archive.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.store.archive.archive_store import ArchiveStore
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry, RemoteWalLogSegmentMetadata


class Tier(Enum):
    WAL = "wal"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True)
class Located:
    """A range of bytes whose batches hold the offset that was asked for."""

    tier: Tier
    object_id: CombinedSegmentId | ArchiveObjectId
    """The first for the WAL's store, the second for the archive's."""
    entry: RemoteLogSegmentMetadataEntry
    """Positions, checksum and offsets of the whole range. It may begin before the offset."""
    last_offset: int
    """The last one that is the log's; what the range holds beyond is another epoch's, and dead."""
    custom_metadata: bytes = b""

    @property
    def start_position(self) -> int:
        return self.entry.start_file_position

    @property
    def end_position(self) -> int:
        return self.entry.end_file_position


class _CombinedSegments(Protocol):
    def entries_covering(
        self, topic_id_partition: TopicIdPartition, offset: int, leader_epochs: LeaderEpochs | None = None
    ) -> list[RemoteWalLogSegmentMetadata]: ...


class SegmentLookup:
    """Any thread may ask."""

    def __init__(self, wal: _CombinedSegments, archive: ArchiveStore) -> None:
        self._wal = wal
        self._archive = archive

    def locate(self, topic_id: TopicId, partition: int, offset: int, leader_epochs: LeaderEpochs) -> Located | None:
        """The best place of the record at `offset` of this log; None when it is in no finished object."""
        found = self.locate_all(topic_id, partition, offset, leader_epochs)
        return found[0] if found else None

    def locate_all(self, topic_id: TopicId, partition: int, offset: int, leader_epochs: LeaderEpochs) -> list[Located]:
        """All places, the best first: for readers that try the next one when an object is gone or damaged."""
        topic_id_partition = TopicIdPartition(topic_id, partition)
        epoch = leader_epochs.epoch_at(offset)
        if epoch is None:
            return []
        end = leader_epochs.end_of(epoch)
        wal = self._wal.entries_covering(topic_id_partition, offset, leader_epochs)
        archive = self._archive.runs_covering(topic_id_partition, offset, leader_epochs)
        return [
            Located(Tier.WAL, found.combined_segment_id, found.entry, _cut(found.entry, end), found.custom_metadata)
            for found in wal
        ] + [Located(Tier.ARCHIVE, run.object_id, run.run, _cut(run.run, end)) for run in archive]


def _cut(entry: RemoteLogSegmentMetadataEntry, end: int | None) -> int:
    return entry.last_offset if end is None else min(entry.last_offset, end - 1)
