"""Clients of a zone reach brokers of other zones, their frames as they are, and nothing else."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from gateway.client_listeners import FULL_S
from gateway.client_protocol import decode_response, decode_zone, encode_response
from local_cluster.security.authority import Authority
from metadata_topic.records.usage_record import ClientZoneUsage
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_connection import listening_context
from replication.wire.peer_protocol import CAPABILITIES, NO_BROKER_SERVED, Hello, PeerCapabilities
from tests.gateway.gateway_rig import PATIENCE_S, GatewayRig, read_all, started
from tests.replication.test_peer_tls import on_both_event_loops
from tests.replication.two_agents import framed

MEGABYTES = framed(b"\0\x63\0\0" * 2 + bytes(range(256)) * 4096 * 8)
"""A request of an unknown API, and its answer."""
SHORT = framed(b"x")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def between_agents(authority: Authority) -> dict[str, Any]:
    return {
        "peer_tls": authority.tls_for("broker-2").client_context,
        "door_tls": authority.tls_for("broker-1").server_context,
    }


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "mutual TLS between agents"])
@on_both_event_loops
async def test_frames_pass_as_they_are_in_both_directions(authority: Authority, is_encrypted: bool) -> None:
    async with started(GatewayRig(**between_agents(authority) if is_encrypted else {})) as rig:
        reader, writer = await rig.connect()
        writer.write(MEGABYTES)
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readexactly(len(MEGABYTES)) == MEGABYTES
        size = len(MEGABYTES)
        for direction in ("to_broker", "to_client"):
            await rig.until(lambda to=direction: rig.gateway_bytes(to) == rig.broker_bytes(to) == size)  # type: ignore[misc]
        assert rig.traffic.own == ClientZoneUsage("", size, size, size, size, untold_bytes=size)
        assert rig.connections("gateway") == rig.connections("broker") == 1
        writer.close()
        await rig.until(lambda: rig.connections("gateway") == rig.connections("broker") == 0)


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "mutual TLS between agents"])
@on_both_event_loops
async def test_what_a_broker_sent_before_it_closed_still_reaches_the_client(
    authority: Authority, is_encrypted: bool
) -> None:
    async def say_all_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(SHORT))
        writer.write(MEGABYTES)
        await writer.drain()

    rig = GatewayRig(say_all_and_close, **between_agents(authority) if is_encrypted else {})
    async with started(rig):
        reader, writer = await rig.connect()
        writer.write(SHORT)
        assert await read_all(reader) == MEGABYTES


@on_both_event_loops
async def test_a_client_that_goes_takes_its_connection_to_the_broker_with_it() -> None:
    ended = asyncio.Event()

    async def wait_for_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            ended.set()

    async with started(GatewayRig(serve=wait_for_the_end)) as rig:
        _reader, writer = await rig.connect()
        await rig.until(lambda: rig.accepted == 1)
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()


async def test_clients_frames_pass_as_they_are_between_agents_of_two_protocol_versions() -> None:
    routed = PeerCapabilities.CLIENTS | PeerCapabilities.ROUTED_PRODUCE
    async with started(GatewayRig(asked=Hello("cluster", 2, 22, routed, version=2), granted=routed)) as rig:
        reader, writer = await rig.connect()
        writer.write(MEGABYTES)
        assert await reader.readexactly(len(MEGABYTES)) == MEGABYTES


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"granted": CAPABILITIES, "has_handler": False}, "serves no clients"),
        ({"zones": ("az3",)}, "no listener for clients of zone az2"),
    ],
    ids=["gateway off", "zone without a listener"],
)
async def test_an_agent_that_does_not_let_clients_in_closes_them_and_says_why(
    changes: dict[str, Any], told: str
) -> None:
    async with started(GatewayRig(**changes)) as rig:
        reader, _writer = await rig.connect()
        assert await read_all(reader) == b""
        assert told in rig.gateway.unreached[1]
        assert rig.refused("peer_refused") == 1
        assert rig.accepted == 0, "the broker was not dialled"


async def test_a_broker_or_an_agent_that_is_away_closes_clients_and_is_told_of() -> None:
    async with started(GatewayRig()) as rig:
        await rig.close_broker()
        reader, _writer = await rig.connect()
        assert await read_all(reader) == b""
        assert "broker 1 does not answer" in rig.gateway.unreached[1]
        assert rig.refused("broker_unreachable", "broker") == 1
        await rig.agent.stop()
        reader, _writer = await rig.connect()
        assert await read_all(reader) == b""
        assert rig.refused("peer_unreachable") == 1


async def test_a_broker_that_is_reached_again_is_not_told_of_any_more() -> None:
    async with started(GatewayRig(limits=(2, 2))) as rig:
        rig.gateway.unreached[1] = "it was away"
        reader, writer = await rig.connect()
        writer.write(SHORT)
        assert await reader.readexactly(len(SHORT)) == SHORT
        assert rig.gateway.unreached == {}


async def test_more_connections_than_the_limit_are_closed_at_once() -> None:
    async with started(GatewayRig(limits=(2, 2))) as rig:
        streams = [await rig.connect() for _ in range(2)]
        await rig.until(lambda: rig.connections("gateway") == 2)
        reader, _writer = await rig.connect()
        assert await read_all(reader) == b""
        assert rig.refused("too_many_connections") == 1
        streams[0][1].close()
        await rig.until(lambda: rig.connections("gateway") == 1)
        reader, writer = await rig.connect()
        writer.write(SHORT)
        assert await reader.readexactly(len(SHORT)) == SHORT


@on_both_event_loops
async def test_tls_of_clients_ends_at_the_gateway(authority: Authority) -> None:
    heard = b""

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        heard = await reader.readexactly(9)
        writer.write(framed(b"world"))
        await writer.drain()

    files = authority.tls_for("gateway.az2")

    rig = GatewayRig(hear, client_tls=lambda: listening_context(files.certificate_file, files.key_file, None))
    async with started(rig):
        trusting = ssl.create_default_context(cafile=str(authority.file))
        reader, writer = await rig.connect(trusting, "gateway.az2")
        writer.write(framed(b"hello"))
        assert await read_all(reader) == framed(b"world")
        assert heard == framed(b"hello")
        # Who speaks no TLS gets no further than the gateway.
        reader, writer = await rig.connect()
        writer.write(b"hello, in plain bytes, for as long as a handshake may be")
        assert b"world" not in await read_all(reader)
        await rig.until(lambda: rig.refused("client_tls") == 1)
        assert rig.accepted == 1


@on_both_event_loops
async def test_a_gateway_that_stops_gives_clients_what_was_received_and_closes_them() -> None:
    async with started(GatewayRig()) as rig:
        reader, writer = await rig.connect()
        writer.write(SHORT)
        async with asyncio.timeout(PATIENCE_S):
            await reader.readexactly(len(SHORT))
        where = rig.gateway.addresses[1]
        await rig.gateway.stop()
        assert await read_all(reader) == b""
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(where.host, where.port)


def test_a_message_that_is_none_is_refused() -> None:
    with pytest.raises(MalformedFrameError):
        decode_zone(b"\xff\xfe")
    with pytest.raises(MalformedFrameError):
        decode_zone(bytes(300))
    for answer in (b"", b"\x02", b"\x00told", b"\x01"):
        with pytest.raises(MalformedFrameError):
            decode_response(answer)
    assert decode_response(encode_response("why")) == "why"
    assert decode_response(encode_response()) == ""


async def test_a_broker_that_is_not_reached_is_told_to_neighbours_until_it_is_whether_or_not_clients_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.zone_gateway._PROBE_S", 0.005)
    async with started(GatewayRig()) as rig:
        assert rig.gateway.unserved() == ()
        where = rig.agent.addresses[0]
        await rig.agent.stop()
        reader, _ = await rig.connect()
        assert await read_all(reader) == b""
        assert rig.gateway.unserved() == (1,)
        probing = asyncio.create_task(rig.gateway.probe())
        await rig.agent.start(where, None)
        await rig.until(lambda: rig.gateway.unserved() == ())
        assert rig.gateway.unreached == {}
        probing.cancel()


async def test_a_gateway_without_room_for_another_client_tells_its_neighbours_for_a_while() -> None:
    async with started(GatewayRig(limits=(2, 2))) as rig:
        _, first = await rig.connect()
        await rig.until(lambda: rig.connections("gateway") == 1)
        assert rig.gateway.unserved() == ()
        _, second = await rig.connect()
        await rig.until(lambda: rig.gateway.unserved() == NO_BROKER_SERVED)
        loop = asyncio.get_running_loop()
        for client in (first, second):
            client.close()
        await rig.until(lambda: rig.connections("gateway") == 0)
        assert rig.gateway.unserved() == NO_BROKER_SERVED
        now = loop.time
        loop.time = lambda: now() + FULL_S  # type: ignore[method-assign]
        assert rig.gateway.unserved() == ()
