"""Which records are appended to a log again after it lost them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalLogSegmentMetadata,
)
from recovery.held_records import held_records
from tests.kafka_log.batches import batch

ORDERS = TopicIdPartition(TopicId(b"o" * 16), 0)
TRANSACTIONAL, CONTROL = 0x10, 0x20
COMMIT, ABORT = b"\x00\x00\x00\x01", b"\x00\x00\x00\x00"


@dataclass
class Objects:
    """Object storage, each object with one log's batches."""

    content: dict[CombinedSegmentId, bytes] = field(default_factory=dict)

    def fetch_log_segment(self, segment_id: CombinedSegmentId, start: int, end: int, _custom: bytes = b"") -> bytes:
        return self.content[segment_id][start:end]

    def holds(self, raw: bytes, first: int, last: int) -> RemoteWalLogSegmentMetadata:
        segment_id = CombinedSegmentId(1, 1, len(self.content))
        self.content[segment_id] = raw
        entry = RemoteLogSegmentMetadataEntry(ORDERS, 0, first, last, 0, len(raw), 0)
        return RemoteWalLogSegmentMetadata(segment_id, entry, RemoteLogSegmentState.COPY_SEGMENT_FINISHED)


def restored(objects: Objects, runs: Sequence[RemoteWalLogSegmentMetadata]) -> list[tuple[int, bytes | None]]:
    found = held_records(cast(RemoteWalStorageManager, objects), runs)
    return [(record.offset, record.value) for record in found]


def test_each_lost_record_is_restored_once_and_none_that_the_log_has() -> None:
    objects = Objects()
    runs = [
        objects.holds(batch(290, 10, payload=b"kept") + batch(300, 2, payload=b"a", key=b"k"), 300, 301),
        objects.holds(batch(300, 2, payload=b"a") + batch(302, 1, payload=b"b"), 300, 302),  # uploaded twice
        objects.holds(batch(303, 1, payload=b"c"), 303, 303),
    ]
    assert restored(objects, runs) == [(300, b"a"), (301, b"a"), (302, b"b"), (303, b"c")]
    first = next(held_records(cast(RemoteWalStorageManager, objects), runs))
    assert (first.key, first.timestamp_ms, list(first.headers)) == (b"k", 1_700_000_000_000, [])


@pytest.mark.parametrize(("marker", "expected"), [(COMMIT, [(0, b"t"), (2, b"p")]), (ABORT, [(2, b"p")])])
def test_of_a_transaction_only_what_was_committed_is_restored(marker: bytes, expected: list[tuple[int, bytes]]) -> None:
    objects = Objects()
    raw = (
        batch(0, payload=b"t", attributes=TRANSACTIONAL, producer_id=7)
        + batch(1, payload=b"\x00" * 6, key=marker, attributes=TRANSACTIONAL | CONTROL, producer_id=7)
        + batch(2, payload=b"p")
        + batch(3, payload=b"open", attributes=TRANSACTIONAL, producer_id=7)
    )
    assert restored(objects, [objects.holds(raw, 0, 3)]) == expected


def test_damaged_bytes_are_an_error_and_not_restored() -> None:
    objects = Objects()
    raw = bytearray(batch(0, payload=b"record"))
    raw[-3] ^= 1
    with pytest.raises(ValueError, match="offset 0 is damaged"):
        restored(objects, [objects.holds(bytes(raw), 0, 0)])
