"""Records that the report does not judge by are passed on as they are, and hide none of the others."""

from dataclasses import replace
from typing import Any

import pyarrow as pa

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records import serde
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import GAPS, RemoteWalGapDeclaration
from metadata_topic.records.usage_record import USAGE, USAGE_KEY
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from retention_job.sources.decoding import decode_batch
from retention_job.sources.release_facts import ReleaseFacts

ORDERS = TopicIdPartition(TopicId(b"o" * 16), 0)
GAP = RemoteWalGapDeclaration(1, 7, 0, tuple(DeclaredGap(ORDERS, 5, 9, 2, reason) for reason in GapReason), 1)
UPLOADED = RemoteWalCombinedLogSegmentMetadata(
    CombinedSegmentId(1, 7, 0),
    (RemoteLogSegmentMetadataEntry(ORDERS, 2, 0, 4, 112, 200, 0),),
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    1,
    300,
)

Rows = list[tuple[str, int, int | None, str | None]]


def decoded(*records: tuple[bytes, bytes]) -> Rows:
    """Each row's kind, record id, record type and reason."""
    names = ("row", "record_id", "record_type", "reason")
    return [tuple(row[name] for name in names) for row in rows_of(*records)]


def rows_of(*records: tuple[bytes, bytes]) -> list[dict[str, Any]]:
    keys, values = zip(*records, strict=True)
    count = len(records)
    raw = pa.RecordBatch.from_pydict(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp_ms": pa.array([1_000] * count, pa.int64()),
        }
    )
    return [row for batch in decode_batch(raw, ReleaseFacts.of({}, {})) for row in batch.to_pylist()]


def test_of_records_that_the_object_has_no_room_for_it_is_told_that_they_are_elsewhere() -> None:
    sizes = [300, 60, -1]  # the entry has 88 bytes of records
    records = [
        replace(UPLOADED, combined_segment_id=CombinedSegmentId(1, 7, n), size_bytes=b) for n, b in enumerate(sizes)
    ]
    found = rows_of(*((serde.key_of(record), serde.encode(record)) for record in records))
    assert [row["elsewhere_bytes"] for row in found if row["row"] == "segment"] == [0, 28, 0]


def test_a_declared_gap_among_uploads_is_a_good_record_and_hides_none_of_them() -> None:
    gap, upload = ((serde.key_of(record), serde.encode(record)) for record in (GAP, UPLOADED))
    assert decoded(upload, gap, upload) == [
        ("segment", 0, serde.COMBINED_SEGMENT, None),
        ("segment", 2, serde.COMBINED_SEGMENT, None),
        ("entry", 0, None, None),
        ("entry", 2, None, None),
        *(("gap", 1, None, reason.name) for reason in GapReason),
    ]


def test_a_gap_for_a_reason_of_a_newer_agent_is_no_fault_and_a_damaged_one_is() -> None:
    key, value = serde.key_of(GAP), serde.encode(GAP)
    assert decoded((key, value[:-1] + b"\x63"), (key, value[:-1])) == [
        ("other", 0, GAPS, "gap_reason"),
        ("quarantine", 1, None, "truncated"),
    ]


def test_a_record_of_a_type_of_a_newer_release_is_no_fault_and_not_understood() -> None:
    key, value = serde.key_of(GAP), serde.encode(GAP)
    assert decoded((key, value[:1] + b"\x63" + value[2:])) == [("other", 0, 0x63, "record_type")]


def test_what_agents_tell_of_their_usage_is_understood_although_it_is_not_read_here() -> None:
    key, value = serde.key_of(GAP), serde.encode(GAP)
    usage = USAGE_KEY + key, value[:1] + bytes([USAGE]) + value[2:]
    assert decoded(usage) == [("other", 0, USAGE, None)]
