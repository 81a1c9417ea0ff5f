"""Tables of KIP-405's tier, from `__remote_log_metadata`.

Its records are few (two per segment file), so each is decoded alone to a row, an event; a segment's events become one
row.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import from_arrow_schema

from metadata_topic.kip405 import kip405
from metadata_topic.kip405.kip405 import REMOTE_LOG_METADATA_TOPIC
from metadata_topic.records.records import UnknownRecord
from retention_job.schemas import QUARANTINE, TIERED
from retention_job.tables.objects import first_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EVENT: Final = pa.schema(
    {
        "topic_id": pa.binary(),
        "partition": pa.int32(),
        "segment_uuid": pa.binary(),
        "state": pa.int32(),
        "start_offset": pa.int64(),
        "end_offset": pa.int64(),
        "size_bytes": pa.int64(),
        "event_timestamp_ms": pa.int64(),
        "reason": pa.string(),
        "detail": pa.string(),
        "record_partition": pa.int32(),
        "record_offset": pa.int64(),
        "value_bytes": pa.int32(),
    }
)
_OF_UPDATES: Final = ("state", "event_timestamp_ms")
_OF_SEGMENTS: Final = ("start_offset", "end_offset", "size_bytes")


def decode_events(raw: "DataFrame") -> "DataFrame":
    """Decode records of the tier's topic: a row for each about a segment, and one with a `reason` for each that
    cannot be decoded."""
    return raw.mapInArrow(_decode, from_arrow_schema(_EVENT))


def _decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [
            {
                "event_timestamp_ms": raw["timestamp_ms"],
                **row,
                "record_partition": raw["partition"],
                "record_offset": raw["offset"],
                "value_bytes": len(raw["value"] or b""),
            }
            for raw in batch.to_pylist()
            if (row := _row(kip405.decode(raw["value"]))) is not None
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_EVENT)


def _row(record: kip405.RemoteLogMetadata) -> dict[str, Any] | None:
    if isinstance(record, UnknownRecord):
        return {"reason": record.reason, "detail": record.detail}
    if not isinstance(record, kip405.RemoteLogSegmentMetadata | kip405.RemoteLogSegmentMetadataUpdate):
        return None
    told = (*_OF_UPDATES, *(_OF_SEGMENTS if isinstance(record, kip405.RemoteLogSegmentMetadata) else ()))
    return {
        **{name: getattr(record, name) for name in told},
        **record.segment_id.topic_id_partition._asdict(),
        "segment_uuid": record.segment_id.id,
    }


def segments_of(events: "DataFrame") -> "DataFrame":
    """Return TIERED: the events of each segment as one row."""
    grouped = events.filter("reason IS NULL").groupBy("topic_id", "partition", "segment_uuid")
    found = grouped.agg(*(fn.max(name).alias(name) for name in ("state", *_OF_SEGMENTS)), *first_times())
    return found.select(*TIERED.fieldNames())


def quarantine_of(events: "DataFrame") -> "DataFrame":
    """Return the table QUARANTINE: records of the tier's topic that could not be decoded."""
    return (
        events.filter("reason IS NOT NULL")
        .drop("partition")
        .withColumnsRenamed(
            {"record_partition": "partition", "record_offset": "offset", "event_timestamp_ms": "timestamp_ms"}
        )
        .withColumns({"topic": fn.lit(REMOTE_LOG_METADATA_TOPIC), "key_bytes": fn.lit(0)})
        .select(*QUARANTINE.fieldNames())
    )


def tiered_up_to(tiered: "DataFrame") -> dict[tuple[bytes, int], int]:
    """Return the end of the tier's offsets before their first gap, exclusive, by (topic id, partition)."""
    ordered = Window.partitionBy("topic_id", "partition").orderBy("start_offset")
    reached = fn.max("end_offset").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    rows = (
        tiered.filter("state = 1 AND start_offset IS NOT NULL")
        .withColumn("is_behind_gap", fn.coalesce(fn.col("start_offset") > reached + 1, fn.lit(False)))
        .withColumn("gaps", fn.sum(fn.col("is_behind_gap").cast("int")).over(ordered))
        .filter("gaps = 0")
        .groupBy("topic_id", "partition")
        .agg((fn.max("end_offset") + 1).alias("up_to"))
        .collect()
    )
    return {(bytes(row.topic_id), row.partition): row.up_to for row in rows}
