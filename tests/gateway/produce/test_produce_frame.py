"""The Produce scanner against kafka-python's codec, and against bytes that mean harm."""

import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest

from gateway.produce.produce_frame import (
    MAX_PRODUCE_VERSION,
    MIN_PRODUCE_VERSION,
    ProduceRequestView,
    Unread,
    scan_produce_request,
)
from replication.wire.kafka_frame import MAX_SCANNED_ITEMS, encode_unsigned_varint
from tests.gateway.produce.produce_frames import VERSIONS, decode, encode, produce, records, requests
from tests.replication.fetch_frames import request as fetch_request
from tests.replication.frame_steps import many, steps_to_read


def read(frame: bytes) -> ProduceRequestView:
    view = scan_produce_request(frame)
    assert isinstance(view, ProduceRequestView)
    return view


@given(requests())
def test_records_are_found_where_the_other_codec_put_them(made: tuple[int, Any, bytes]) -> None:
    version, message, frame = made
    view = read(frame)
    expected = [(topic, partition) for topic in message.topic_data for partition in topic.partition_data]
    assert len(view.fields) == len(expected)
    for found, (topic, partition) in zip(view.fields, expected, strict=True):
        assert frame[found.records_start : found.records_end] == (partition.records or b"")
        length = encode_unsigned_varint(0 if partition.records is None else len(partition.records) + 1)
        assert frame[: found.records_start].endswith(length)
        assert found.partition == partition.index
        named = (topic.topic_id.bytes, None) if version >= 13 else (None, topic.name)
        assert (found.topic_id, found.topic_name) == named
    header = message.header
    assert (view.api_version, view.correlation_id) == (version, header.correlation_id)
    assert (view.acks, view.timeout_ms) == (message.acks, message.timeout_ms)


@given(requests(), st.data())
def test_tags_that_nobody_knows_yet_are_passed_over(made: tuple[int, Any, bytes], data: st.DataObject) -> None:
    version, _, frame = made
    tags = data.draw(st.lists(st.tuples(st.integers(50, 2**31), st.binary(max_size=200)), min_size=1, max_size=3))
    unknown = encode_unsigned_varint(len(tags)) + b"".join(
        encode_unsigned_varint(tag) + encode_unsigned_varint(len(value)) + value for tag, value in sorted(tags)
    )
    # A tag section without tags is one zero byte: each partition's, the last of the frame.
    at = data.draw(st.sampled_from([len(frame) - 1, *(field.records_end for field in read(frame).fields)]))
    assert frame[at] == 0
    tagged = frame[:at] + unknown + frame[at + 1 :]
    decoded = decode(tagged, version)  # the other codec takes them, too
    assert [tagged[found.records_start : found.records_end] for found in read(tagged).fields] == [
        bytes(partition.records or b"") for topic in decoded.topic_data for partition in topic.partition_data
    ]


def test_the_versions_are_those_that_are_flexible_up_to_the_newest_that_is_known() -> None:
    assert (VERSIONS[0], ProduceRequest.max_version) == (MIN_PRODUCE_VERSION, MAX_PRODUCE_VERSION)


@pytest.mark.parametrize("version", range(3, 9))
def test_older_versions_go_on_as_they_are(version: int) -> None:
    assert scan_produce_request(produce({0: records()}, version=version)) is Unread.VERSION


def test_versions_that_come_after_go_on_as_they_are() -> None:
    frame = produce({0: records()}, version=13)
    assert scan_produce_request(frame[:2] + struct.pack(">h", 14) + frame[4:]) is Unread.VERSION


def test_other_requests_go_on_as_they_are() -> None:
    assert scan_produce_request(fetch_request({0: 5})) is Unread.OTHER_API


def test_a_login_that_is_no_kafka_frame_goes_on_as_it_is() -> None:
    for token in (b"", b"\0", b"\0alice\0secret", b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL"):
        assert isinstance(scan_produce_request(token), Unread)


@given(st.binary(max_size=300), st.sampled_from(VERSIONS))
def test_random_bytes_are_read_or_not_and_never_raise(raw: bytes, version: int) -> None:
    scan_produce_request(raw)
    scan_produce_request(struct.pack(">hh", 0, version) + raw)


@given(requests(), st.randoms(use_true_random=False))
def test_mutated_frames_are_read_or_not_and_never_raise(made: tuple[int, Any, bytes], rng: random.Random) -> None:
    for _ in range(20):
        mutated = bytearray(made[2])
        for _ in range(rng.randint(1, 4)):
            mutated[rng.randrange(len(mutated))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        view = scan_produce_request(mutated)
        if isinstance(view, ProduceRequestView):
            ends = [0, *(at for field in view.fields for at in (field.records_start, field.records_end)), len(mutated)]
            assert ends == sorted(ends)


def test_every_truncation_of_a_frame_and_every_byte_too_many_goes_on_as_it_is() -> None:
    for version in VERSIONS:
        frame = produce({0: records(), 4: None, 5: b""}, version=version, transactional_id="transfers")
        read(frame)
        assert scan_produce_request(frame + b"\0") is Unread.MALFORMED
        assert {scan_produce_request(frame[:end]) for end in range(len(frame))} == {Unread.MALFORMED}


HUGE = [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x08", b"\xff" * 9 + b"\x01"]


@pytest.mark.parametrize("huge", HUGE, ids=["4 GiB", "32 GiB", "2 GiB", "endless"])
def test_absurd_counts_take_no_memory(huge: bytes) -> None:
    """At every position of a valid frame, so at every count and length there is."""
    frame = produce({0: records(), 4: None}, version=13)
    tracemalloc.start()
    try:
        for position in range(8, len(frame)):
            scan_produce_request(frame[:position] + huge + frame[position + 1 :])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 256 * 1024


HEADER = struct.pack(">hhihb", 0, 12, 7, -1, 0) + b"\0" + struct.pack(">hi", -1, 30_000)
SHAPES: dict[str, Callable[[int], bytes]] = {
    "topics": lambda count: HEADER + many(count, b"\2t\1\0") + b"\0",
    "partitions": lambda count: HEADER + b"\2\2t" + many(count, b"\0\0\0\0\1\0") + b"\0\0",
    "tags": lambda count: HEADER + b"\1" + encode_unsigned_varint(count) + b"\7\0" * count,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_request_takes_more_steps_to_read_than_the_bound_on_its_items(shape: str) -> None:
    read(SHAPES[shape](10))
    for count in (20_000, 1_000_000):
        assert scan_produce_request(SHAPES[shape](count)) is Unread.COSTLY
        assert steps_to_read(SHAPES[shape](count), scan_produce_request) < 5 * MAX_SCANNED_ITEMS


def test_the_steps_of_reading_are_by_partition_and_not_by_byte() -> None:
    """Three for the length of a partition's records, which takes two bytes, and one for its tags."""

    def steps(count: int, size: int) -> int:
        return steps_to_read(produce(dict.fromkeys(range(count), records(size))), scan_produce_request)

    assert steps(10, 200) == steps(10, 10_000)
    ten, twenty, thirty = (steps(count, 200) for count in (10, 20, 30))
    assert thirty - twenty == twenty - ten == 10 * 4


def test_record_bytes_are_not_copied() -> None:
    frame = produce({0: records(5_000_000)})
    tracemalloc.start()
    try:
        read(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 1024


def test_encoders_without_names_are_read_too() -> None:
    frame = encode(ProduceRequest(acks=1, timeout_ms=1, topic_data=[], version=12, transactional_id=None), 1, None)
    assert read(frame).fields == ()
