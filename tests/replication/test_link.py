"""Linked responses: encode and decode, splice, and refuse whatever does not prove itself."""

import tracemalloc
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_log.crc32c import crc32c
from kafka_log.record_batch import scan_batches
from plugin.segment_metadata import CombinedSegmentId
from replication.wire.fetch_frame import scan_fetch_response
from replication.wire.kafka_frame import MalformedFrameError, encode_unsigned_varint
from replication.wire.link import (
    Cut,
    InlineBytes,
    LinkedResponse,
    Part,
    SegmentLink,
    SpliceError,
    decode_linked_response,
    encode_linked_response,
    splice,
)
from tests.kafka_log.batches import batch, batches
from tests.plugin.id_strategies import archive_object_ids, combined_segment_ids
from tests.replication.fetch_frames import decode, response

MAX = 1024 * 1024
SEGMENT = CombinedSegmentId(3, 2**40 + 1, 9)

object_ids = combined_segment_ids | archive_object_ids
positions = st.integers(0, 2**40), st.integers(0, 5000), st.integers(0, 2**32 - 1)
custom_metadata = st.sampled_from([b"", b"bucket-1", b"x" * 1024])
links = st.builds(SegmentLink, object_ids, *positions) | st.builds(
    SegmentLink, st.sampled_from([SEGMENT, SEGMENT._replace(sequence=10)]), *positions, custom_metadata
)
inline = st.builds(InlineBytes, st.binary(max_size=300))


@st.composite
def linked_responses(draw: st.DrawFn) -> LinkedResponse:
    skeleton = draw(st.binary(max_size=200))
    positions = sorted(draw(st.lists(st.integers(0, len(skeleton)), max_size=6)))
    ends: dict[object, int] = {}

    def apart(part: Part) -> Part:
        """Behind the last link to the same object."""
        if isinstance(part, InlineBytes):
            return part
        start = max(part.start_position, ends.get(part.object_id, 0))
        ends[part.object_id] = start + part.length
        return replace(part, start_position=start)

    cuts = tuple(Cut(position, tuple(map(apart, draw(st.lists(links | inline, max_size=5))))) for position in positions)
    return LinkedResponse(draw(st.integers(described_bytes(cuts, skeleton), MAX)), cuts, (skeleton,))


def described_bytes(cuts: tuple[Cut, ...], skeleton: bytes) -> int:
    records = [sum(part.length for part in cut.parts) for cut in cuts]
    return len(skeleton) + sum(size + len(encode_unsigned_varint(size + 1)) for size in records)


def plain(linked: LinkedResponse) -> tuple[object, ...]:
    """Comparable, whatever kind of buffer holds the bytes."""
    cuts = [
        (cut.skeleton_position, [bytes(p.data) if isinstance(p, InlineBytes) else p for p in cut.parts])
        for cut in linked.cuts
    ]
    return linked.original_frame_bytes, cuts, b"".join(map(bytes, linked.skeleton))


def encoded(linked: LinkedResponse) -> bytes:
    return b"".join(map(bytes, encode_linked_response(linked)))


@given(linked_responses())
def test_a_linked_response_comes_out_as_it_went_in(linked: LinkedResponse) -> None:
    assert plain(decode_linked_response(encoded(linked), MAX)) == plain(linked)


