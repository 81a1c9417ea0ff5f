"""Appends records that a log lost and object storage still holds to the log again, or gives them up.

Restored records get new offsets at the end of the log, in their old order. Kafka handles them like any produced
records. Of a transaction, records are restored only if its commit is among what is held.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kafka_log.plain_records import PlainRecord
from kafka_log.record_batch import RecordBatchHeader, scan_batches, verify_batches
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.records import RemoteWalLogSegmentMetadataUpdate
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import RemoteWalLogSegmentMetadata
from plugin.store_loop import ask
from recovery.errors import UnusableRunError
from topic_reader.isolation import committed
from topic_reader.stored_log import LostRange, StoredBatch

_NO_END = 2**63


_Log = Sequence[RemoteWalLogSegmentMetadata]
"""What is held of one log, by offset."""


def held_logs(store: RemoteWalMetadataStore, partition: TopicIdPartition) -> list[list[RemoteWalLogSegmentMetadata]]:
    """Return the metadata store's `held_runs` by the log that had them, the oldest first.

    A loss ends a log: newer leader epochs wrote other records from there on, which may be lost as well. So does an
    epoch that begins below the end of an older one, as nobody knows which of the two the log had.
    """
    ended_by = {loss.leader_epoch for loss in store.local_losses().get(partition, ())}
    logs: list[list[RemoteWalLogSegmentMetadata]] = []
    epoch = end = -1
    for run in store.held_runs(partition):
        entry, before = run.entry, epoch
        epoch = entry.leader_epoch
        if not logs or (before < epoch and (entry.first_offset < end or any(before < by <= epoch for by in ended_by))):
            logs.append([])
            end = -1
        logs[-1].append(run)
        end = max(end, entry.last_offset + 1)
    return logs


def held_records(
    storage: RemoteWalStorageManager, logs: Sequence[_Log], left_out: Callable[[int], None]
) -> Iterator[PlainRecord]:
    """Yield all records of these logs, each log's offset once, ascending; before the first, every batch was decoded.

    So damaged bytes and missing codecs end it before anything is restored. `left_out` is called with how many records
    belong to transactions whose end is not held. Raises RemoteStorageError, UnusableRunError, CorruptBatchError,
    MalformedMessageError.
    """
    for batch in (batch for log in logs for batch in _batches(storage, log)):
        for _ in batch.records():
            pass
    for log in logs:
        for batch in committed(
            _pieces(storage, log),
            partial(_batches, storage, log),
            _NO_END,
            lambda _first, count, _lost: left_out(count),
        ):
            yield from batch.records()


def _batches(storage: RemoteWalStorageManager, log: _Log, from_offset: int = 0) -> Iterator[StoredBatch]:
    for piece in _pieces(storage, log):
        if isinstance(piece, StoredBatch) and piece.header.base_offset >= from_offset:
            yield piece


def _pieces(storage: RemoteWalStorageManager, log: _Log) -> Iterator[StoredBatch | LostRange]:
    """Yield the batches, and what is not held between and behind the runs. Within one, compaction left offsets out."""
    next_offset = 0
    for run in log:
        entry = run.entry
        if entry.last_offset < next_offset:
            continue
        raw = ask(
            storage.fetch_log_segment(
                run.combined_segment_id, entry.start_file_position, entry.end_file_position, run.custom_metadata
            )
        )
        if 0 < next_offset < entry.first_offset:
            yield LostRange(next_offset, entry.first_offset)
        for span in scan_batches(raw, 0, len(raw)):
            if span.base_offset >= max(next_offset, entry.first_offset) and span.last_offset <= entry.last_offset:
                next_offset = span.last_offset + 1
                if not verify_batches(raw, [span]):
                    reason = f"the batch at offset {span.base_offset} is damaged"
                    raise UnusableRunError("read held records", str(run.combined_segment_id), reason)
                yield StoredBatch(RecordBatchHeader.parse(raw, span.start), memoryview(raw)[span.start : span.end])
    yield LostRange(next_offset, _NO_END)


def give_up(
    store: RemoteWalMetadataStore,
    partition: TopicIdPartition,
    broker_id: int,
    now_ms: int,
    publish: Callable[[RemoteWalLogSegmentMetadataUpdate], None],
) -> int:
    """Declare the partition's held records dead, so that their objects can be deleted. Returns how many runs."""
    runs = store.held_runs(partition)
    newest_epoch = max((loss.leader_epoch for loss in store.local_losses().get(partition, ())), default=0)
    for run in runs:
        publish(
            RemoteWalLogSegmentMetadataUpdate(run.combined_segment_id, (run.entry,), broker_id, newest_epoch, now_ms)
        )
    return len(runs)
