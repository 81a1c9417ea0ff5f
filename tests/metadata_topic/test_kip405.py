"""`__remote_log_metadata`: what Kafka writes is read, and nothing else does harm."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.kip405.kip405 import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    decode,
)
from metadata_topic.records.records import UnknownRecord
from plugin.segment_metadata import RemoteLogSegmentState as State
from tests.metadata_topic.kip405_writer import KNOWN_RECORDS, TAGGED_FIELDS, Known, varint, write

ORDERS = TopicIdPartition(TopicId(bytes.fromhex("01020304050607081112131415161718")), 7)
SEGMENT = RemoteLogSegmentId(ORDERS, bytes.fromhex("21222324252627283132333435363738"))
EPOCHS = ((3, 100), (5, 150))

# Values that Kafka 4.3.0's RemoteLogMetadataSerde made.
ID = "076f72646572730102030405060708111213141516171800000007"
BODY = (
    "000000000000006400000000000000c7000000020000018bcfe5687b0000018bcfe569c8"
    "03000000030000000000000064000000000500000000000000960000100000"
)
UUID = SEGMENT.id.hex()
STARTED = RemoteLogSegmentMetadata(
    SEGMENT,
    "orders",
    100,
    199,
    2,
    1700000000123,
    1700000000456,
    EPOCHS,
    1048576,
    None,
    State.COPY_SEGMENT_STARTED,
)
WRITTEN_BY_KAFKA: dict[str, tuple[str, Known]] = {
    "started": (f"010000{ID}00{UUID}00{BODY}000000", STARTED),
    "started, with the tagged field TxnIndexEmpty": (f"010000{ID}00{UUID}00{BODY}000001000101", STARTED),
    "finished, with custom metadata": (
        f"010100{ID}00{UUID}00000000020000018bcfe56b15040102030100",
        RemoteLogSegmentMetadataUpdate(SEGMENT, "orders", 2, 1700000000789, b"\1\2\3", State.COPY_SEGMENT_FINISHED),
    ),
    "deleting": (
        f"010100{ID}00{UUID}00000000010000018bcfe56be7000200",
        RemoteLogSegmentMetadataUpdate(SEGMENT, "orders", 1, 1700000000999, None, State.DELETE_SEGMENT_STARTED),
    ),
    "a partition's delete": (
        f"010200{ID}00000000010000018bcfe56be80000",
        RemotePartitionDeleteMetadata(
            ORDERS, "orders", 1, 1700000001000, RemotePartitionDeleteState.DELETE_PARTITION_MARKED
        ),
    ),
}


@pytest.mark.parametrize("name", WRITTEN_BY_KAFKA)
def test_what_kafka_wrote_is_read(name: str) -> None:
    raw, record = WRITTEN_BY_KAFKA[name]
    assert decode(bytes.fromhex(raw)) == record


def test_the_writer_of_these_tests_writes_what_kafka_writes() -> None:
    assert write(STARTED).hex() == WRITTEN_BY_KAFKA["started"][0]
    raw, record = WRITTEN_BY_KAFKA["a partition's delete"]
    assert write(record).hex() == raw


@given(record=KNOWN_RECORDS, unknown_tags=TAGGED_FIELDS)
def test_every_record_is_read_back_whatever_tagged_fields_it_has(record: Known, unknown_tags: dict[int, bytes]) -> None:
    assert decode(write(record, unknown_tags)) == record


@given(record=KNOWN_RECORDS, data=st.data())
def test_a_record_cut_off_or_with_bytes_too_many_is_unknown(record: Known, data: st.DataObject) -> None:
    raw = write(record)
    length = data.draw(st.integers(0, len(raw) - 1))
    assert isinstance(decode(raw[:length]), UnknownRecord)
    assert isinstance(decode(raw + b"\0"), UnknownRecord)


@given(record=KNOWN_RECORDS, data=st.data())
def test_damage_is_never_fatal(record: Known, data: st.DataObject) -> None:
    raw = bytearray(write(record, data.draw(TAGGED_FIELDS)))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    decode(bytes(raw))


@given(st.binary(max_size=200))
def test_noise_is_never_fatal(noise: bytes) -> None:
    decode(noise)
    decode(b"\1\0\0" + noise)
    decode(b"\1\2\0" + noise)


def _reason(raw: bytes | None) -> str:
    record = decode(raw)
    assert isinstance(record, UnknownRecord)
    return record.reason


def test_what_a_newer_kafka_may_write_is_unknown_and_says_why() -> None:
    assert _reason(write(STARTED, version=1)) == "version"
    assert _reason(b"\x02\0\0") == "frame_version"
    assert _reason(b"\x01\x03\0") == "api_key"  # of snapshot files, never in the topic
    assert _reason(None) == "no_value"
    assert _reason(b"") == "truncated"
    assert _reason(write(STARTED)[:-2] + b"\x04\x00") == "state"


@pytest.mark.parametrize(
    ("start", "end", "epochs"),
    [
        (5, 9, ()),
        (5, 9, ((1, 6),)),
        (5, 9, ((1, 5), (1, 7))),
        (5, 9, ((1, 5), (2, 4))),
        (5, 9, ((1, 5), (2, 10))),
        (5, 4, ((1, 5),)),
        (-1, 4, ((1, -1),)),
    ],
)
def test_a_segment_that_contradicts_itself_is_unknown(
    start: int, end: int, epochs: tuple[tuple[int, int], ...]
) -> None:
    record = RemoteLogSegmentMetadata(SEGMENT, "o", start, end, 1, 0, 0, epochs, 1, None, State.COPY_SEGMENT_STARTED)
    assert _reason(write(record)) in ("offsets", "leader_epochs")


def test_leader_epochs_are_sorted_as_kafka_promises_no_order() -> None:
    raw = bytes.fromhex(WRITTEN_BY_KAFKA["started"][0])
    first, second = bytes.fromhex("00000003000000000000006400"), bytes.fromhex("00000005000000000000009600")
    assert decode(raw.replace(first + second, second + first)) == STARTED


HOSTILE = varint(2**32 - 1)


@pytest.mark.parametrize(
    "raw",
    [
        b"\1\0\0" + HOSTILE,  # the topic's name
        write(STARTED)[: 3 + 7 + 20] + HOSTILE + bytes(40),  # tagged fields
        write(STARTED).replace(b"\x03\0\0\0\x03", HOSTILE + b"\0\0\0\x03"),  # leader epochs
        write(STARTED)[:-3] + HOSTILE + b"\0\0",  # custom metadata
        b"\1" + b"\xff" * 12,
    ],
)
def test_hostile_lengths_and_counts_are_refused_before_anything_is_allocated(raw: bytes) -> None:
    tracemalloc.start()
    try:
        assert _reason(raw) in ("string", "count", "truncated", "varint")
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
