"""Which records are appended to a log again after it lost them."""

import gzip
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa
import pytest

from kafka_log.crc32c import crc32c
from kafka_log.plain_records import PlainRecord
from kafka_log.record_batch import CODECS, CorruptBatchError
from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from recovery.errors import UnusableRunError
from recovery.logs.run_reader import RunReader
from recovery.logs.stored_run import StoredObject
from tests.kafka_log.batches import batch, batch_around, record
from topic_reader.held_records import HeldRun, held_records

ORDERS = TopicIdPartition(TopicId(b"o" * 16), 0)
TRANSACTIONAL, CONTROL = 0x10, 0x20
COMMIT, ABORT = b"\x00\x00\x00\x01", b"\x00\x00\x00\x00"


@dataclass
class Objects:
    """Object storage, each object with one log's batches."""

    content: dict[CombinedSegmentId, bytes] = field(default_factory=dict)

    async def fetch_log_segment(
        self, segment_id: CombinedSegmentId, start: int, end: int, _custom: bytes = b""
    ) -> bytes:
        return self.content[segment_id][start:end]

    def holds(self, raw: bytes, first: int, last: int, epoch: int = 0) -> HeldRun:
        segment_id = CombinedSegmentId(1, 1, len(self.content))
        self.content[segment_id] = raw
        entry = RemoteLogSegmentMetadataEntry(ORDERS, epoch, first, last, 0, len(raw), 0)
        return HeldRun(StoredObject(segment_id, len(raw), 0), entry)


def restored(objects: Objects, runs: Sequence[HeldRun]) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in held(objects, runs, [])]


def held(objects: Objects, runs: Sequence[HeldRun], left_out: list[int]) -> Iterator[PlainRecord]:
    return held_records(RunReader(cast(RemoteWalStorageManager, objects)), [runs], left_out.append)


def test_each_lost_record_is_restored_once_and_none_that_the_log_has() -> None:
    objects = Objects()
    runs = [
        objects.holds(batch(290, 10, payload=b"kept") + batch(300, 2, payload=b"a", key=b"k"), 300, 301),
        objects.holds(batch(300, 2, payload=b"a") + batch(302, 1, payload=b"b"), 300, 302),  # uploaded twice
        objects.holds(batch(303, 1, payload=b"c"), 303, 303),
    ]
    assert restored(objects, runs) == [(300, b"a"), (301, b"a"), (302, b"b"), (303, b"c")]
    first = next(held(objects, runs, []))
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


def test_what_two_logs_lost_at_the_same_offsets_is_restored_of_both() -> None:
    """No marker in the newer log decides about a transaction of the older one."""
    objects = Objects()
    older = objects.holds(batch(5, payload=b"first") + of_transaction(6, b"open"), 5, 6)
    newer = objects.holds(batch(5, payload=b"second") + batch(6) + end(7, COMMIT), 5, 7, epoch=2)
    left_out: list[int] = []
    records = held_records(RunReader(cast(RemoteWalStorageManager, objects)), [[older], [newer]], left_out.append)
    assert [(record.offset, record.value) for record in records] == [(5, b"first"), (5, b"second"), (6, b"x")]
    assert left_out == [1]


def test_a_transaction_whose_marker_is_not_held_is_left_out_and_told() -> None:
    """It may have been aborted where nothing is held, and the producer's next marker is about its next transaction."""
    objects = Objects()
    runs = [
        objects.holds(of_transaction(0, b"aborted") + batch(1, payload=b"p"), 0, 1),
        objects.holds(of_transaction(5, b"committed") + end(6, COMMIT) + of_transaction(7, b"open") + batch(8), 5, 8),
    ]
    left_out: list[int] = []
    assert [record.offset for record in held(objects, runs, left_out)] == [1, 5, 8]
    assert left_out == [1, 1]


def of_transaction(offset: int, payload: bytes, producer_epoch: int = 0) -> bytes:
    return with_epoch(batch(offset, payload=payload, attributes=TRANSACTIONAL, producer_id=7), producer_epoch)


def end(offset: int, key: bytes, producer_epoch: int = 0) -> bytes:
    marker = batch(offset, payload=b"\x00" * 6, key=key, attributes=TRANSACTIONAL | CONTROL, producer_id=7)
    return with_epoch(marker, producer_epoch)


def with_epoch(raw: bytes, producer_epoch: int) -> bytes:
    after_crc = raw[21:51] + struct.pack(">h", producer_epoch) + raw[53:]
    return raw[:17] + struct.pack(">I", crc32c(after_crc)) + after_crc


@pytest.mark.parametrize("markers_epoch", [0, 1], ids=["transactions of version 1", "of version 2"])
def test_each_of_a_producers_transactions_is_judged_by_its_own_marker(markers_epoch: int) -> None:
    """With transaction.version 2 a marker's epoch is above its transaction's, and the next transaction has it."""
    objects = Objects()
    raw = b"".join(
        (
            of_transaction(0, b"aborted"), of_transaction(1, b"aborted"), end(2, ABORT, markers_epoch),
            of_transaction(3, b"committed", markers_epoch), end(4, COMMIT, 2 * markers_epoch),
            of_transaction(5, b"aborted", 2 * markers_epoch), end(6, ABORT, 3 * markers_epoch),
            of_transaction(7, b"open", 3 * markers_epoch),
        )
    )  # fmt: skip
    assert restored(objects, [objects.holds(raw, 0, 7)]) == [(3, b"committed")]


COMPRESS = {
    "none": bytes,
    "gzip": gzip.compress,
    "snappy": pa.Codec("snappy").compress,
    "lz4": pa.Codec("lz4").compress,
    "zstd": pa.Codec("zstd").compress,
}


@pytest.mark.parametrize("codec", CODECS)
def test_records_are_restored_whatever_codec_their_producer_compressed_them_with(codec: str) -> None:
    objects = Objects()
    body = record(0, b"a" * 100, b"k") + record(1, None)
    packed = bytes(COMPRESS[codec](body))
    raw = batch(0) + batch_around(packed, 1, 2, attributes=CODECS.index(codec))
    assert restored(objects, [objects.holds(raw, 0, 2)]) == [(0, b"x"), (1, b"a" * 100), (2, None)]


def test_no_record_is_handed_out_before_each_batch_was_decoded() -> None:
    objects = Objects()
    unknown_codec = 5
    runs = [objects.holds(batch(0), 0, 0), objects.holds(batch(1, attributes=unknown_codec), 1, 1)]
    with pytest.raises(CorruptBatchError, match="unknown codec"):
        next(held(objects, runs, []))


def test_damaged_bytes_are_an_error_and_not_restored() -> None:
    objects = Objects()
    raw = bytearray(batch(0, payload=b"record"))
    raw[-3] ^= 1
    with pytest.raises(UnusableRunError, match="offset 0 is damaged"):
        restored(objects, [objects.holds(bytes(raw), 0, 0)])
