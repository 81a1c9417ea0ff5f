"""The Fetch scanner against kafka-python's codec, and against bytes that mean harm."""

import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest

from kafka_log.topic_partition import TopicId, TopicIdPartition
from replication.wire.fetch_frame import (
    scan_fetch_request,
    scan_fetch_response,
    understands_fetch,
    with_fetch_wait,
    without_records,
)
from replication.wire.kafka_frame import MalformedFrameError, encode_unsigned_varint, parse_request_header
from replication.wire.link import Cut, InlineBytes, LinkedResponse, splice
from tests.replication.fetch_frames import VERSIONS, decode, request, requests, response, responses


@given(responses())
def test_records_are_found_where_the_other_codec_put_them(made: tuple[int, list[Any], bytes]) -> None:
    version, topics, frame = made
    view = scan_fetch_response(frame, version)
    expected = [(topic, partition) for topic in topics for partition in topic.partitions]
    assert len(view.fields) == len(expected)
    for found, (topic, partition) in zip(view.fields, expected, strict=True):
        assert frame[found.records_start : found.records_end] == (partition.records or b"")
        length = len(partition.records) + 1 if partition.records is not None else 0
        assert frame[found.length_start : found.records_start] == encode_unsigned_varint(length)
        assert (found.partition, found.error_code, found.high_watermark) == (
            partition.partition_index,
            partition.error_code,
            partition.high_watermark,
        )
        if version >= 13:
            assert (found.topic_id, found.topic_name) == (topic.topic_id.bytes, None)
        else:
            assert (found.topic_id, found.topic_name) == (None, topic.topic)
    decoded = decode(frame, version)
    assert (view.error_code, view.session_id) == (decoded.error_code, decoded.session_id)
    assert struct.pack(">i", view.correlation_id) == frame[:4]


@given(responses())
def test_without_records_all_else_stays(made: tuple[int, list[Any], bytes]) -> None:
    version, _, frame = made
    expected = decode(frame, version)
    for topic in expected.responses:
        for partition in topic.partitions:
            partition.records = b""
    left = decode(b"".join(without_records(frame, scan_fetch_response(frame, version))), version)
    assert left.to_dict() == expected.to_dict()


@given(responses(), st.data())
def test_tags_that_nobody_knows_yet_are_passed_over(made: tuple[int, list[Any], bytes], data: st.DataObject) -> None:
    version, _, frame = made
    tags = data.draw(st.lists(st.tuples(st.integers(50, 2**31), st.binary(max_size=200)), min_size=1, max_size=3))
    unknown = encode_unsigned_varint(len(tags)) + b"".join(
        encode_unsigned_varint(tag) + encode_unsigned_varint(len(value)) + value for tag, value in sorted(tags)
    )
    ends = [field.records_end for field in scan_fetch_response(frame, version).fields]
    # A tag section without tags is one zero byte: the header's, each partition's, the last of the frame.
    at = data.draw(st.sampled_from([4, *(end for end in ends if frame[end] == 0)]))
    assert frame[at] == 0
    tagged = frame[:at] + unknown + frame[at + 1 :]
    decoded = decode(tagged, version)  # the other codec takes them, too
    found = scan_fetch_response(tagged, version).fields
    assert [tagged[f.records_start : f.records_end] for f in found] == [
        bytes(partition.records or b"") for topic in decoded.responses for partition in topic.partitions
    ]


@given(responses(), st.data())
def test_cutting_fields_out_and_putting_them_back_gives_the_same_frame(
    made: tuple[int, list[Any], bytes], data: st.DataObject
) -> None:
    version, _, frame = made
    fields = [f for f in scan_fetch_response(frame, version).fields if f.records_end > f.records_start]
    cuts, skeleton, position, skeleton_bytes = [], [], 0, 0
    for field in fields:
        if not data.draw(st.booleans()):
            continue
        skeleton.append(frame[position : field.length_start])
        skeleton_bytes += field.length_start - position
        middle = data.draw(st.integers(field.records_start, field.records_end))
        parts = (
            InlineBytes(frame[field.records_start : middle]),
            InlineBytes(frame[middle : field.records_end]),
        )
        cuts.append(Cut(skeleton_bytes, parts))
        position = field.records_end
    linked = LinkedResponse(len(frame), tuple(cuts), (*skeleton, frame[position:]))
    assert b"".join(map(bytes, splice(linked, []))) == frame


