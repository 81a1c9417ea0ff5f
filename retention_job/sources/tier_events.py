"""Decodes records of `__remote_log_metadata` to rows. They are few (two per segment file), so each is decoded alone."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from metadata_topic.kip405 import kip405
from metadata_topic.records.records import UnknownRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EVENT: Final = pa.schema(
    {
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
)
_OF_UPDATES: Final = ("topic", "broker_id", "state", "event_timestamp_ms")
_OF_SEGMENTS: Final = ("start_offset", "end_offset", "size_bytes", "max_timestamp_ms")


def decode_events(raw: "DataFrame") -> "DataFrame":
    """Return a row for each record about a segment, and one with a `reason` for each that was not understood."""
    return raw.mapInArrow(_decode, from_arrow_schema(_EVENT))


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
