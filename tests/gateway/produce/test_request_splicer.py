"""A request is cut, sent, spliced, and is the very frame again; or it is refused."""

import random
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.produce.produce_frame import ProduceRequestView, scan_produce_request
from gateway.produce.route_request import (
    MAX_CUTS,
    MIN_CUT_BYTES,
    CutRequest,
    RecordsCut,
    RouteSpliceError,
    ZoneRouteRequest,
    cut_request,
    decode_route_request,
    encode_route_request,
    splice_request,
)
from plugin.router_object_id import RouterObjectId
from replication.wire.kafka_frame import MalformedFrameError, encode_unsigned_varint
from tests.gateway.produce.produce_frames import VERSIONS, produce, records, requests

OBJECT = RouterObjectId(4, 2**40, 170_000_000, 9)
MAX_FRAME_BYTES = 100 * 1024 * 1024


def cut(frame: bytes) -> CutRequest | None:
    view = scan_produce_request(frame)
    assert isinstance(view, ProduceRequestView)
    return cut_request(frame, view)


def was_cut(frame: bytes) -> CutRequest:
    found = cut(frame)
    assert found is not None
    return found


def sent(request: ZoneRouteRequest) -> bytes:
    return b"".join(map(bytes, encode_route_request(request)))


def received(payload: bytes) -> ZoneRouteRequest:
    return decode_route_request(payload, MAX_FRAME_BYTES)


def spliced(request: ZoneRouteRequest, hydrated: bytes) -> bytes:
    return b"".join(map(bytes, splice_request(request, hydrated)))


def routed(frame: bytes, start_position: int = 77, custom_metadata: bytes = b"") -> tuple[ZoneRouteRequest, bytes]:
    """The request as the leader's agent gets it, and what the object holds for it."""
    found = was_cut(frame)
    request = found.routed(3, OBJECT, start_position, custom_metadata)
    return received(sent(request)), b"".join(found.records)


@given(requests(), st.integers(0, 2**31), st.binary(max_size=40))
def test_what_was_cut_is_spliced_to_the_very_same_frame(
    made: tuple[int, Any, bytes], start_position: int, custom_metadata: bytes
) -> None:
    _, message, frame = made
    found = cut(frame)
    raws = [part.records or b"" for topic in message.topic_data for part in topic.partition_data]
    large = [raw for raw in raws if len(raw) >= MIN_CUT_BYTES]
    if found is None:
        assert not large
        return
    assert [bytes(one) for one in found.records] == large
    request = found.routed(2**33, OBJECT, start_position, custom_metadata)
    got = received(sent(request))
    assert (got.number, got.object_id, got.custom_metadata) == (2**33, OBJECT, custom_metadata)
    assert (got.start_position, got.end_position) == (start_position, start_position + sum(map(len, large)))
    assert got.cuts == request.cuts
    assert spliced(got, b"".join(large)) == frame
    assert len(sent(got)) < len(frame) - got.linked_bytes + 60 + len(custom_metadata) + 15 * len(large)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_length_that_takes_more_bytes_than_it_must_comes_out_as_it_went_in(version: int) -> None:
    """As some client may write it; a length that is made anew would change the frame."""
    frame = produce({0: records()}, version=version)
    view = scan_produce_request(frame)
    assert isinstance(view, ProduceRequestView)
    start = view.fields[0].records_start
    odd = frame[: start - 1] + bytes((frame[start - 1] | 0x80, 0)) + frame[start:]
    assert spliced(*routed(odd)) == odd


def test_nothing_is_cut_where_nothing_is_worth_it() -> None:
    assert cut(produce({})) is None
    assert cut(produce({0: None, 1: b"", 2: b"x" * (MIN_CUT_BYTES - 1)})) is None
    assert cut(produce({0: b"x" * MIN_CUT_BYTES})) is not None


def test_more_cuts_than_a_peer_reads_are_not_made() -> None:
    assert cut(produce(dict.fromkeys(range(MAX_CUTS), b"x" * MIN_CUT_BYTES))) is not None
    assert cut(produce(dict.fromkeys(range(MAX_CUTS + 1), b"x" * MIN_CUT_BYTES))) is None


def test_records_are_neither_copied_to_be_cut_nor_to_be_spliced() -> None:
    frame = produce({0: records(3_000_000), 1: records(2_000_000)})
    hydrated = b"".join(was_cut(frame).records)
    tracemalloc.start()
    try:
        found = was_cut(frame)
        assert sum(map(len, found.records)) == found.linked_bytes
        splice_request(received(sent(found.routed(0, OBJECT, 0, b""))), hydrated)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


# What lies.


@given(st.randoms(use_true_random=False))
def test_bytes_that_are_not_those_that_were_cut_out_are_refused(rng: random.Random) -> None:
    request, hydrated = routed(produce({0: records(200), 1: records(300)}))
    changed = bytearray(hydrated)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    with pytest.raises(RouteSpliceError, match="CRC32C"):
        splice_request(request, changed)


