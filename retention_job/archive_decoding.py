"""A record about an archive object as a staged row. Such objects are few and large, so each record is decoded alone."""

from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from metadata_topic.archive_records import ArchiveObjectCommitted, ArchiveObjectPrepared, ArchiveRecord
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry

SPAN: Final = pa.struct([("leader_epoch", pa.int32()), ("first_offset", pa.int64()), ("last_offset", pa.int64())])
"""What an archive object holds of one leader epoch; its runs tile its range, so a span has no hole."""


def archive_columns(record: ArchiveRecord) -> dict[str, Any]:
    """The columns of `decoding.STAGED` that a record about an archive object has."""
    (topic_id, partition), first_offset, last_offset, writer = record.object_id
    columns: dict[str, Any] = {
        "topic_id": bytes(topic_id),
        "partition": partition,
        "first_offset": first_offset,
        "last_offset": last_offset,
        "broker_id": writer.broker_id,
        "incarnation": writer.incarnation,
        "sequence": writer.sequence,
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
    found = []
    for leader_epoch, group in groupby(runs, key=lambda run: run.leader_epoch):
        of_epoch = list(group)
        found.append(
            {
                "leader_epoch": leader_epoch,
                "first_offset": of_epoch[0].first_offset,
                "last_offset": of_epoch[-1].last_offset,
            }
        )
    return found
