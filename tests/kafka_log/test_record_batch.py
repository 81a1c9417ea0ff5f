import struct
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from kafka_log.batch_digests import batch_digests, records_digest, run_digest
from kafka_log.crc32c import crc32c
from kafka_log.record_batch import (
    BATCH_OVERHEAD_BYTES,
    HEADER_PREFIX_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchSpan,
    CorruptBatchError,
    RecordBatchHeader,
    scan_batches,
    verify_batches,
)
from tests.kafka_log.batches import batch, batches
from tests.kafka_log.forgery import forged

BATCH_SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9), st.binary(max_size=40)), min_size=1, max_size=6)


def build(shapes: list[tuple[int, int, bytes]]) -> list[bytes]:
    built, offset = [], 0
    for records, epoch, payload in shapes:
        built.append(batch(offset, records, epoch, payload))
        offset += records
    return built


def test_the_checksum_is_castagnolis() -> None:
    # RFC 3720, B.4: 32 bytes of zeros; and the customary check value.
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"x123456789")[1:]) == 0xE3069283
    assert crc32c(bytearray(b"6789"), crc32c(b"12345")) == 0xE3069283


@given(
    records=st.integers(1, 4),
    epoch=st.integers(0, 2**31 - 1),
    base=st.integers(0, 2**62),
    payload=st.binary(),
)
def test_kafka_python_reads_what_the_builder_wrote(records: int, epoch: int, base: int, payload: bytes) -> None:
    oracle = DefaultRecordBatch(batch(base, records, epoch, payload))
    assert oracle.validate_crc()
    assert (oracle.base_offset, oracle.leader_epoch, oracle.magic) == (base, epoch, 2)
    assert [(r.offset, r.value) for r in oracle] == [(base + i, payload) for i in range(records)]


def test_a_batch_of_another_builder_is_read_alike() -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=1, is_transactional=1, producer_id=7, producer_epoch=3, base_sequence=9,
        batch_size=10_000,
    )  # fmt: skip
    for index in range(3):
        builder.append(index, timestamp=1000 + index, key=b"k", value=b"v" * 500, headers=[])
    raw = bytes(builder.build())
    (span,) = scan_batches(raw, 0, len(raw))
    assert span[:2] == (0, 2)
    assert verify_batches(raw, [span]) == 1
    header = RecordBatchHeader.parse(raw)
    assert (header.codec, header.is_transactional, header.is_control) == ("gzip", True, False)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 9)
    assert (header.base_timestamp_ms, header.max_timestamp_ms, header.record_count) == (1000, 1002, 3)
    assert header.size_bytes == len(raw)


@given(BATCH_SHAPES, st.data())
def test_whole_batches_are_found_and_a_torn_one_is_not(
    shapes: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    built = build(shapes)
    joined = b"".join(built)
    end = data.draw(st.integers(0, len(joined)))
    spans = scan_batches(b"??" + joined, 2, 2 + end)
    found = [joined[s.start - 2 : s.end - 2] for s in spans]
    assert found == built[: len(found)]
    assert sum(map(len, found)) <= end < sum(map(len, built[: len(found) + 1])) or found == built
    assert verify_batches(b"??" + joined, spans) == len(spans)


@given(BATCH_SHAPES, st.data())
def test_a_changed_byte_behind_the_checksum_is_noticed(
    shapes: list[tuple[int, int, bytes]], data: st.DataObject
) -> None:
    built = build(shapes)
    joined = bytearray(b"".join(built))
    spans = scan_batches(joined, 0, len(joined))
    victim = data.draw(st.integers(0, len(spans) - 1))
    at = data.draw(st.integers(spans[victim].start + HEADER_PREFIX_BYTES, spans[victim].end - 1))
    joined[at] ^= data.draw(st.integers(1, 255))
    assert verify_batches(joined, spans) == victim


@pytest.mark.parametrize("zeros", [1, 12, 60, 61, 5000])
def test_zeros_behind_the_last_batch_mean_nothing_more(zeros: int) -> None:
    raw = batch(5, 2)
    assert scan_batches(raw + bytes(zeros), 0, len(raw) + zeros) == scan_batches(raw, 0, len(raw))


@pytest.mark.parametrize(
    ("at", "fmt", "value", "reason"),
    [
        (16, ">b", 1, "magic"),
        (8, ">i", 48, "length"),
        (8, ">i", -1, "length"),
        (8, ">i", 0, "length"),
        (8, ">i", 2**31 - 1, "length"),
        (23, ">i", -1, "last offset delta"),
        (0, ">q", 1, "base offset"),
        (0, ">q", -1, "base offset"),
    ],
)
def test_what_cannot_be_a_header_is_named_with_its_position(at: int, fmt: str, value: int, reason: str) -> None:
    first = batch(0, 2)
    raw = bytearray(first + batch(2, 2))
    struct.pack_into(fmt, raw, len(first) + at, value)
    with pytest.raises(CorruptBatchError, match=reason) as caught:
        scan_batches(raw, 0, len(raw))
    assert caught.value.position == len(first)


def test_holes_between_offsets_are_allowed() -> None:
    raw = batch(3) + batch(9, 2)
    assert [s[:2] for s in scan_batches(raw, 0, len(raw))] == [(3, 3), (9, 10)]


def test_a_span_carries_identity_and_place() -> None:
    raw = batch(7, 3, 4)
    header = RecordBatchHeader.parse(raw)
    assert scan_batches(raw, 0, len(raw)) == [BatchSpan(7, 9, 4, header.crc, 0, len(raw))]
    assert header.length == len(raw) - LOG_OVERHEAD_BYTES


def test_a_short_header_is_refused() -> None:
    with pytest.raises(CorruptBatchError, match="less than a header"):
        RecordBatchHeader.parse(batches(1)[: BATCH_OVERHEAD_BYTES - 1])


def test_a_run_of_some_of_the_batches_has_the_digest_that_its_bytes_have() -> None:
    raw = batches(5, payload=b"y" * 90)
    spans = scan_batches(raw, 0, len(raw))
    digests = batch_digests(raw, spans)
    assert digests[2] == sha256(raw[spans[2].start : spans[2].end]).digest()
    assert run_digest(digests[1:4]) == records_digest(raw[spans[1].start : spans[3].end])
    assert run_digest(digests[1:3]) != run_digest(digests[1:4])
    assert run_digest((*digests[:2], b"")) == b""


def test_what_is_no_batch_has_no_digest() -> None:
    with pytest.raises(CorruptBatchError):
        records_digest(b"\1" * 100)


def test_a_forged_batch_has_the_checksum_and_another_digest() -> None:
    raw = batch(0, 1, payload=b"ten dollars for alice, and some more")
    wrong = forged(raw, raw.index(b"alice"), b"mally")
    assert wrong != raw
    assert crc32c(wrong) == crc32c(raw)
    assert b"for mally" in wrong
    assert records_digest(wrong) != records_digest(raw)
