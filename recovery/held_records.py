"""Appends records that a log lost and object storage still holds to the log again, or gives them up.

Restored records get new offsets at the end of the log, in their old order. Kafka handles them like any produced
records. Of a transaction, records are restored only if its commit is among what is held.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.records import RemoteWalLogSegmentMetadataUpdate
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import RemoteWalLogSegmentMetadata

_COMMIT = b"\x00\x00\x00\x01"
"""The key of a transaction's commit marker: version 0, type 1."""


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """One record, as a producer sends it."""

    offset: int
    """Its old offset."""
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Sequence[tuple[str, bytes | None]]


def held_records(storage: RemoteWalStorageManager, runs: Sequence[RemoteWalLogSegmentMetadata]) -> Iterator[HeldRecord]:
    """Yield all held records, each offset once, ascending. Raises RemoteStorageError, and ValueError for damaged bytes.

    `runs` are the metadata store's `held_runs`.
    """
    from kafka.record import MemoryRecords

    committed: dict[tuple[int, int], int] = {}
    """By producer id and epoch, where its last transaction was committed."""
    for raw in _batches(storage, runs):
        batch = MemoryRecords(raw).next_batch()
        if batch.is_control_batch and any(record.key == _COMMIT for record in batch):
            committed[batch.producer_id, batch.producer_epoch] = batch.base_offset
    for raw in _batches(storage, runs):
        batch = MemoryRecords(raw).next_batch()
        is_open = batch.base_offset > committed.get((batch.producer_id, batch.producer_epoch), -1)
        if batch.is_control_batch or (batch.is_transactional and is_open):
            continue
        if not batch.validate_crc():
            raise ValueError(f"the batch at offset {batch.base_offset} is damaged")
        for record in batch:
            yield HeldRecord(record.offset, record.key, record.value, record.timestamp, record.headers)


def _batches(storage: RemoteWalStorageManager, runs: Sequence[RemoteWalLogSegmentMetadata]) -> Iterator[bytes]:
    next_offset = 0
    for run in runs:
        entry = run.entry
        if entry.last_offset < next_offset:
            continue
        raw = storage.fetch_log_segment(
            run.combined_segment_id, entry.start_file_position, entry.end_file_position, run.custom_metadata
        )
        for span in scan_batches(raw, 0, len(raw)):
            if span.base_offset >= max(next_offset, entry.first_offset) and span.last_offset <= entry.last_offset:
                next_offset = span.last_offset + 1
                yield bytes(raw[span.start : span.end])


def give_up(
    store: RemoteWalMetadataStore,
    partition: TopicIdPartition,
    broker_id: int,
    now_ms: int,
    publish: Callable[[RemoteWalLogSegmentMetadataUpdate], None],
) -> int:
    """Declare the partition's held records dead, so that their objects can go. Returns how many runs."""
    runs = store.held_runs(partition)
    newest_epoch = max((loss.leader_epoch for loss in store.local_losses().get(partition, ())), default=0)
    for run in runs:
        publish(
            RemoteWalLogSegmentMetadataUpdate(run.combined_segment_id, (run.entry,), broker_id, newest_epoch, now_ms)
        )
    return len(runs)