@given(linked_responses(), st.data())
def test_hostile_payloads_are_refused_or_read_within_bounds(linked: LinkedResponse, data: st.DataObject) -> None:
    payload = bytearray(encoded(linked))
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(payload) - 1))
        payload[position] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    payload = payload[: data.draw(st.integers(0, len(payload)))]
    try:
        decoded = decode_linked_response(payload, MAX)
    except MalformedFrameError:
        return
    skeleton = b"".join(map(bytes, decoded.skeleton))
    assert described_bytes(decoded.cuts, skeleton) <= decoded.original_frame_bytes <= MAX
    skeleton_bytes = len(skeleton)
    by_object = sorted((str(link.object_id), link.start_position, link.end_position) for link in decoded.links)
    assert all(end <= start for (one, _, end), (other, start, _) in pairwise(by_object) if one == other)
    assert all(0 <= cut.skeleton_position <= skeleton_bytes for cut in decoded.cuts)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xff\xff\xff\x00\x00",
        b"\0\0\0\1" + b"\xff" * 8 + b"\x7f",
        b"\0\0\0\1" + b"\x00" + b"\xff\xff\xff\xff\x0f",
        b"\0\0\0\1" + b"\x00\x01\x00" + b"\xff\xff\xff\xff\x0f",
        b"\0\0\0\1" + b"\x00\x01\x00\x01\x01" + b"\xff\xff\xff\xff\x0f",
        b"\0\0\0\1" + b"\x00\x01\x00\x01\x00\x05\x00\x00\0\0\0\0",
        b"\0\0\0\1" + b"\x00\x01\x00\x01\x04\x00",
        b"\0\0\0\1" + b"\x00\x01\x00\x01\x03\x00\x00",
        b"\0\0\0\1" + b"\x01" + b"\0" * 13 + b"\x01\x00\x01\x03\x00\x81\x08" + b"\0" * 1100,
        b"\0\0\0\1" + b"\x00\x01\x00\x01\x02" + b"\0" * 51,
        b"\0\0\0\1" + b"\x00\x01\x00\x01\x02" + b"\0" * 16 + b"\xff" * 4 + b"\0" * 60,
        b"\0\0\0\1" + b"\x00\x01\x00\x01\x02" + b"\0" * 27 + b"\x01" + b"\0" * 60,
        b"\0\0\0\1" + b"\x00\x01\x09\x00" + b"skel",
    ],
    ids=[
        "empty",
        "frame",
        "segments",
        "cuts",
        "parts",
        "inline",
        "no such segment",
        "kind",
        "no such segment with custom metadata",
        "custom metadata",
        "archive id",
        "partition",
        "offsets",
        "outside",
    ],
)
def test_absurd_payloads_are_refused_before_anything_is_allocated(payload: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrameError):
            decode_linked_response(payload, MAX)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_more_linked_bytes_than_a_frame_may_have_are_refused() -> None:
    link = SegmentLink(SEGMENT, 0, MAX // 2 + 1, 0)
    with pytest.raises(MalformedFrameError, match="in the place of 10"):
        decode_linked_response(encoded(LinkedResponse(10, (Cut(0, (link, link)),), (b"",))), MAX)


def test_without_archive_objects_the_payload_has_the_first_two_kinds_of_parts_alone() -> None:
    """Agents that do not understand links to archive objects refuse kind 2, and are sent none."""
    link = SegmentLink(SEGMENT, 7, 300, 0x01020304)
    table = b"\x01\x03" + (2**40 + 1).to_bytes(6, "big") + (9).to_bytes(6, "big")
    part = b"\x00\x00\x07\xac\x02\x01\x02\x03\x04"
    expected = b"\0\0\0\x09" + table + b"\x01\x02\x01" + part + b"skeleton"
    assert encoded(LinkedResponse(9, (Cut(2, (link,)),), (b"skeleton",))) == expected


def test_custom_metadata_travels_once_for_each_object() -> None:
    link = SegmentLink(SEGMENT, 7, 300, 0x01020304, b"bucket-1")
    table = b"\x01\x03" + (2**40 + 1).to_bytes(6, "big") + (9).to_bytes(6, "big")
    where = b"\x07\xac\x02\x01\x02\x03\x04"
    parts = b"\x03\x00\x08bucket-1" + where + b"\x00\x00" + where
    expected = b"\0\0\0\x09" + table + b"\x01\x02\x02" + parts + b"skeleton"
    assert encoded(LinkedResponse(9, (Cut(2, (link, link)),), (b"skeleton",))) == expected


class LinkedFrame:
    """A response whose partitions' records are linked in part, with the bytes that the links stand for."""

    def __init__(self, frame: bytes, linked_batches: list[int], drop_tail: bool) -> None:
        self.hydrated: list[bytes] = []
        self.expected_records: list[bytes] = []
        cuts, skeleton, position, skeleton_bytes = [], [], 0, 0
        fields = scan_fetch_response(frame, 17).fields
        for field, count in zip(fields, linked_batches, strict=True):
            spans = scan_batches(frame, field.records_start, field.records_end)[:count]
            if not spans:
                self.expected_records.append(frame[field.records_start : field.records_end])
                continue
            end = spans[-1].end
            run = frame[field.records_start : end]
            rest = b"" if drop_tail else frame[end : field.records_end]
            self.hydrated.append(run)
            self.expected_records.append(run + rest)
            link = SegmentLink(SEGMENT, field.records_start, len(run), crc32c(run))
            skeleton.append(frame[position : field.length_start])
            skeleton_bytes += field.length_start - position
            cuts.append(Cut(skeleton_bytes, (link, InlineBytes(rest)) if rest else (link,)))
            position = field.records_end
        self.response = LinkedResponse(len(frame), tuple(cuts), (*skeleton, frame[position:]))


@st.composite
def linked_frames(draw: st.DrawFn) -> tuple[bytes, LinkedFrame, bool]:
    """(frame, the same linked, whether what is not linked was dropped)."""
    records: dict[int, bytes | None] = {}
    counts = []
    for number in range(draw(st.integers(1, 4))):
        count = draw(st.integers(0, 4))
        raw = batches(count, 10 * number, 2, 3, b"v" * draw(st.integers(0, 200)))
        records[number] = raw + batch(99, 1, 3)[: draw(st.integers(0, 60))] if raw else raw
        counts.append(draw(st.integers(0, count)))
    frame = response(records, high_watermark=5)
    drop_tail = draw(st.booleans())
    return frame, LinkedFrame(frame, counts, drop_tail), drop_tail


@given(linked_frames())
def test_a_spliced_frame_is_the_leaders_frame_or_that_without_a_dropped_tail(
    made: tuple[bytes, LinkedFrame, bool],
) -> None:
    frame, linked, drop_tail = made
    sent = decode_linked_response(encoded(linked.response), MAX)
    spliced = b"".join(map(bytes, splice(sent, linked.hydrated)))
    if not drop_tail:
        assert spliced == frame
    got, original = decode(spliced, 17), decode(frame, 17)
    assert [bytes(p.records) for p in got.responses[0].partitions] == linked.expected_records
    for p in (*got.responses[0].partitions, *original.responses[0].partitions):
        p.records = b""
    assert got.to_dict() == original.to_dict()


@given(linked_frames().filter(lambda made: bool(made[1].hydrated)), st.data())
def test_wrong_bytes_from_the_store_never_become_a_frame(
    made: tuple[bytes, LinkedFrame, bool], data: st.DataObject
) -> None:
    _, linked, _ = made
    index = data.draw(st.integers(0, len(linked.hydrated) - 1))
    right = linked.hydrated[index]
    kind = data.draw(st.sampled_from(["flip", "short", "long", "shifted", "empty", "other"]))
    if kind == "flip":
        position = data.draw(st.integers(0, len(right) - 1))
        wrong = right[:position] + bytes((right[position] ^ 1 << data.draw(st.integers(0, 7)),)) + right[position + 1 :]
    else:
        wrong = {
            "short": right[:-1],
            "long": right + b"\0",
            "shifted": b"\0" + right[:-1],
            "empty": b"",
            "other": batch(0, 1, 9, b"another epoch's"),
        }[kind]
    hydrated = [*linked.hydrated[:index], wrong, *linked.hydrated[index + 1 :]]
    with pytest.raises(SpliceError) as caught:
        splice(linked.response, hydrated)
    assert caught.value.link == linked.response.links[index]


def test_bytes_with_the_right_checksum_that_are_no_whole_batches_are_refused() -> None:
    raw = batch(5, 2)
    for wrong in (raw[:-3], raw + raw[:20], b"\x01" * 80, b""):
        link = SegmentLink(SEGMENT, 0, len(wrong), crc32c(wrong))
        with pytest.raises(SpliceError):
            splice(LinkedResponse(9, (Cut(0, (link,)),), (b"skeleton",)), [wrong])


def test_the_splicer_wants_one_answer_for_each_link() -> None:
    raw = batch(5, 2)
    link = SegmentLink(SEGMENT, 0, len(raw), crc32c(raw))
    linked = LinkedResponse(len(raw) + 9, (Cut(0, (link,)),), (b"skeleton",))
    assert b"".join(map(bytes, splice(linked, [raw]))) == encode_unsigned_varint(len(raw) + 1) + raw + b"skeleton"
    with pytest.raises(ValueError, match="shorter"):
        splice(replace(linked, cuts=(Cut(0, (link, link)),)), [raw])


def test_a_payload_of_many_links_is_refused_before_one_is_made() -> None:
    """Four megabytes hold half a million links of the smallest kind, and would be ten times as much in memory."""
    link = b"\0\0\0\1" + b"\0" * 4
    count = 4 * 1024 * 1024 // len(link)
    payload = b"".join(
        (
            (100).to_bytes(4, "big"),
            encode_unsigned_varint(1) + b"\1" + b"\0" * 12,
            encode_unsigned_varint(1),
            encode_unsigned_varint(0),
            encode_unsigned_varint(count),
            link * count,
        )
    )
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrameError, match="more items"):
            decode_linked_response(payload, 100 * MAX)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


