"""Decodes records of the metadata topic to `staged_rows`, a whole Arrow batch at a time, in one pass over the topic."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from metadata_topic.records import serde
from metadata_topic.records.serde_batches import PADDING, BinaryColumn, SegmentBatch, decode_segments
from retention_job.sources.release_facts import ReleaseFacts
from retention_job.sources.single_records import rows_one_by_one
from retention_job.sources.staged_rows import ENTRY_ROW, PARTITION_SHIFT, SEGMENT_ROW, rows

_MAX_BROKER_ID: Final = 2**31 - 1


def decoder(facts: ReleaseFacts) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow, from (key, value, partition, offset, timestamp_ms) to STAGED."""

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from decode_batch(batch, facts)

    return decode


def decode_batch(batch: pa.RecordBatch, facts: ReleaseFacts) -> Iterator[pa.RecordBatch]:
    """Return the rows of one batch, in several batches."""
    keys, values = batch.column("key"), batch.column("value")
    record_id = (_ints(batch.column("partition")) << PARTITION_SHIFT) | _ints(batch.column("offset"))
    segments = decode_segments(_bytes_of(keys), _bytes_of(values))
    yield from _segment_rows(segments, record_id, facts)
    alone = ~segments.is_decoded
    alone[segments.row[segments.broker_id > _MAX_BROKER_ID]] = True
    left = np.flatnonzero(alone)
    if len(left):
        at = pa.array(left)
        yield rows_one_by_one(
            zip(
                keys.take(at).to_pylist(),
                values.take(at).to_pylist(),
                record_id[left].tolist(),
                batch.column("timestamp_ms").take(at).to_pylist(),
                strict=True,
            )
        )


def _ints(column: pa.Array) -> Any:
    return column.to_numpy(zero_copy_only=False).astype(np.int64)


def _bytes_of(column: pa.Array) -> BinaryColumn:
    """Return a column's bytes; nulls become empty strings."""
    _, offsets, data = column.buffers()
    kind = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    bounds = np.frombuffer(offsets, dtype=kind)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    start, end = (int(bounds[0]), int(bounds[-1])) if len(bounds) else (0, 0)
    padded = np.zeros(end - start + PADDING, dtype=np.uint8)
    if end > start:
        padded[: end - start] = np.frombuffer(data, dtype=np.uint8)[start:end]
    return BinaryColumn(padded, bounds[:-1] - start, bounds[1:] - start)


def _segment_rows(batch: SegmentBatch, record_id: Any, facts: ReleaseFacts) -> Iterator[pa.RecordBatch]:
    if not len(batch.row):
        return
    ids = record_id[batch.row]
    count = batch.entries.counts
    retention = _retention_of_segments(batch, facts)
    representable = batch.broker_id <= _MAX_BROKER_ID
    yield rows(
        SEGMENT_ROW,
        int(representable.sum()),
        {
            "record_id": ids[representable],
            "broker_id": batch.broker_id[representable],
            "incarnation": batch.incarnation[representable],
            "sequence": batch.sequence[representable],
            "event_timestamp_ms": batch.event_timestamp_ms[representable],
            "state": batch.state[representable],
            "record_type": np.where(batch.is_rebuilt, serde.REBUILT_SEGMENT, serde.COMBINED_SEGMENT)[representable],
            "size_bytes": _or_null(batch.size_bytes, batch.size_bytes < 0, representable),
            "copies": batch.copies[representable],
            "elsewhere_bytes": _elsewhere_bytes(batch)[representable],
            "entry_count": _or_null(count, count == 0, representable),
            "retention_ms": _or_null(retention, count == 0, representable),
        },
    )
    # Only an upload has positions; a deletion's entries are a copy of earlier ones.
    of_segment = batch.entries.block
    chosen = (batch.state[of_segment] == 1) & representable[of_segment]
    if chosen.any():
        yield _entry_rows(batch, ids, chosen)


def _elsewhere_bytes(batch: SegmentBatch) -> Any:
    """Return for each segment how many record bytes it lacks in its object, at least; gateways' objects have these.

    See `plugin.adopted_records`. Everything else in the object, some hundred bytes and a line for each such batch,
    makes the number smaller.
    """
    entries = batch.entries
    lengths = entries.end_file_position - entries.start_file_position
    of_segment = np.bincount(entries.block, weights=lengths, minlength=len(batch.row)).astype(np.int64)
    return np.where(batch.size_bytes >= 0, np.maximum(of_segment - batch.size_bytes, 0), 0)


def _retention_of_segments(batch: SegmentBatch, facts: ReleaseFacts) -> Any:
    """Return the longest retention of each segment's entries; 0 if it has none."""
    entries = batch.entries
    topic_ids = _fixed_binary(entries.topic_ids).dictionary_encode()
    codes = topic_ids.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    kept = facts.retention_of(topic_ids.dictionary.to_pylist(), codes, entries.partition, entries.last_offset)
    retention = np.zeros(len(batch.row), dtype=np.int64)
    filled = np.flatnonzero(entries.counts)
    if len(filled):
        retention[filled] = np.maximum.reduceat(kept, (np.cumsum(entries.counts) - entries.counts)[filled])
    return retention


def _entry_rows(batch: SegmentBatch, ids: Any, chosen: Any) -> pa.RecordBatch:
    entries = batch.entries
    of_segment = entries.block[chosen]
    return rows(
        ENTRY_ROW,
        len(of_segment),
        {
            "record_id": ids[of_segment],
            "broker_id": batch.broker_id[of_segment],
            "incarnation": batch.incarnation[of_segment],
            "sequence": batch.sequence[of_segment],
            "event_timestamp_ms": batch.event_timestamp_ms[of_segment],
            "topic_id": _fixed_binary(entries.topic_ids[chosen]).cast(pa.binary()),
            "partition": entries.partition[chosen],
            "leader_epoch": entries.leader_epoch[chosen],
            "first_offset": entries.first_offset[chosen],
            "last_offset": entries.last_offset[chosen],
            "start_position": entries.start_file_position[chosen],
            "end_position": entries.end_file_position[chosen],
        },
    )


def _fixed_binary(ids: Any) -> pa.FixedSizeBinaryArray:
    packed = np.ascontiguousarray(ids)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(packed), [None, pa.py_buffer(packed.data)])


def _or_null(values: Any, is_null: Any, chosen: Any) -> pa.Array:
    return pa.array(values[chosen], mask=is_null[chosen])
