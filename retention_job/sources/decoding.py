"""Decodes the metadata topic to rows of one table, a whole Arrow batch at a time, in one pass over the topic.

The kinds of rows (column `row`): a record about a segment, its entries, dead entries, declared gaps, a record about an
archive object, records that others read, and the quarantine. A row has the columns of its kind and nulls in all others.
Good records about combined segments are nearly all, and are decoded together; the few others one by one.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from metadata_topic.records import archive_records, serde
from metadata_topic.records.archive_records import ArchiveObjectCommitted, ArchiveObjectPrepared, ArchiveRecord
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import (
    MetadataRecord,
    PublishedSegment,
    RemoteWalLogSegmentMetadataUpdate,
    UnknownRecord,
)
from metadata_topic.records.serde_batches import PADDING, BinaryColumn, SegmentBatch, decode_segments
from metadata_topic.records.usage_record import is_usage_key
from retention_job.schemas import SEGMENT_KEY
from retention_job.sources.release_facts import ReleaseFacts

SEGMENT_ROW: Final = "segment"
ENTRY_ROW: Final = "entry"
DEAD_ROW: Final = "dead"
GAP_ROW: Final = "gap"
ARCHIVE_ROW: Final = "archive"
OTHER_ROW: Final = "other"
QUARANTINE_ROW: Final = "quarantine"

PARTITION_SHIFT: Final = 48
"""A record's id is its partition << 48 | its offset."""
_MAX_BROKER_ID: Final = 2**31 - 1
_FINISHED: Final = 1
_MAY_BE_NEWER: Final = ("record_type", "gap_reason")
"""The fields to which a newer agent may have given values that are unknown here: such records are good."""

_SPAN: Final = pa.struct([("leader_epoch", pa.int32()), ("first_offset", pa.int64()), ("last_offset", pa.int64())])
"""A range of one leader epoch in an archive object; the object's runs tile its range, so a span has no hole."""

_ARROW: Final = pa.schema(
    {
        "row": pa.string(),
        "record_id": pa.int64(),
        "broker_id": pa.int32(),  # these three name the segment, or the writer of an archive object
        "incarnation": pa.int64(),
        "sequence": pa.int64(),
        "event_timestamp_ms": pa.int64(),  # Kafka's time stamp for a quarantined or other record
        "state": pa.int32(),
        "size_bytes": pa.int64(),
        "elsewhere_bytes": pa.int64(),  # this and the next two: of finished segments
        "entry_count": pa.int32(),
        "retention_ms": pa.int64(),  # may be FOREVER
        "topic_id": pa.binary(),
        "partition": pa.int32(),
        "leader_epoch": pa.int32(),
        "first_offset": pa.int64(),
        "last_offset": pa.int64(),
        "start_position": pa.int64(),
        "end_position": pa.int64(),
        "declared_epoch": pa.int32(),
        "record_type": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "reason": pa.string(),  # of a record that was not understood or, as a `GapReason`'s name, of a declared gap
        "detail": pa.string(),
        "key_bytes": pa.int32(),
        "value_bytes": pa.int32(),
        "publisher": pa.int64(),  # the incarnation that published the record about an archive object
        "expires_ms": pa.int64(),
        "spans": pa.list_(_SPAN),
    }
)
STAGED: Final = from_arrow_schema(_ARROW)

Columns = dict[str, Any]
Raw = tuple[bytes | None, bytes | None, int, int | None]
"""Key, value, record id, time stamp."""