def linked_twice(first: bytes, second: bytes) -> tuple[LinkedResponse, list[bytes]]:
    """One records field made of two links."""
    frame = response({0: first})
    (field,) = scan_fetch_response(frame, 17).fields
    parts = tuple(SegmentLink(SEGMENT, 112, len(raw), crc32c(raw)) for raw in (first, second))
    skeleton = (frame[: field.length_start], frame[field.records_end :])
    original_bytes = len(response({0: first + second}))
    return LinkedResponse(original_bytes, (Cut(field.length_start, parts),), skeleton), [first, second]


@pytest.mark.parametrize("second", [batches(2, 0), batches(2, 1), batches(1, 0)], ids=["same", "overlap", "before"])
def test_a_batch_that_was_linked_twice_never_becomes_a_frame(second: bytes) -> None:
    with pytest.raises(SpliceError, match="comes after"):
        splice(*linked_twice(batches(2, 0), second))


def test_batches_that_ascend_over_several_links_are_put_together() -> None:
    linked, data = linked_twice(batches(2, 0), batches(2, 7))
    assert decode(b"".join(map(bytes, splice(linked, data))), 17).responses[0].partitions[0].records == b"".join(data)


def apart(linked: LinkedResponse) -> LinkedResponse:
    """The same, its second link behind the first."""
    first, second = linked.links
    cut = replace(linked.cuts[0], parts=(first, replace(second, start_position=first.end_position)))
    return replace(linked, cuts=(cut,))


def test_a_frame_larger_than_the_leaders_is_refused_before_anything_is_read_for_it() -> None:
    linked = apart(linked_twice(batches(2, 0), batches(2, 7))[0])
    decode_linked_response(encoded(linked), MAX)
    with pytest.raises(MalformedFrameError, match="in the place of"):
        decode_linked_response(encoded(replace(linked, original_frame_bytes=linked.original_frame_bytes - 1)), MAX)


@pytest.mark.parametrize("fields", [1, 2], ids=["in one partition", "in two"])
@pytest.mark.parametrize("moved", [0, 1, -1], ids=["the same", "later", "earlier"])
def test_bytes_that_two_links_of_a_response_name_are_refused(fields: int, moved: int) -> None:
    linked, _ = linked_twice(batches(2, 0), batches(2, 7))
    first, second = linked.links
    second = replace(second, start_position=first.start_position + moved)
    parts = [(first, second)] if fields == 1 else [(first,), (second,)]
    position = linked.cuts[0].skeleton_position
    overlapping = replace(linked, original_frame_bytes=MAX, cuts=tuple(Cut(position, part) for part in parts))
    with pytest.raises(MalformedFrameError, match="linked twice"):
        decode_linked_response(encoded(overlapping), MAX)
