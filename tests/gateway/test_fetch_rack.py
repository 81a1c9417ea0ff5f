"""Consumers that say no zone are given their gateway's, and nothing else of their frames is touched."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from kafka.protocol.consumer import FetchRequest

from gateway.serve.fetch_frames import MAX_EDITED_BYTES, with_zone
from replication.wire.fetch_frame import CONSUMER_REPLICA_ID, scan_fetch_request
from tests.gateway.gateway_rig import GatewayRig, started
from tests.replication.fetch_frames import request, requests
from tests.replication.two_agents import framed, read_frame


@given(requests())
def test_a_consumers_fetch_says_the_zone_and_is_else_what_it_was(told: tuple[int, Any, bytes]) -> None:
    version, _message, frame = told
    edited, before = with_zone(frame, "az1"), scan_fetch_request(frame, version)
    if before.rack or before.replica_id != CONSUMER_REPLICA_ID:
        assert edited == frame
        return
    # Kafka's own message, by another codec, is the same but for its rack.
    was = FetchRequest.decode(frame, version=version, header=True)
    now = FetchRequest.decode(bytes(edited), version=version, header=True)
    assert now.rack_id == "az1"
    now.rack_id = was.rack_id
    assert now == was


@pytest.mark.parametrize("version", range(12, 19))
def test_a_consumer_is_given_the_zone_and_a_follower_is_not(version: int) -> None:
    consumer = request({0: 5}, version=version, replica_id=-1)
    follower = request({0: 5}, version=version, replica_id=2)
    assert scan_fetch_request(with_zone(consumer, "az1"), version).rack == "az1"
    assert with_zone(follower, "az1") == follower


def test_a_consumer_that_says_its_rack_keeps_it() -> None:
    named = with_zone(request({0: 5}, replica_id=-1), "az9")
    assert scan_fetch_request(named, 17).rack == "az9"
    assert with_zone(named, "az1") == named


@pytest.mark.parametrize(
    "frame",
    [
        b"\x00\x01\x00\x0b" + bytes(40),
        b"\x00\x01\x00\x13" + bytes(40),
        b"\x00\x01\x00\x0c" + b"\xff" * 40,
        request({0: 5}, replica_id=-1) + bytes(MAX_EDITED_BYTES),
        b"\x00\x03\x00\x0c\x00\x00\x00\x01some metadata request",
        b"\x00",
        b"",
    ],
    ids=["older", "newer", "malformed", "too large", "another API", "short", "empty"],
)
def test_what_is_not_understood_goes_on_as_it_is(frame: bytes) -> None:
    assert with_zone(frame, "az1") == frame


async def test_a_gateway_that_names_racks_writes_the_zone_into_a_fetch() -> None:
    async def hear(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        heard.append(await read_frame(reader))

    heard: list[bytes | None] = []
    async with started(GatewayRig(hear, names_rack=True)) as rig:
        _reader, writer = await rig.connect()
        writer.write(framed(request({0: 5}, replica_id=-1)))
        await rig.until(lambda: bool(heard))
    assert scan_fetch_request(heard[0] or b"", 17).rack == "az2"