def test_a_range_that_is_shorter_longer_or_of_another_request_is_refused() -> None:
    request, hydrated = routed(produce({0: records(200), 1: records(300)}))
    for wrong in (b"", hydrated[:-1], hydrated + b"\0", hydrated[1:] + hydrated[:1], hydrated[::-1]):
        with pytest.raises(RouteSpliceError):
            splice_request(request, wrong)


def test_records_of_two_partitions_that_changed_places_are_refused() -> None:
    first, second = records(300), records(300)[:-1] + b"s"
    request, hydrated = routed(produce({0: first, 1: second}))
    with pytest.raises(RouteSpliceError):
        splice_request(request, second + first)
    assert spliced(request, hydrated)


def with_cuts(request: ZoneRouteRequest, *cuts: RecordsCut, frame_bytes: int | None = None) -> bytes:
    size = request.original_frame_bytes if frame_bytes is None else frame_bytes
    return sent(replace(request, cuts=cuts, original_frame_bytes=size))


def test_requests_whose_numbers_contradict_each_other_are_refused() -> None:
    request, _ = routed(produce({0: records(200), 1: records(300)}))
    first, second = request.cuts
    skeleton_bytes = request.original_frame_bytes - request.linked_bytes
    for payload in (
        with_cuts(request),  # no cut at all
        with_cuts(request, first),  # less than the original
        with_cuts(request, first, second, second),
        with_cuts(request, first, second, frame_bytes=request.original_frame_bytes + 1),
        with_cuts(request, first, second._replace(skeleton_position=skeleton_bytes + 1)),
        with_cuts(request, first._replace(length=0), second),
        with_cuts(request, first._replace(length=MAX_FRAME_BYTES), second, frame_bytes=MAX_FRAME_BYTES + 99),
        sent(replace(request, start_position=2**32 - 1)),
        sent(replace(request, custom_metadata=b"x" * 1025)),
        sent(replace(request, cuts=(first,) * (MAX_CUTS + 1))),
    ):
        with pytest.raises(MalformedFrameError):
            received(payload)


def test_a_frame_beyond_the_bound_is_refused() -> None:
    request, _ = routed(produce({0: records(200)}))
    payload = sent(request)
    decode_route_request(payload, request.original_frame_bytes)
    with pytest.raises(MalformedFrameError):
        decode_route_request(payload, request.original_frame_bytes - 1)


def test_every_truncation_is_refused() -> None:
    payload = sent(routed(produce({0: records(200), 1: records(300)}), 5)[0])
    for end in range(len(payload)):
        with pytest.raises(MalformedFrameError):
            received(payload[:end])
    with pytest.raises(MalformedFrameError):
        received(payload + b"\0")


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read_and_nothing_else(raw: bytes) -> None:
    try:
        received(raw)
    except MalformedFrameError:
        return


HUGE = [b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x08", b"\xff" * 9 + b"\x01"]


@pytest.mark.parametrize("huge", HUGE, ids=["4 GiB", "32 GiB", "2 GiB", "endless"])
def test_absurd_counts_are_refused_before_anything_is_allocated(huge: bytes) -> None:
    payload = sent(routed(produce({0: records(200)}))[0])
    tracemalloc.start()
    try:
        for position in range(60):
            try:
                received(payload[:position] + huge + payload[position + 1 :])
            except MalformedFrameError:
                continue
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 256 * 1024


def test_mutated_requests_give_the_original_or_are_refused() -> None:
    """So no byte of what goes over the wire can be another without anybody noticing, but for those of the skeleton."""
    frame = produce({0: records(200), 1: records(300)})
    request, hydrated = routed(frame)
    payload = sent(request)
    head_bytes = len(payload) - (request.original_frame_bytes - request.linked_bytes)
    rng = random.Random(1)
    for position in range(head_bytes):
        changed = bytearray(payload)
        changed[position] ^= 1 << rng.randrange(8)
        try:
            got = received(bytes(changed))
            result = spliced(got, hydrated) if len(hydrated) == got.linked_bytes else None
        except (MalformedFrameError, RouteSpliceError):
            continue
        moved = [one.skeleton_position for one in got.cuts] != [one.skeleton_position for one in request.cuts]
        assert result == frame or moved or (got.number, got.object_id, got.start_position) != (3, OBJECT, 77)


def test_object_names_are_parsed_as_they_are_built() -> None:
    assert RouterObjectId.parse(OBJECT.blob_name) == OBJECT
    assert OBJECT.blob_name == "router/4/010000000000/000a21fe80/000000000009"
    for wrong in ("router/4", "router/04/010000000000/000a21fe80/000000000009", OBJECT.blob_name + "0",
                  "router/2147483648/010000000000/000a21fe80/000000000009", "metadata-snapshots/1/a"):  # fmt: skip
        assert RouterObjectId.parse(wrong) is None


def test_a_varint_of_the_number_is_bounded() -> None:
    payload = sent(replace(routed(produce({0: records(200)}))[0], number=0))
    with pytest.raises(MalformedFrameError):
        received(encode_unsigned_varint(2**48) + payload[1:])
