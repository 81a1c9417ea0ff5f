"""Appends records that a log lost and object storage still holds to the log again, or gives them up.

Restored records get new offsets at the end of the log, in their old order. Kafka handles them like any produced
records. Of a transaction, records are restored only if its commit is among what is held.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from kafka_log.plain_records import PlainRecord, decode_records
from kafka_log.record_batch import RecordBatchHeader, scan_batches, verify_batches
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.records import RemoteWalLogSegmentMetadataUpdate
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import RemoteWalLogSegmentMetadata
from recovery.errors import UnusableRunError

_COMMIT = b"\x00\x00\x00\x01"
"""The key of a transaction's commit marker: version 0, type 1."""

Decompress = Callable[[RecordBatchHeader, memoryview], bytes]
"""Returns what follows the header of a whole batch, decompressed (`topic_reader.decompression.decompressed`)."""


def held_records(
    storage: RemoteWalStorageManager, runs: Sequence[RemoteWalLogSegmentMetadata], decompress: Decompress
) -> Iterator[PlainRecord]:
    """Yield all held records, each offset once, ascending; before the first, every batch was decoded once.

    So damaged bytes and codecs that are not installed end it before anything was restored. Raises RemoteStorageError,
    UnusableRunError, MalformedMessageError, and what `decompress` raises. `runs` are the metadata store's `held_runs`.
    """
    markers: defaultdict[int, list[tuple[int, bool]]] = defaultdict(list)
    """By producer id: the offsets of its transactions' markers, ascending, and whether they are commits.

    Not by producer epoch: brokers with transaction.version 2 give the marker a higher one (KIP-890). In a partition
    a producer has one transaction after the other.
    """
    for header, raw in _batches(storage, runs):
        for record in decode_records(header, decompress(header, raw)):
            if header.is_control:
                markers[header.producer_id].append((record.offset, record.key == _COMMIT))
    for header, raw in _batches(storage, runs):
        if not header.is_control and (not header.is_transactional or _is_committed(header, markers)):
            yield from decode_records(header, decompress(header, raw))


def _is_committed(header: RecordBatchHeader, markers: dict[int, list[tuple[int, bool]]]) -> bool:
    """Whether the first marker behind a transaction's batch is a commit; without one it is still open."""
    of_producer = markers.get(header.producer_id, [])
    at = bisect_right(of_producer, header.last_offset, key=lambda marker: marker[0])
    return at < len(of_producer) and of_producer[at][1]


def _batches(
    storage: RemoteWalStorageManager, runs: Sequence[RemoteWalLogSegmentMetadata]
) -> Iterator[tuple[RecordBatchHeader, memoryview]]:
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
                if not verify_batches(raw, [span]):
                    reason = f"the batch at offset {span.base_offset} is damaged"
                    raise UnusableRunError("read held records", str(run.combined_segment_id), reason)
                yield RecordBatchHeader.parse(raw, span.start), memoryview(raw)[span.start : span.end]


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
