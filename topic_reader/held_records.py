"""Appends records that a log lost and object storage still holds to the log again, or gives them up.

Restored records get new offsets at the end of the log, in their old order. Kafka handles them like any produced
records. Of a transaction, records are restored only if its commit is among what is held.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from kafka_log.plain_records import PlainRecord
from kafka_log.record_batch import RecordBatchHeader, scan_batches, verify_batches
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import RemoteWalLogSegmentMetadataUpdate
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from recovery.errors import UnusableRunError
from recovery.logs.run_reader import RunReader
from recovery.logs.stored_run import StoredObject
from topic_reader.isolation import committed
from topic_reader.stored_log import LostRange, StoredBatch

_NO_END = 2**63


class HeldRun(NamedTuple):
    """Records that a log lost, in a combined segment or an archive object."""

    stored_in: StoredObject
    entry: RemoteLogSegmentMetadataEntry
    """Its offsets are those that are held, its positions those of the whole run."""


_Log = Sequence[HeldRun]
"""What is held of one log, by offset."""


def held_runs(store: RemoteWalMetadataStore, archive: ArchiveStore, partition: TopicIdPartition) -> list[HeldRun]:
    """Return what objects hold of a partition's local losses and nobody has given up, by leader epoch and offset."""
    found = [
        HeldRun(StoredObject(run.combined_segment_id, 0, 0, run.custom_metadata), run.entry)
        for run in store.held_runs(partition)
    ]
    found += [HeldRun(StoredObject(one.object_id, 0, 0), one.run) for one in archive.held_runs(partition, store)]
    return sorted(found, key=lambda run: (run.entry.leader_epoch, run.entry.first_offset))


def held_logs(runs: Iterable[HeldRun], losses: Iterable[DeclaredGap]) -> list[list[HeldRun]]:
    """Return a partition's `held_runs` by the log that had them, the oldest first.

    A loss ends a log: newer leader epochs wrote other records from there on, which may be lost as well. So does an
    epoch that begins below the end of an older one, as nobody knows which of the two the log had.
    """
    ended_by = {loss.leader_epoch for loss in losses}
    logs: list[list[HeldRun]] = []
    epoch = end = -1
    for run in runs:
        entry, before = run.entry, epoch
        epoch = entry.leader_epoch
        if not logs or (before < epoch and (entry.first_offset < end or any(before < by <= epoch for by in ended_by))):
            logs.append([])
            end = -1
        logs[-1].append(run)
        end = max(end, entry.last_offset + 1)
    return logs


def held_records(reader: RunReader, logs: Sequence[_Log], left_out: Callable[[int], None]) -> Iterator[PlainRecord]:
    """Yield all records of these logs, each log's offset once, ascending; before the first, every batch was decoded.

    So damaged bytes and missing codecs end it before anything is restored. `left_out` is called with how many records
    belong to transactions whose end is not held. Raises RemoteStorageError, UnusableRunError, CorruptBatchError,
    MalformedMessageError.
    """
    for batch in (batch for log in logs for batch in _batches(reader, log)):
        for _ in batch.records():
            pass
    for log in logs:
        for batch in committed(
            _pieces(reader, log),
            partial(_batches, reader, log),
            _NO_END,
            lambda _first, count, _lost: left_out(count),
        ):
            yield from batch.records()


def _batches(reader: RunReader, log: _Log, from_offset: int = 0) -> Iterator[StoredBatch]:
    for piece in _pieces(reader, log):
        if isinstance(piece, StoredBatch) and piece.header.base_offset >= from_offset:
            yield piece


def _pieces(reader: RunReader, log: _Log) -> Iterator[StoredBatch | LostRange]:
    """Yield the batches, and what is not held between and behind the runs. Within one, compaction left offsets out."""
    next_offset = 0
    for run in log:
        entry = run.entry
        if entry.last_offset < next_offset:
            continue
        raw = reader.fetch(run.stored_in, entry.start_file_position, entry.end_file_position)
        if 0 < next_offset < entry.first_offset:
            yield LostRange(next_offset, entry.first_offset)
        for span in scan_batches(raw, 0, len(raw)):
            if span.base_offset >= max(next_offset, entry.first_offset) and span.last_offset <= entry.last_offset:
                next_offset = span.last_offset + 1
                if not verify_batches(raw, [span]):
                    reason = f"the batch at offset {span.base_offset} is damaged"
                    raise UnusableRunError("read held records", str(run.stored_in.object_id), reason)
                yield StoredBatch(RecordBatchHeader.parse(raw, span.start), memoryview(raw)[span.start : span.end])
    yield LostRange(next_offset, _NO_END)


def give_up(
    store: RemoteWalMetadataStore,
    archive: ArchiveStore,
    partition: TopicIdPartition,
    broker_id: int,
    now_ms: int,
    publish: Callable[[RemoteWalLogSegmentMetadataUpdate | RemoteWalGapDeclaration], None],
) -> int:
    """Give up the partition's held records. Combined segments that hold them can be deleted then; archive objects are
    kept until the topic is deleted. Returns how many runs."""
    runs, archived = store.held_runs(partition), archive.held_runs(partition, store)
    newest_epoch = max((loss.leader_epoch for loss in store.local_losses().get(partition, ())), default=0)
    for run in runs:
        publish(
            RemoteWalLogSegmentMetadataUpdate(run.combined_segment_id, (run.entry,), broker_id, newest_epoch, now_ms)
        )
    if archived:
        losses = store.undecided_losses(partition)
        given_up = tuple(loss._replace(reason=GapReason.GIVEN_UP) for loss in losses)
        publish(RemoteWalGapDeclaration(broker_id, now_ms, 0, given_up, now_ms))
    return len(runs) + len(archived)
