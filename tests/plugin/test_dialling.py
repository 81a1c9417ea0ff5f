"""A host with several addresses is reached while one of them answers."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from plugin.clients.dialling import connect
from plugin.clients.loop_connections import LoopConnections, RequestLimits
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_connection import Address, connect_framed


@contextlib.contextmanager
def silent_address() -> Iterator[tuple[str, int]]:
    """Its queue of connections is full, so the kernel answers nothing to who connects."""
    with contextlib.ExitStack() as open_ones:
        server = open_ones.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            one = open_ones.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(server.getsockname())
        yield server.getsockname()


@pytest.fixture
def two_addresses(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """Where the second address of the host `kafka-1` listens; the first one is silent."""
    with silent_address() as silent, socket.create_server(("127.0.0.1", 0)) as answering:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", where) for where in (silent, answering.getsockname())]

        async def getaddrinfo(_loop: object, _host: str, _port: int, **_: Any) -> list[Any]:
            return found

        monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
        yield answering.getsockname()


async def test_a_peer_whose_first_address_is_silent_is_reached_by_its_second(two_addresses: tuple[str, int]) -> None:
    connection = await connect_framed(Address("kafka-1", 1), FramedConnection(), timeout_s=0.4)
    assert connection.is_writable
    connection.abort()


async def test_a_store_whose_first_address_is_silent_is_reached_by_its_second(two_addresses: tuple[str, int]) -> None:
    limits = RequestLimits(connect_timeout=0.2, read_timeout=5, kept=2, attempt_timeout=20)
    connections = LoopConnections("http://kafka-1:1/", None, limits, asyncio.get_running_loop())
    await connections.open_some(1)
    connections.close()
    await asyncio.sleep(0)


async def test_where_no_address_answers_the_last_error_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await connect(asyncio.Protocol, "127.0.0.1", port, 5.0)


async def test_whoever_gives_up_leaves_no_socket_behind() -> None:
    with silent_address() as (host, port), pytest.raises(TimeoutError):
        await connect(asyncio.Protocol, host, port, 0.05)