def decoder(facts: ReleaseFacts) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow that decodes (key, value, partition, offset, timestamp_ms) to rows of STAGED."""

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from decode_batch(batch, facts)

    return decode


def retention_of_entries(facts: ReleaseFacts) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for mapInArrow that turns entries with their SEGMENT_KEY into that key and `kept_ms`."""

    def judge(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            topic_ids = batch.column("topic_id").dictionary_encode()
            codes, partition, last_offset = map(_ints, (topic_ids.indices, batch["partition"], batch["last_offset"]))
            kept_ms = facts.retention_of(topic_ids.dictionary.to_pylist(), codes, partition, last_offset)
            columns = {name: batch.column(name) for name in SEGMENT_KEY} | {"kept_ms": pa.array(kept_ms, pa.int64())}
            yield pa.RecordBatch.from_pydict(columns)

    return judge


def decode_batch(batch: pa.RecordBatch, facts: ReleaseFacts) -> Iterator[pa.RecordBatch]:
    """Decode one batch of records to rows of STAGED, in several batches."""
    keys, values = batch.column("key"), batch.column("value")
    record_id = (_ints(batch.column("partition")) << PARTITION_SHIFT) | _ints(batch.column("offset"))
    segments = decode_segments(_bytes_of(keys), _bytes_of(values))
    yield from _segment_rows(segments, record_id, facts)
    alone = ~segments.is_decoded
    alone[segments.row[segments.broker_id > _MAX_BROKER_ID]] = True
    left = np.flatnonzero(alone)
    if len(left):
        columns = (column.take(pa.array(left)).to_pylist() for column in (keys, values, batch.column("timestamp_ms")))
        found = [
            {"row": kind, **row}
            for key, value, timestamp_ms, one in zip(*columns, record_id[left].tolist(), strict=True)
            for kind, row in _rows_of(key, value, one, timestamp_ms)
        ]
        yield pa.RecordBatch.from_pylist(found, schema=_ARROW)


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


# Good records about combined segments, together.


def _segment_rows(batch: SegmentBatch, record_id: Any, facts: ReleaseFacts) -> Iterator[pa.RecordBatch]:
    if not len(batch.row):
        return
    entries = batch.entries
    count, unfinished = entries.counts, batch.state != _FINISHED  # a deletion's entries are a copy of earlier ones
    segments = {
        "record_id": record_id[batch.row],
        "broker_id": batch.broker_id,
        "incarnation": batch.incarnation,
        "sequence": batch.sequence,
        "event_timestamp_ms": batch.event_timestamp_ms,
    }
    known = batch.broker_id <= _MAX_BROKER_ID
    yield _rows(
        SEGMENT_ROW,
        known,
        {
            **segments,
            "state": batch.state,
            "record_type": np.where(batch.is_rebuilt, serde.REBUILT_SEGMENT, serde.COMBINED_SEGMENT),
            "size_bytes": np.ma.array(batch.size_bytes, mask=batch.size_bytes < 0),
            "elsewhere_bytes": np.ma.array(_elsewhere_bytes(batch), mask=unfinished),
            "entry_count": np.ma.array(count, mask=unfinished | (count == 0)),
            "retention_ms": np.ma.array(_retention_of_segments(batch, facts), mask=unfinished | (count == 0)),
        },
    )
    of_segment = entries.block
    chosen = ~unfinished[of_segment] & known[of_segment]
    if chosen.any():
        yield _rows(
            ENTRY_ROW,
            chosen,
            {
                **{name: column[of_segment] for name, column in segments.items()},
                "topic_id": entries.topic_ids,
                "partition": entries.partition,
                "leader_epoch": entries.leader_epoch,
                "first_offset": entries.first_offset,
                "last_offset": entries.last_offset,
                "start_position": entries.start_file_position,
                "end_position": entries.end_file_position,
            },
        )


def _rows(kind: str, chosen: Any, columns: Columns) -> pa.RecordBatch:
    """Return the chosen rows with nulls in the columns that the kind lacks."""
    count, arrays = int(chosen.sum()), []
    for name, arrow_type in zip(_ARROW.names, _ARROW.types, strict=True):
        if name == "row":
            arrays.append(pa.repeat(kind, count))
        elif name not in columns:
            arrays.append(pa.nulls(count, arrow_type))
        else:
            column = columns[name][chosen]
            array = _fixed_binary(column) if name == "topic_id" else pa.array(column)
            arrays.append(array.cast(arrow_type))
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


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


def _fixed_binary(ids: Any) -> pa.FixedSizeBinaryArray:
    packed = np.ascontiguousarray(ids)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(packed), [None, pa.py_buffer(packed.data)])


# All other records, one by one.


