"""Records of the metadata topic to rows, a whole Arrow batch at a time.

One pass over the topic gives rows of six kinds, staged side by side (column `row`): what a record says of its segment,
its entries, dead entries, what a record says of an archive object, records that are others' to read, and the
quarantine. A row has the columns of its kind and nulls in all others.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from metadata_topic import archive_records, serde
from metadata_topic.records import (
    PublishedSegment,
    RemoteWalLogSegmentMetadataUpdate,
    RemoteWalNodeRegistration,
    UnknownRecord,
)
from metadata_topic.serde_batches import PADDING, BinaryColumn, SegmentBatch, decode_segments
from retention_job.archive_decoding import SPAN, archive_columns
from retention_job.release_facts import ReleaseFacts

SEGMENT_ROW: Final = "segment"
ENTRY_ROW: Final = "entry"
DEAD_ROW: Final = "dead"
ARCHIVE_ROW: Final = "archive"
OTHER_ROW: Final = "other"
QUARANTINE_ROW: Final = "quarantine"

PARTITION_SHIFT: Final = 48
"""A record's id is its partition << 48 | its offset."""
_MAX_BROKER_ID: Final = 2**31 - 1

_ARROW: Final[dict[str, pa.DataType]] = {
    "row": pa.string(),
    "record_id": pa.int64(),
    "broker_id": pa.int32(),
    "incarnation": pa.int64(),
    "sequence": pa.int64(),
    "event_timestamp_ms": pa.int64(),
    "state": pa.int32(),
    "size_bytes": pa.int64(),
    "entry_count": pa.int32(),
    "retention_ms": pa.int64(),
    "topic_id": pa.binary(),
    "partition": pa.int32(),
    "leader_epoch": pa.int32(),
    "first_offset": pa.int64(),
    "last_offset": pa.int64(),
    "start_position": pa.int64(),
    "end_position": pa.int64(),
    "declared_by": pa.int32(),
    "declared_epoch": pa.int32(),
    "record_type": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "reason": pa.string(),
    "detail": pa.string(),
    "key_bytes": pa.int32(),
    "value_bytes": pa.int32(),
    "publisher": pa.int64(),
    "expires_ms": pa.int64(),
    "spans": pa.list_(SPAN),
}
_SPARK: Final = {
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.list_(SPAN): ArrayType(
        StructType(
            [
                StructField("leader_epoch", IntegerType()),
                StructField("first_offset", LongType()),
                StructField("last_offset", LongType()),
            ]
        )
    ),
}
STAGED: Final = StructType([StructField(name, _SPARK[kind]) for name, kind in _ARROW.items()])
"""`event_timestamp_ms` of a quarantined or other record is Kafka's time stamp; `retention_ms` may be FOREVER. Of an
archive object, the three id columns name its writer, `publisher` is the incarnation that published the record.
"""

Columns = dict[str, Any]


