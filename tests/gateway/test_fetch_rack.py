"""Consumers that say no zone are given their gateway's, and nothing else of a byte stream is touched."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest

from gateway.consume.fetch_rack import MAX_EDITED_BYTES, FetchRackEditor, with_zone
from replication.wire.fetch_frame import CONSUMER_REPLICA_ID, scan_fetch_request
from tests.gateway.gateway_rig import GatewayRig, started
from tests.replication.fetch_frames import request, requests
from tests.replication.two_agents import framed

OTHER = framed(b"\x00\x03\x00\x0c\x00\x00\x00\x01some metadata request")
EMPTY_TOKEN = framed(b"")


def fed(stream: bytes, cuts: list[int]) -> bytes:
    """What goes on of a stream that arrives in these pieces."""
    editor = FetchRackEditor("az1")
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return b"".join(editor.feed(stream[start:end]) for start, end in pairwise(edges))


def frames_of(stream: bytes) -> list[bytes]:
    frames = []
    while stream:
        size = int.from_bytes(stream[:4], "big")
        frames.append(stream[4 : 4 + size])
        stream = stream[4 + size :]
    return frames


@given(st.lists(requests(), max_size=4), st.lists(st.integers(0), max_size=20))
def test_a_consumers_fetch_says_the_zone_and_is_else_what_it_was(
    told: list[tuple[int, Any, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(OTHER + framed(frame) + EMPTY_TOKEN for _, _, frame in told)
    went_on = frames_of(fed(stream, cuts))
    assert [frame for frame in went_on if frame == OTHER[4:]] == [OTHER[4:]] * len(told)
    assert went_on[2::3] == [b""] * len(told)
    for (version, _message, frame), edited in zip(told, went_on[1::3], strict=True):
        before = scan_fetch_request(frame, version)
        if before.rack or before.replica_id != CONSUMER_REPLICA_ID:
            assert edited == frame
            continue
        # Kafka's own message, by another codec, is the same but for its rack.
        was = FetchRequest.decode(frame, version=version, header=True)
        now = FetchRequest.decode(edited, version=version, header=True)
        assert now.rack_id == "az1"
        now.rack_id = was.rack_id
        assert now == was


@pytest.mark.parametrize("version", range(12, 19))
def test_a_consumer_is_given_the_zone_and_a_follower_is_not(version: int) -> None:
    consumer = request({0: 5}, version=version, replica_id=-1)
    follower = request({0: 5}, version=version, replica_id=2)
    assert scan_fetch_request(frames_of(fed(framed(consumer), []))[0], version).rack == "az1"
    assert fed(framed(follower), []) == framed(follower)


def test_a_consumer_that_says_its_rack_keeps_it() -> None:
    named = with_zone(request({0: 5}, replica_id=-1), "az9")
    assert scan_fetch_request(named, 17).rack == "az9"
    assert with_zone(named, "az1") == named


@pytest.mark.parametrize(
    "stream",
    [
        framed(b"\x00\x01\x00\x0b" + bytes(40)),
        framed(b"\x00\x01\x00\x13" + bytes(40)),
        framed(b"\x00\x01\x00\x0c" + b"\xff" * 40),
        framed(b"\x00\x01\x00\x11" + bytes(MAX_EDITED_BYTES)),
        b"\xff\xff\xff\xfe\x00\x01\x00\x11 and no frame any more",
        framed(b"\x00") + framed(b"\x00\x01\x00\x11"),
    ],
    ids=["older", "newer", "malformed", "too large", "no size", "short"],
)
def test_what_is_not_understood_goes_on_as_it_is(stream: bytes) -> None:
    whole = stream + OTHER
    assert fed(whole, []) == whole
    assert fed(whole, list(range(40))) == whole


def test_a_frame_without_room_for_an_api_key_waits_for_nothing() -> None:
    editor = FetchRackEditor("az1")
    assert editor.feed(EMPTY_TOKEN) == EMPTY_TOKEN
    assert editor.feed(framed(b"abc")) == framed(b"abc")


async def test_a_gateway_that_names_racks_writes_the_zone_into_a_fetch() -> None:
    async with started(GatewayRig(names_rack=True)) as rig:
        reader, writer = await rig.connect()
        fetch = framed(request({0: 5}, replica_id=-1))
        writer.write(OTHER + fetch)
        echoed = await reader.readexactly(len(OTHER) + len(fetch) + len("az2"))
        assert echoed.startswith(OTHER)
        assert scan_fetch_request(echoed[len(OTHER) + 4 :], 17).rack == "az2"
