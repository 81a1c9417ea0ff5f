"""The tables of the job, as Spark types. docs/report.md explains them to readers.

Times are milliseconds since 1970, sizes bytes, offsets inclusive at both ends, positions half open. A combined segment
is named by (broker_id, incarnation, sequence) in every table. Topics are named by their 16-byte id, because a name may
be used again: `History.with_topic_names` adds the names, best after an aggregation. Null means unknown, never 0.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

_INT, _LONG, _TEXT, _BYTES, _BOOL = IntegerType(), LongType(), StringType(), BinaryType(), BooleanType()


def _schema(**columns: tuple[DataType, bool] | DataType) -> StructType:
    """Return a schema; a column is nullable unless it comes with False."""
    return StructType(
        [
            StructField(name, kind[0], kind[1]) if isinstance(kind, tuple) else StructField(name, kind, True)
            for name, kind in columns.items()
        ]
    )


SEGMENT_KEY: Final = ("broker_id", "incarnation", "sequence")
EPOCH_KEY: Final = ("topic_id", "partition", "leader_epoch")
ARCHIVE_KEY: Final = ("topic_id", "partition", "first_offset", "last_offset", *SEGMENT_KEY)

_Columns = dict[str, tuple[DataType, bool] | DataType]
_OF_SEGMENT: Final[_Columns] = {"broker_id": (_INT, False), "incarnation": (_LONG, False), "sequence": (_LONG, False)}
_OF_PARTITION: Final[_Columns] = {"topic_id": (_BYTES, False), "partition": (_INT, False)}
_OF_OFFSETS: Final[_Columns] = {"first_offset": (_LONG, False), "last_offset": (_LONG, False)}
_OF_STATES: Final[_Columns] = {"started_ms": _LONG, "finished_ms": _LONG, "deleting_ms": _LONG, "deleted_ms": _LONG}
"""The first record's event timestamp, for each of the four states."""
_OF_ENTRY: Final[_Columns] = {
    **_OF_SEGMENT, "event_timestamp_ms": (_LONG, False), **_OF_PARTITION, "leader_epoch": (_INT, False), **_OF_OFFSETS,
}  # fmt: skip

SEGMENTS: Final = _schema(
    **_OF_SEGMENT,
    state=(_INT, False),  # the furthest RemoteLogSegmentState: 0 started, 1 finished, 2 deleting, 3 deleted
    **_OF_STATES,
    size_bytes=_LONG,  # as the writer said
    elsewhere_bytes=_LONG,  # of its records, those that are in gateways' objects, which it names
    entry_count=_INT,  # this one and the last are null until COPY_SEGMENT_FINISHED was read
    retention_ms=_LONG,  # the longest retention among its entries that a log still holds; FOREVER has no end
    is_stored=_BOOL,  # whether the store lists its object; null if it was not listed
    stored_bytes=_LONG,  # the object's size by the listing
    stored_ms=_LONG,  # last modified, by the store's clock
    is_new=(_BOOL, False),  # its COPY_SEGMENT_FINISHED was read in this run
)
"""One row for each combined segment in the metadata. An incremental run has those that were alive at the end of the run
before, and those that its new records name."""

ENTRIES: Final = _schema(
    **_OF_ENTRY,  # the time is that of the segment's COPY_SEGMENT_FINISHED
    start_position=(_LONG, False),
    end_position=(_LONG, False),
)
"""One row for each entry of each COPY_SEGMENT_FINISHED that this run read; a record that was published twice counts
once. An incremental run has only the new records' entries."""

DEAD_ENTRIES: Final = _schema(
    **_OF_ENTRY,
    start_position=_LONG,
    end_position=_LONG,
    declared_epoch=(_INT, False),  # of the leader whose agent declared them
)
"""Entries that failovers killed, as declared by the new leaders' agents."""

DECLARED: Final = _schema(
    **_OF_PARTITION,
    leader_epoch=(_INT, False),  # the newest that the log had when this was declared
    **_OF_OFFSETS,
    reason=(_TEXT, False),  # a GapReason's name
    first_event_ms=_LONG,
)
"""Offsets that agents declared to be in no object without loss; includes declarations of earlier runs."""

LISTED: Final = _schema(
    stored_bytes=(_LONG, False),
    stored_ms=(_LONG, False),  # last modified, by the store's clock
    **_OF_SEGMENT,  # the writer, of an archive object
    topic_id=_BYTES,  # null, as all that follows, for a combined segment
    partition=_INT,
    first_offset=_LONG,
    last_offset=_LONG,
)
"""One row for each object of this cluster in the store."""

ARCHIVE_OBJECTS: Final = _schema(
    **_OF_PARTITION,
    **_OF_OFFSETS,
    **_OF_SEGMENT,  # these name the object's writer
    state=(_INT, False),  # as in SEGMENTS: 0 prepared, 1 committed, 2 deleting, 3 deleted
    **_OF_STATES,  # a commit is published again, so its time is later than it was where older records are gone
    expires_ms=_LONG,  # when it goes if it is not committed by then
    size_bytes=_LONG,  # as the writer said
    spans=ArrayType(_schema(leader_epoch=_INT, first_offset=_LONG, last_offset=_LONG)),
    is_stored=_BOOL,  # whether the archive's store lists it; null if it was not listed
    stored_bytes=_LONG,
    stored_ms=_LONG,
    is_new=(_BOOL, False),  # its commit was first read in this run
)
"""One row for each archive object in the metadata; incremental runs have the same choice as in SEGMENTS."""

TOPICS: Final = _schema(
    topic_id=(_BYTES, False),
    topic=(_TEXT, False),
    replication_factor=_INT,
    is_enabled=(_BOOL, False),  # remote.wal.storage.enable
    is_archived=(_BOOL, False),  # remote.wal.archive.enable
    cleanup_policy=_TEXT,
    wal_retention_ms=_LONG,  # for how long every agent keeps its entries; -1 is for ever
)
"""One row for each topic that the cluster has now."""

PARTITIONS: Final = _schema(
    **_OF_PARTITION,
    log_start_offset=_LONG,
    log_end_offset=_LONG,  # the high watermark
)

TIERED: Final = _schema(
    **_OF_PARTITION,
    segment_uuid=(_BYTES, False),
    state=(_INT, False),  # as in SEGMENTS: KIP-405's states have the same ids
    start_offset=_LONG,
    end_offset=_LONG,
    size_bytes=_LONG,
    **_OF_STATES,
)
"""One row for each segment in `__remote_log_metadata`; empty without that topic."""

QUARANTINE: Final = _schema(
    topic=(_TEXT, False),
    partition=(_INT, False),
    offset=(_LONG, False),
    timestamp_ms=_LONG,
    reason=(_TEXT, False),  # a short label, as agents count it
    detail=_TEXT,
    key_bytes=_INT,
    value_bytes=_INT,
)
"""Records that could not be decoded: foreign, truncated or damaged. Their bytes stay where they are."""

FINDINGS: Final = _schema(
    kind=(_TEXT, False),
    severity=(_TEXT, False),  # info, warning, critical
    topic=_TEXT,
    partition=_INT,
    segment=_TEXT,  # CombinedSegmentId's text form
    detail=(_TEXT, False),
    age_ms=_LONG,
    size_bytes=_LONG,
    heal=(_TEXT, False),
)