@given(requests())
def test_requests_are_read_as_the_other_codec_wrote_them(made: tuple[int, tuple[int, Any], bytes]) -> None:
    version, (replica_id, message), frame = made
    header = parse_request_header(frame)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (
        1,
        version,
        message.header.correlation_id,
        message.header.client_id,
    )
    view = scan_fetch_request(frame, version)
    assert view.replica_id == replica_id
    assert [(p.partition, p.current_leader_epoch, p.fetch_offset) for p in view.partitions] == [
        (p.partition, p.current_leader_epoch, p.fetch_offset) for topic in message.topics for p in topic.partitions
    ]
    names = [(p.topic_id, p.topic_name) for p in view.partitions]
    assert names == [
        (topic.topic_id.bytes, None) if version >= 13 else (None, topic.topic)
        for topic in message.topics
        for _ in topic.partitions
    ]
    assert view.is_whole is (message.session_epoch in (-1, 0))
    assert view.forgotten == tuple(
        TopicIdPartition(TopicId(topic.topic_id.bytes), number)
        for topic in message.forgotten_topics_data
        for number in topic.partitions
        if version >= 13
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_another_wait_changes_max_wait_and_min_bytes_and_nothing_else(version: int) -> None:
    frame = request({0: 5, 1: 7}, version=version)
    view = scan_fetch_request(frame, version)
    assert (view.max_wait_ms, view.min_bytes) == (500, 1)
    changed = bytes(with_fetch_wait(frame, view, 25, 70_000))
    decoded = FetchRequest.decode(changed, version=version, header=True)
    assert (decoded.max_wait_ms, decoded.min_bytes) == (25, 70_000)
    assert scan_fetch_request(changed, version).partitions == view.partitions
    assert bytes(with_fetch_wait(changed, view, 500, 1)) == frame


def test_a_consumer_is_told_from_a_replica_in_every_version() -> None:
    for version in VERSIONS:
        assert scan_fetch_request(request({0: 5}, version=version, replica_id=-1), version).replica_id == -1
        assert scan_fetch_request(request({0: 5}, version=version, replica_id=3), version).replica_id == 3


def test_other_versions_are_not_claimed_to_be_understood() -> None:
    assert [version for version in range(30) if understands_fetch(version)] == list(VERSIONS)


def test_a_request_header_without_client_id_or_cut_off_in_it() -> None:
    assert parse_request_header(struct.pack(">hhih", 3, 9, 4, -1)).client_id == ""
    with pytest.raises(MalformedFrameError):
        parse_request_header(struct.pack(">hhih", 3, 9, 4, 10) + b"short")
    with pytest.raises(MalformedFrameError):
        parse_request_header(b"\0\1\0")


def only_malformed(scan: Callable[[bytes, int], object], frame: bytes, version: int) -> bool:
    """Whether the frame was refused; anything but MalformedFrameError fails the test."""
    try:
        scan(frame, version)
    except MalformedFrameError:
        return True
    return False


@given(st.binary(max_size=300), st.sampled_from(VERSIONS))
def test_random_bytes_are_refused_or_read_and_nothing_else(raw: bytes, version: int) -> None:
    only_malformed(scan_fetch_response, raw, version)
    only_malformed(scan_fetch_request, raw, version)


@given(responses(), requests(), st.randoms(use_true_random=False))
def test_mutated_frames_are_refused_or_read_and_nothing_else(
    answered: tuple[int, list[Any], bytes], asked: tuple[int, Any, bytes], rng: random.Random
) -> None:
    for version, _, frame in (answered, asked):
        scan = scan_fetch_response if frame is answered[2] else scan_fetch_request
        for _ in range(20):
            mutated = bytearray(frame)
            for _ in range(rng.randint(1, 4)):
                mutated[rng.randrange(len(mutated))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            only_malformed(scan, bytes(mutated), version)


def test_every_truncation_of_a_frame_and_every_byte_too_many_is_refused() -> None:
    for version in VERSIONS:
        answer = response({0: b"some records", 4: None, 5: b""}, version=version, high_watermark=9)
        question = request({0: 5, 3: 7}, version=version)
        for frame, scan in ((answer, scan_fetch_response), (question, scan_fetch_request)):
            assert not only_malformed(scan, frame, version)
            assert only_malformed(scan, frame + b"\0", version)
            assert all(only_malformed(scan, frame[:end], version) for end in range(len(frame)))


HUGE = [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x08", b"\xff" * 9 + b"\x01"]


@pytest.mark.parametrize("huge", HUGE, ids=["4 GiB", "32 GiB", "2 GiB", "endless"])
def test_absurd_counts_are_refused_without_time_or_memory(huge: bytes) -> None:
    """At every position of valid frames, so at every count and length there is. One that is counted through would go
    on until the test's own time-out.
    """
    answer = response({0: b"some records", 4: None}, version=17)
    question = request({0: 5, 3: 7}, version=17)
    tracemalloc.start()
    try:
        for frame, scan in ((answer, scan_fetch_response), (question, scan_fetch_request)):
            for position in range(len(frame)):
                only_malformed(scan, frame[:position] + huge + frame[position + 1 :], 17)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 256 * 1024