def _rows_of(
    key: bytes | None, value: bytes | None, record_id: int, timestamp_ms: int | None
) -> Iterator[tuple[str, Columns]]:
    place: Columns = {"record_id": record_id, "event_timestamp_ms": timestamp_ms}
    record: ArchiveRecord | MetadataRecord
    if key is not None and value is not None and archive_records.is_archive_key(key):
        record = archive_records.decode_or_keep_out(key, value)
        newer: tuple[str, ...] = ()
    else:
        record, newer = serde.decode_or_keep_out(key, value), _MAY_BE_NEWER
    if isinstance(record, RemoteWalLogSegmentMetadataUpdate):
        yield from ((DEAD_ROW, place | row) for row in _dead_rows(record))
    elif isinstance(record, RemoteWalGapDeclaration):
        yield from ((GAP_ROW, place | row) for row in _gap_rows(record))
    elif isinstance(record, ArchiveRecord):
        yield ARCHIVE_ROW, place | _archive_row(record)
    elif isinstance(record, PublishedSegment) or (isinstance(record, UnknownRecord) and record.reason not in newer):
        yield QUARANTINE_ROW, place | _quarantine_row(record, key, value)
    else:  # good, and of a type that is not read here
        # Usage, which `cost` reads, tells of no object; what a newer release writes may.
        is_usage = key is not None and is_usage_key(key)
        reason = record.reason if isinstance(record, UnknownRecord) and not is_usage else None
        yield OTHER_ROW, place | {"record_type": (value or b"\0\0")[1], "key": key, "value": value, "reason": reason}


def _archive_row(record: ArchiveRecord) -> Columns:
    (topic_id, partition), first_offset, last_offset, writer = record.object_id
    row: Columns = {
        "topic_id": topic_id,
        "partition": partition,
        "first_offset": first_offset,
        "last_offset": last_offset,
        **writer._asdict(),
        "publisher": record.incarnation,
        "state": int(record.state),
        "event_timestamp_ms": record.event_timestamp_ms,
    }
    if isinstance(record, ArchiveObjectPrepared):
        row["expires_ms"] = record.event_timestamp_ms + record.ttl_ms
    elif isinstance(record, ArchiveObjectCommitted):
        by_epoch = (list(group) for _, group in groupby(record.runs, key=lambda run: run.leader_epoch))
        row["spans"] = [(runs[0].leader_epoch, runs[0].first_offset, runs[-1].last_offset) for runs in by_epoch]
        row["size_bytes"] = record.size_bytes
    return row


def _dead_rows(record: RemoteWalLogSegmentMetadataUpdate) -> Iterator[Columns]:
    for entry in record.entries:
        yield {
            **record.combined_segment_id._asdict(),
            "event_timestamp_ms": record.event_timestamp_ms,
            **entry.topic_id_partition._asdict(),
            "leader_epoch": entry.leader_epoch,
            "first_offset": entry.first_offset,
            "last_offset": entry.last_offset,
            "start_position": entry.start_file_position if entry.start_file_position >= 0 else None,
            "end_position": entry.end_file_position if entry.end_file_position >= 0 else None,
            "declared_epoch": record.leader_epoch,
        }


def _gap_rows(record: RemoteWalGapDeclaration) -> Iterator[Columns]:
    for gap in record.gaps:
        yield {
            "event_timestamp_ms": record.event_timestamp_ms,
            **gap.topic_id_partition._asdict(),
            "leader_epoch": gap.leader_epoch,
            "first_offset": gap.from_offset,
            "last_offset": gap.to_offset - 1,
            "reason": gap.reason.name,
        }


def _quarantine_row(record: PublishedSegment | UnknownRecord, key: bytes | None, value: bytes | None) -> Columns:
    if isinstance(record, UnknownRecord):
        reason, detail = record.reason, record.detail
    else:
        reason, detail = "broker_id", f"no broker has the id {record.combined_segment_id.broker_id}"
    return {
        "reason": reason,
        "detail": detail,
        "key_bytes": None if key is None else len(key),
        "value_bytes": None if value is None else len(value),
    }
