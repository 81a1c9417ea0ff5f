"""The rows that the metadata topic's records become, of all kinds in one table (column `row`).

The kinds: a record about a segment, its entries, dead entries, declared gaps, a record about an archive object, records
that others read, and the quarantine. A row has the columns of its kind and nulls in all others.
"""

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

SEGMENT_ROW: Final = "segment"
ENTRY_ROW: Final = "entry"
DEAD_ROW: Final = "dead"
GAP_ROW: Final = "gap"
ARCHIVE_ROW: Final = "archive"
OTHER_ROW: Final = "other"
QUARANTINE_ROW: Final = "quarantine"

PARTITION_SHIFT: Final = 48
"""A record's id is its partition << 48 | its offset."""

SPAN: Final = pa.struct([("leader_epoch", pa.int32()), ("first_offset", pa.int64()), ("last_offset", pa.int64())])
"""A range of one leader epoch in an archive object; the object's runs tile its range, so a span has no hole."""

ARROW: Final = pa.schema(
    {
        "row": pa.string(),
        "record_id": pa.int64(),
        "broker_id": pa.int32(),
        "incarnation": pa.int64(),
        "sequence": pa.int64(),
        "event_timestamp_ms": pa.int64(),
        "state": pa.int32(),
        "size_bytes": pa.int64(),
        "copies": pa.int32(),
        "elsewhere_bytes": pa.int64(),
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
)
"""`event_timestamp_ms` of a quarantined or other record is Kafka's time stamp; `retention_ms` may be FOREVER. For an
archive object, the three id columns name its writer, and `publisher` is the incarnation that published the record. For
a declared gap, `reason` is a `GapReason`'s name."""
STAGED: Final = from_arrow_schema(ARROW)

Columns = dict[str, Any]


def rows(kind: str, count: int, columns: Columns) -> pa.RecordBatch:
    """Return a batch of STAGED with nulls in the columns that the kind lacks."""
    arrays = []
    for name, arrow_type in zip(ARROW.names, ARROW.types, strict=True):
        column = pa.repeat(kind, count) if name == "row" else columns.get(name)
        if column is None:
            arrays.append(pa.nulls(count, arrow_type))
        else:
            array = column if isinstance(column, pa.Array) else pa.array(column)
            arrays.append(array if array.type == arrow_type else array.cast(arrow_type))
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)