def decoder(facts: ReleaseFacts) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow: (key, value, partition, offset, timestamp_ms) to STAGED."""

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from decode_batch(batch, facts)

    return decode


def decode_batch(batch: pa.RecordBatch, facts: ReleaseFacts) -> Iterator[pa.RecordBatch]:
    """The rows of one batch, a batch per kind."""
    keys, values = batch.column("key"), batch.column("value")
    record_id = (_ints(batch.column("partition")) << PARTITION_SHIFT) | _ints(batch.column("offset"))
    segments = decode_segments(_bytes_of(keys), _bytes_of(values))
    yield from _segment_rows(segments, record_id, facts)
    alone = ~segments.is_decoded
    alone[segments.row[segments.broker_id > _MAX_BROKER_ID]] = True
    left = np.flatnonzero(alone)
    if len(left):
        at = pa.array(left)
        yield from _rows_one_by_one(
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
    """Nulls become empty strings."""
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
    entries = batch.entries
    of_segment = entries.block
    count = entries.counts
    topic_ids = _fixed_binary(entries.topic_ids).dictionary_encode()
    codes = topic_ids.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    kept = facts.retention_of(topic_ids.dictionary.to_pylist(), codes, entries.partition, entries.last_offset)
    retention = np.zeros(len(batch.row), dtype=np.int64)
    filled = np.flatnonzero(count)
    if len(filled):
        retention[filled] = np.maximum.reduceat(kept, (np.cumsum(count) - count)[filled])
    representable = batch.broker_id <= _MAX_BROKER_ID
    yield _rows(
        SEGMENT_ROW,
        int(representable.sum()),
        {
            "record_id": ids[representable],
            "broker_id": batch.broker_id[representable],
            "incarnation": batch.incarnation[representable],
            "sequence": batch.sequence[representable],
            "event_timestamp_ms": batch.event_timestamp_ms[representable],
            "state": batch.state[representable],
            "size_bytes": _or_null(batch.size_bytes, batch.size_bytes < 0, representable),
            "entry_count": _or_null(count, count == 0, representable),
            "retention_ms": _or_null(retention, count == 0, representable),
        },
    )
    # Only what was uploaded has places; a deletion's entries are a copy of what was told before.
    chosen = (batch.state[of_segment] == 1) & representable[of_segment]
    if chosen.any():
        of_segment = of_segment[chosen]
        yield _rows(
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


def _rows(kind: str, rows: int, columns: Columns) -> pa.RecordBatch:
    """A batch of STAGED with nulls where the kind has no column."""
    arrays = []
    for name, arrow_type in _ARROW.items():
        column = pa.repeat(kind, rows) if name == "row" else columns.get(name)
        if column is None:
            arrays.append(pa.nulls(rows, arrow_type))
        else:
            array = column if isinstance(column, pa.Array) else pa.array(column)
            arrays.append(array if array.type == arrow_type else array.cast(arrow_type))
    return pa.RecordBatch.from_arrays(arrays, names=list(_ARROW))


Raw = tuple[bytes | None, bytes | None, int, int | None]
"""Key, value, record id, time stamp."""


def _rows_one_by_one(records: Iterable[Raw]) -> Iterator[pa.RecordBatch]:
    """What is not a good record about a combined segment: few, so each is decoded alone."""
    found: dict[str, list[Columns]] = {DEAD_ROW: [], ARCHIVE_ROW: [], OTHER_ROW: [], QUARANTINE_ROW: []}
    for raw in records:
        for kind, row in _row_of(*raw):
            found[kind].append(row)
    for kind, rows in found.items():
        if rows:
            names = {name for row in rows for name in row}
            columns = {name: pa.array([row.get(name) for row in rows], _ARROW[name]) for name in names}
            yield _rows(kind, len(rows), columns)


def _row_of(
    key: bytes | None, value: bytes | None, record_id: int, timestamp_ms: int | None
) -> Iterator[tuple[str, Columns]]:
    place: Columns = {"record_id": record_id, "event_timestamp_ms": timestamp_ms}
    if key is not None and value is not None and archive_records.is_archive_key(key):
        archived = archive_records.decode_or_keep_out(key, value)
        if isinstance(archived, archive_records.UnknownArchiveRecord):
            yield _quarantined(place, archived.reason, archived.detail, key, value)
        else:
            yield ARCHIVE_ROW, {**place, **archive_columns(archived)}
        return
    record = serde.decode_or_keep_out(key, value)
    if isinstance(record, RemoteWalLogSegmentMetadataUpdate):
        yield from _dead_rows(place, record)
    elif isinstance(record, UnknownRecord) and (record.kept is None or record.reason != "record_type"):
        yield _quarantined(place, record.reason, record.detail, key, value)
    elif key is not None and value is not None and isinstance(record, UnknownRecord | RemoteWalNodeRegistration):
        yield OTHER_ROW, {**place, "record_type": value[1], "key": key, "value": value}
    elif isinstance(record, PublishedSegment):
        yield _quarantined(
            place, "broker_id", f"no broker has the id {record.combined_segment_id.broker_id}", key, value
        )
    else:  # a type of ours that this job does not use; it is good
        yield OTHER_ROW, {**place, "record_type": (value or b"\0\0")[1], "key": key, "value": value}


def _dead_rows(place: Columns, record: RemoteWalLogSegmentMetadataUpdate) -> Iterator[tuple[str, Columns]]:
    segment_id = record.combined_segment_id
    for entry in record.entries:
        yield (
            DEAD_ROW,
            {
                **place,
                "broker_id": segment_id.broker_id,
                "incarnation": segment_id.incarnation,
                "sequence": segment_id.sequence,
                "event_timestamp_ms": record.event_timestamp_ms,
                "topic_id": entry.topic_id_partition.topic_id,
                "partition": entry.topic_id_partition.partition,
                "leader_epoch": entry.leader_epoch,
                "first_offset": entry.first_offset,
                "last_offset": entry.last_offset,
                "start_position": entry.start_file_position if entry.start_file_position >= 0 else None,
                "end_position": entry.end_file_position if entry.end_file_position >= 0 else None,
                "declared_by": record.broker_id,
                "declared_epoch": record.leader_epoch,
            },
        )


def _quarantined(
    place: Columns, reason: str, detail: str, key: bytes | None, value: bytes | None
) -> tuple[str, Columns]:
    return QUARANTINE_ROW, {
        **place,
        "reason": reason,
        "detail": detail,
        "key_bytes": None if key is None else len(key),
        "value_bytes": None if value is None else len(value),
    }
