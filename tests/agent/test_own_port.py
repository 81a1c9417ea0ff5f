"""A broker that dials itself where it advertises itself reaches its own listener, wherever that is."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent.wiring.peering import is_forwarded
from gateway import client_port
from gateway.client_listeners import ClientAccess
from gateway.client_port import PassingPort
from gateway.metrics import GatewayMetrics
from kafka_log.broker_files.server_properties import parse_broker_properties
from replication.wire.peer_connection import Address
from tests.replication.test_peer_tls import on_both_event_loops

PATIENCE_S = 30
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1000):
        writer.write(chunk)
    writer.close()


@asynccontextmanager
async def forwarding(broker: Address) -> AsyncIterator[PassingPort]:
    port = PassingPort(broker, ClientAccess(10, 10, GatewayMetrics(CollectorRegistry())))
    await port.open(Address("127.0.0.1", 0))
    try:
        yield port
    finally:
        await port.stop()


@asynccontextmanager
async def forwarding_to(serve: Serve) -> AsyncIterator[PassingPort]:
    """For so long as a test may take, to a broker that serves like this."""
    async with (
        asyncio.timeout(PATIENCE_S),
        await asyncio.start_server(serve, "127.0.0.1", 0) as broker,
        forwarding(Address(*broker.sockets[0].getsockname())) as port,
    ):
        yield port


@on_both_event_loops
async def test_bytes_pass_as_they_are_until_either_side_closes() -> None:
    async with forwarding_to(_echo) as port:
        reader, writer = await asyncio.open_connection(port.address.host, port.address.port)
        sent = bytes(range(256)) * 1000
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


class Pouring:
    """A broker that sends without end."""

    sent = 0

    async def serve(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
                self.sent += 1 << 16
        writer.transport.abort()

    async def until_nothing_is_taken(self) -> None:
        """Wait until sockets' buffers are full."""
        before = -1
        while before != self.sent or not self.sent:
            before = self.sent
            await asyncio.sleep(0.2)


@on_both_event_loops
async def test_a_slow_client_slows_the_broker_down_and_fills_no_memory() -> None:
    pouring = Pouring()
    async with forwarding_to(pouring.serve) as port:
        reader, writer = await asyncio.open_connection(port.address.host, port.address.port)
        await pouring.until_nothing_is_taken()
        before = pouring.sent
        assert before < 32 << 20
        await reader.readexactly(before + (1 << 20))
        assert pouring.sent > before
        writer.transport.abort()


@on_both_event_loops
async def test_a_client_that_reads_nothing_keeps_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_port, "_FLUSH_S", 0.01)
    pouring = Pouring()
    async with asyncio.timeout(PATIENCE_S), await asyncio.start_server(pouring.serve, "127.0.0.1", 0) as broker:
        before = len(os.listdir("/proc/self/fd"))
        async with forwarding(Address(*broker.sockets[0].getsockname())) as port:
            _, writer = await asyncio.open_connection(port.address.host, port.address.port)
            await pouring.until_nothing_is_taken()
        held = before + 2
        while held > before + 1:  # the client's own
            await asyncio.sleep(0.01)
            held = len(os.listdir("/proc/self/fd"))
        writer.transport.abort()


@on_both_event_loops
async def test_a_client_keeps_no_slot_that_stays_behind_the_broker_or_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = asyncio.Event()

    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.set()
        writer.close()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.set()
        await Pouring().serve(reader, writer)

    monkeypatch.setattr(client_port, "_READ_S", 0.01)
    monkeypatch.setattr(client_port, "_FLUSH_S", 0.01)
    for serve in (close, pour):
        served.clear()
        async with forwarding_to(serve) as port:
            _, writer = await asyncio.open_connection(port.address.host, port.address.port)
            await served.wait()
            while port.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            writer.transport.abort()


@on_both_event_loops
async def test_the_end_of_one_direction_leaves_the_other_open() -> None:
    async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read())[::-1])
        writer.close()

    async with forwarding_to(answer_at_the_end) as port:
        reader, writer = await asyncio.open_connection(port.address.host, port.address.port)
        writer.write(b"question")
        writer.write_eof()
        assert await reader.read() == b"noitseuq"
        writer.close()


@on_both_event_loops
async def test_a_connection_ends_if_the_broker_is_away_and_when_the_agent_stops() -> None:
    async with asyncio.timeout(PATIENCE_S), await asyncio.start_server(_echo, "127.0.0.1", 0) as broker:
        where = Address(*broker.sockets[0].getsockname())
        async with forwarding(where) as port:
            held, writer = await asyncio.open_connection(port.address.host, port.address.port)
            writer.write(b"x")
            assert await held.readexactly(1) == b"x"
        assert await held.read() == b""
        writer.close()
    async with asyncio.timeout(PATIENCE_S), forwarding(where) as port:
        reader, writer = await asyncio.open_connection(port.address.host, port.address.port)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("listeners", "advertised", "forwards"),
    [
        ("PLAIN://:9092,REPLICATION://0.0.0.0:9091", "REPLICATION://wal-7.kafka.svc:19907", True),
        ("PLAIN://:9092,REPLICATION://0.0.0.0:9091", "REPLICATION://pod.kafka.svc:9091", False),
        ("PLAIN://:9092,REPLICATION://127.0.0.1:19907", "REPLICATION://127.0.0.1:19907", False),
        ("PLAIN://:19907,REPLICATION://0.0.0.0:9091", "REPLICATION://wal-7.kafka.svc:19907", False),
    ],
)
def test_only_a_port_that_the_broker_advertises_and_leaves_free_is_forwarded(
    listeners: str, advertised: str, forwards: bool
) -> None:
    raw = {
        "node.id": "7",
        "listeners": listeners,
        "advertised.listeners": f"PLAIN://pod:9092,{advertised}",
        "inter.broker.listener.name": "REPLICATION",
        "listener.security.protocol.map": "PLAIN:PLAINTEXT,REPLICATION:PLAINTEXT",
    }
    assert is_forwarded(parse_broker_properties(raw, Path("server.properties")), 19907) is forwards
