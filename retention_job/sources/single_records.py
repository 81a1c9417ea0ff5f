"""Decodes to staged rows the few records that are not good records about a combined segment, one by one."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

import pyarrow as pa

from metadata_topic.records import archive_records, serde
from metadata_topic.records.archive_records import (
    ArchiveObjectCommitted,
    ArchiveObjectPrepared,
    ArchiveRecord,
)
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import (
    PublishedSegment,
    RemoteWalLogSegmentMetadataUpdate,
    UnknownRecord,
)
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from retention_job.sources.staged_rows import (
    ARCHIVE_ROW,
    ARROW,
    DEAD_ROW,
    GAP_ROW,
    OTHER_ROW,
    QUARANTINE_ROW,
    Columns,
)

_OTHERS: Final = ("record_type", "gap_reason")
"""The fields of unread records that may have new values."""

Raw = tuple[bytes | None, bytes | None, int, int | None]
"""Key, value, record id, time stamp."""


def rows_one_by_one(records: Iterable[Raw]) -> pa.RecordBatch:
    """Return rows of all kinds."""
    found = [{"row": kind, **row} for raw in records for kind, row in _rows_of(*raw)]
    return pa.RecordBatch.from_pylist(found, schema=ARROW)


def _rows_of(
    key: bytes | None, value: bytes | None, record_id: int, timestamp_ms: int | None
) -> Iterator[tuple[str, Columns]]:
    place: Columns = {"record_id": record_id, "event_timestamp_ms": timestamp_ms}
    if key is not None and value is not None and archive_records.is_archive_key(key):
        archived = archive_records.decode_or_keep_out(key, value)
        if isinstance(archived, UnknownRecord):
            yield _quarantined(place, archived.reason, archived.detail, key, value)
        else:
            yield ARCHIVE_ROW, {**place, **_archive_columns(archived)}
        return
    record = serde.decode_or_keep_out(key, value)
    if isinstance(record, RemoteWalLogSegmentMetadataUpdate):
        yield from _dead_rows(place, record)
    elif isinstance(record, RemoteWalGapDeclaration):
        yield from _gap_rows(place, record)
    elif isinstance(record, UnknownRecord) and record.reason not in _OTHERS:
        yield _quarantined(place, record.reason, record.detail, key, value)
    elif isinstance(record, PublishedSegment):
        yield _quarantined(
            place, "broker_id", f"no broker has the id {record.combined_segment_id.broker_id}", key, value
        )
    else:  # good, and of a type that is not read here
        yield OTHER_ROW, {**place, "record_type": (value or b"\0\0")[1], "key": key, "value": value}


def _archive_columns(record: ArchiveRecord) -> Columns:
    (topic_id, partition), first_offset, last_offset, writer = record.object_id
    columns: Columns = {
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
        columns["expires_ms"] = record.event_timestamp_ms + record.ttl_ms
    elif isinstance(record, ArchiveObjectCommitted):
        columns |= {"size_bytes": record.size_bytes, "entry_count": len(record.runs), "spans": _spans(record.runs)}
    return columns


def _spans(runs: tuple[RemoteLogSegmentMetadataEntry, ...]) -> list[dict[str, int]]:
    by_epoch = [list(group) for _, group in groupby(runs, key=lambda run: run.leader_epoch)]
    return [
        {
            "leader_epoch": runs[0].leader_epoch,
            "first_offset": runs[0].first_offset,
            "last_offset": runs[-1].last_offset,
        }
        for runs in by_epoch
    ]


def _dead_rows(place: Columns, record: RemoteWalLogSegmentMetadataUpdate) -> Iterator[tuple[str, Columns]]:
    for entry in record.entries:
        yield (
            DEAD_ROW,
            {
                **place,
                **record.combined_segment_id._asdict(),
                "event_timestamp_ms": record.event_timestamp_ms,
                **entry.topic_id_partition._asdict(),
                "leader_epoch": entry.leader_epoch,
                "first_offset": entry.first_offset,
                "last_offset": entry.last_offset,
                "start_position": entry.start_file_position if entry.start_file_position >= 0 else None,
                "end_position": entry.end_file_position if entry.end_file_position >= 0 else None,
                "declared_by": record.broker_id,
                "declared_epoch": record.leader_epoch,
            },
        )


def _gap_rows(place: Columns, record: RemoteWalGapDeclaration) -> Iterator[tuple[str, Columns]]:
    for gap in record.gaps:
        yield (
            GAP_ROW,
            {
                **place,
                "event_timestamp_ms": record.event_timestamp_ms,
                **gap.topic_id_partition._asdict(),
                "leader_epoch": gap.leader_epoch,
                "first_offset": gap.from_offset,
                "last_offset": gap.to_offset - 1,
                "reason": gap.reason.name,
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
