"""Clients that were told one address for all zones are led to the broker's listener for their own."""

import asyncio
import ipaddress
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from prometheus_client import CollectorRegistry

from gateway.client_listeners import ClientAccess
from gateway.client_port import BrokerListener, FramePort
from gateway.client_zone import ZoneRules
from gateway.metrics import GatewayMetrics
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_connection import Address
from tests.replication.two_agents import framed, read_frame

PATIENCE_S = 60
RULES = ZoneRules(
    "az1",
    ("az1", "az2", "az2-old", "az3"),
    {
        ipaddress.ip_network("10.2.0.0/16"): "az2",
        ipaddress.ip_network("10.2.9.0/24"): "az3",
        ipaddress.ip_network("fd00::/16"): "az2",
        ipaddress.ip_network("10.9.0.0/16"): "elsewhere",
    },
)


def first_request(client_id: str | None, version: int = 3) -> bytes:
    request = ApiVersionsRequest(version=version, client_software_name="test", client_software_version="1")
    request.with_header(1, client_id)  # null is a client id, too
    return bytes(request.encode(version=version, header=True, framed=True))


@pytest.mark.parametrize(
    ("client_id", "address", "zone"),
    [
        ("", "10.1.0.1", "az1"),
        ("producer-1", "10.2.0.1", "az2"),
        ("producer-1", "10.2.9.1", "az3"),
        ("producer-1", "::ffff:10.2.0.1", "az2"),
        ("producer-1", "fd00::5%eth0", "az2"),
        ("producer-1", "10.9.0.1", "az1"),
        ("producer-1", "no address", "az1"),
        ("zone=az3", "10.2.0.1", "az3"),
        ("orders,zone=az3", "10.2.0.1", "az3"),
        ("zone=az2-StreamThread-1-consumer", "", "az2"),
        ("zone=az2-old-StreamThread-1-consumer", "", "az2-old"),
        ("zone=az31", "10.2.0.1", "az2"),
        ("zone=unknown", "10.2.0.1", "az2"),
        ("zone=", "10.2.0.1", "az2"),
        ("az3", "", "az1"),
    ],
)
def test_a_clients_zone_is_what_it_says_else_where_it_is_else_that_of_whom_it_asks(
    client_id: str, address: str, zone: str
) -> None:
    assert RULES.zone_of(client_id, address) == zone


BUDGETS = MemoryBudget(1 << 20), MemoryBudget(1 << 20)


class Rig:
    """A broker's listeners, which say whose they are, and answer each request with it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.greeted: list[str] = []

    @asynccontextmanager
    async def started(self, timeout_s: float = PATIENCE_S) -> AsyncIterator[FramePort]:
        servers = {zone: await asyncio.start_server(self._listener(zone), "127.0.0.1", 0) for zone in RULES.zones}
        at = {zone: Address(*one.sockets[0].getsockname()[:2]) for zone, one in servers.items()}
        where = {zone: BrokerListener(zone, one) for zone, one in at.items()}
        access = ClientAccess(10, 10, GatewayMetrics(self.registry), connect_timeout_s=timeout_s)
        self.servers, self.port = servers, FramePort(1, where, BUDGETS, access, rules=RULES)
        await self.port.open(Address("127.0.0.1", 0))
        try:
            yield self.port
        finally:
            await self.port.stop()
            for server in servers.values():
                server.close()

    def _listener(self, zone: str):  # type: ignore[no-untyped-def]
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.greeted.append(zone)
            while (frame := await read_frame(reader)) is not None:
                writer.write(framed(frame[4:8] + frame))
            writer.close()

        return serve

    def refused(self, reason: str) -> float:
        labels = {"side": "gateway", "reason": reason}
        return self.registry.get_sample_value("remote_wal_gateway_refused_total", labels) or 0.0

    def connections(self, zone: str) -> float:
        labels = {"side": "bootstrap", "zone": zone, "broker": "1"}
        return self.registry.get_sample_value("remote_wal_gateway_connections", labels) or 0.0


async def connect(port: FramePort) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(port.address.host, port.address.port)


@pytest.mark.parametrize("in_pieces", [False, True])
async def test_a_client_reaches_the_listener_for_its_zone_and_frames_pass_as_they_are(in_pieces: bool) -> None:
    rig = Rig()
    request = MetadataRequest(version=12, topics=[])
    request.with_header(2, "x")
    asked = bytes(request.encode(version=12, header=True)), struct.pack(">hhih", 99, 1, 3, -1) + b"?" * 90000
    said = first_request("orders,zone=az3") + b"".join(map(framed, asked))
    async with rig.started() as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await connect(port)
        for piece in [said[:3], said[3:13], said[13:20], said[20:]] if in_pieces else [said]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01 if in_pieces else 0)
        for frame in (first_request("orders,zone=az3")[4:], *asked):
            assert await read_frame(reader) == frame[4:8] + frame
        assert rig.greeted == ["az3"]
        assert rig.connections("az3") == 1
        writer.close()


async def test_who_says_nothing_is_not_waited_for() -> None:
    rig = Rig()
    async with rig.started(timeout_s=0.05) as port, asyncio.timeout(PATIENCE_S):
        reader, writer = await connect(port)
        writer.write(b"\0\0\0")
        assert await reader.read() == b""
        assert (rig.refused("said_nothing"), rig.greeted) == (1, [])
        writer.close()


async def test_who_goes_before_it_says_anything_and_a_listener_that_is_away_end_nothing_else() -> None:
    rig = Rig()
    async with rig.started() as port, asyncio.timeout(PATIENCE_S):
        _, gone = await connect(port)
        gone.close()
        rig.servers["az2"].close()
        reader, writer = await connect(port)
        writer.write(first_request("zone=az2"))
        assert await reader.read() == b""
        assert rig.refused("broker_unreachable") == 1
        writer.close()
        reader, writer = await connect(port)
        writer.write(first_request(None))
        await reader.readexactly(1)
        assert rig.greeted == ["az1"]
        writer.close()
        reader, writer = await connect(port)
        writer.write(framed(b"no request"[:7]))
        await reader.readexactly(1)
        assert rig.greeted == ["az1", "az1"]
        writer.close()
        reader, writer = await connect(port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await reader.read() == b""
        assert rig.greeted == ["az1", "az1"]
        writer.close()
