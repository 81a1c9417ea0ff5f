"""KIP-405's segments, out of `__remote_log_metadata`. They are few (one per segment file), so each is decoded alone."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from metadata_topic import kip405
from metadata_topic.kip405 import REMOTE_LOG_METADATA_TOPIC
from metadata_topic.records import UnknownRecord
from retention_job.object_facts import first_times
from retention_job.schemas import QUARANTINE, TIERED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EVENT: Final[dict[str, pa.DataType]] = {
    "topic_id": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "segment_uuid": pa.binary(),
    "broker_id": pa.int32(),
    "state": pa.int32(),
    "start_offset": pa.int64(),
    "end_offset": pa.int64(),
    "size_bytes": pa.int64(),
    "max_timestamp_ms": pa.int64(),
    "event_timestamp_ms": pa.int64(),
    "reason": pa.string(),
    "detail": pa.string(),
    "record_partition": pa.int32(),
    "record_offset": pa.int64(),
    "value_bytes": pa.int32(),
}
_EVENT_SCHEMA: Final = (
    "topic_id BINARY, topic STRING, partition INT, segment_uuid BINARY, broker_id INT, state INT, start_offset LONG, "
    "end_offset LONG, size_bytes LONG, max_timestamp_ms LONG, event_timestamp_ms LONG, reason STRING, detail STRING, "
    "record_partition INT, record_offset LONG, value_bytes INT"
)


def decode_events(raw: "DataFrame") -> "DataFrame":
    """A row for each record about a segment, and one with a `reason` for each that was not understood."""
    return raw.mapInArrow(_decode, _EVENT_SCHEMA)


def _decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = []
        for value, partition, offset, timestamp_ms in zip(
            *(batch.column(name).to_pylist() for name in ("value", "partition", "offset", "timestamp_ms")), strict=True
        ):
            row = _row(kip405.decode(value))
            if row is not None:
                row.setdefault("event_timestamp_ms", timestamp_ms)
                rows.append(
                    {**row, "record_partition": partition, "record_offset": offset, "value_bytes": len(value or b"")}
                )
        columns = [pa.array([row.get(name) for row in rows], kind) for name, kind in _EVENT.items()]
        yield pa.RecordBatch.from_arrays(columns, names=list(_EVENT))


def _row(record: kip405.RemoteLogMetadata) -> dict[str, Any] | None:
    if isinstance(record, UnknownRecord):
        return {"reason": record.reason, "detail": record.detail}
    if not isinstance(record, kip405.RemoteLogSegmentMetadata | kip405.RemoteLogSegmentMetadataUpdate):
        return None
    row: dict[str, Any] = {
        "topic_id": record.segment_id.topic_id_partition.topic_id,
        "topic": record.topic,
        "partition": record.segment_id.topic_id_partition.partition,
        "segment_uuid": record.segment_id.id,
        "broker_id": record.broker_id,
        "state": int(record.state),
        "event_timestamp_ms": record.event_timestamp_ms,
    }
    if isinstance(record, kip405.RemoteLogSegmentMetadata):
        row |= {
            "start_offset": record.start_offset,
            "end_offset": record.end_offset,
            "size_bytes": record.size_bytes,
            "max_timestamp_ms": record.max_timestamp_ms,
        }
    return row


def segments_of(events: "DataFrame") -> "DataFrame":
    """TIERED: the events of each segment as one row."""
    from pyspark.sql import functions as f

    grouped = events.filter("reason IS NULL").groupBy("topic_id", "topic", "partition", "segment_uuid")
    found = grouped.agg(
        f.max("broker_id").alias("broker_id"),
        f.max("state").alias("state"),
        *(f.max(name).alias(name) for name in ("start_offset", "end_offset", "size_bytes", "max_timestamp_ms")),
        *first_times(),
    )
    return found.select(*TIERED.fieldNames())


def quarantine_of(events: "DataFrame") -> "DataFrame":
    """QUARANTINE: what was not understood."""
    from pyspark.sql import functions as f

    return (
        events.filter("reason IS NOT NULL")
        .select(
            f.lit(REMOTE_LOG_METADATA_TOPIC).alias("topic"),
            f.col("record_partition").alias("partition"),
            f.col("record_offset").alias("offset"),
            f.col("event_timestamp_ms").alias("timestamp_ms"),
            "reason",
            "detail",
            f.lit(0).alias("key_bytes"),
            "value_bytes",
        )
        .select(*QUARANTINE.fieldNames())
    )


def tiered_up_to(tiered: "DataFrame") -> dict[tuple[bytes, int], int]:
    """By (topic id, partition): the first offset that the tier does not hold, without a gap from its first one on."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    ordered = Window.partitionBy("topic_id", "partition").orderBy("start_offset")
    reached = f.max("end_offset").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    rows = (
        tiered.filter("state = 1 AND start_offset IS NOT NULL")
        .withColumn("is_behind_gap", f.coalesce(f.col("start_offset") > reached + 1, f.lit(False)))
        .withColumn("gaps", f.sum(f.col("is_behind_gap").cast("int")).over(ordered))
        .filter("gaps = 0")
        .groupBy("topic_id", "partition")
        .agg((f.max("end_offset") + 1).alias("up_to"))
        .collect()
    )
    return {(bytes(row.topic_id), row.partition): row.up_to for row in rows}
