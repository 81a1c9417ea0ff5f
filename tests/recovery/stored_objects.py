"""Stores in memory for what is recovered: real combined segments, which may be damaged or removed."""

from collections.abc import Iterable

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.states import STARTED
from plugin.segment_metadata import (
    UNKNOWN_POSITION,
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)
from plugin.store_loop import ask
from recovery.logs.stored_run import StoredObject, StoredRun
from tests.kafka_log.batches import batch
from tests.kafka_log.forgery import forged
from tests.rlm.memory_storage import MemoryStorage

Records = tuple[TopicIdPartition, int, int, bytes]
"""Partition, leader epoch, first offset, batches."""


class ObjectsInMemory(MemoryStorage):
    """Combined segments, made by their contents."""

    def upload(self, sequence: int, *records: Records, broker_id: int = 1) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        """An object; each batch holds one record. Its time is its sequence."""
        metadata = started(CombinedSegmentId(broker_id, 1, sequence), *records)
        return ask(self.copy_log_segment_data(metadata, [data for _, _, _, data in records]))

    def damage(self, sequence: int, position: int = 200, broker_id: int = 1) -> None:
        segment_id = CombinedSegmentId(broker_id, 1, sequence)
        raw = bytearray(self.objects[segment_id])
        raw[position] ^= 1
        self.objects[segment_id] = bytes(raw)

    def forge(self, sequence: int, broker_id: int = 1) -> None:
        """Put another record in the place of one, of the same checksums."""
        segment_id = CombinedSegmentId(broker_id, 1, sequence)
        raw = self.objects[segment_id]
        self.objects[segment_id] = forged(raw, raw.index(MARK), MARK[::-1][:-4])

    def remove(self, sequence: int, broker_id: int = 1) -> None:
        del self.objects[CombinedSegmentId(broker_id, 1, sequence)]


MARK = b"a record's payload"


def started(segment_id: CombinedSegmentId, *parts: Records) -> RemoteWalCombinedLogSegmentMetadata:
    """The metadata of an object before it is stored. Its time is its sequence."""
    entries = tuple(
        RemoteLogSegmentMetadataEntry(
            partition, epoch, first, first + data.count(MARK) - 1, UNKNOWN_POSITION, UNKNOWN_POSITION, 0
        )
        for partition, epoch, first, data in parts
    )
    return RemoteWalCombinedLogSegmentMetadata(segment_id, entries, STARTED, segment_id.sequence)


def records(
    partition: TopicIdPartition, leader_epoch: int, first: int, last: int, *, timestamp_ms: int = 1_700_000_000_000
) -> Records:
    """Batches of one record each, from `first` to `last`."""
    data = b"".join(
        batch(offset, 1, leader_epoch, MARK, timestamp_ms=timestamp_ms) for offset in range(first, last + 1)
    )
    return partition, leader_epoch, first, data


def runs_of(
    uploads: Iterable[RemoteWalCombinedLogSegmentMetadataUpdate], partition: TopicIdPartition, sha256: bytes = b""
) -> list[StoredRun]:
    return [
        StoredRun(
            StoredObject(upload.combined_segment_id, upload.size_bytes, upload.combined_segment_id.sequence),
            entry.leader_epoch,
            entry.first_offset,
            entry.last_offset,
            entry.last_offset,
            entry.start_file_position,
            entry.end_file_position,
            entry.crc32c,
            sha256,
        )
        for upload in uploads
        for entry in upload.entries
        if entry.topic_id_partition == partition
    ]
