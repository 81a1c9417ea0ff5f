"""A host with several addresses is reached while one of them answers."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from plugin.clients.dialling import connect
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


@pytest.fixture
def many_addresses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses of the host `store-1`: none, until a test adds some."""
    found: list[tuple[str, int]] = []

    async def getaddrinfo(_loop: object, _host: str, _port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", where) for where in found]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return found


async def test_of_many_addresses_those_that_were_not_tried_are_tried_next(
    many_addresses: list[tuple[str, int]],
) -> None:
    with contextlib.ExitStack() as open_ones:
        many_addresses += [open_ones.enter_context(silent_address()) for _ in range(4)]
        answering = open_ones.enter_context(socket.create_server(("127.0.0.1", 0)))
        many_addresses.append(answering.getsockname())
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await connect(asyncio.Protocol, "store-1", 1, 0.05)
        connection = await connect(_Told, "store-1", 1, 5.0)
        assert connection.peer == answering.getsockname()


async def test_addresses_that_refuse_at_once_take_no_time_from_others(many_addresses: list[tuple[str, int]]) -> None:
    for _ in range(4):
        with socket.create_server(("127.0.0.1", 0)) as server:
            many_addresses.append(server.getsockname())
    with socket.create_server(("127.0.0.1", 0)) as answering:
        many_addresses.append(answering.getsockname())
        connection = await connect(_Told, "store-2", 1, 5.0)
        assert connection.peer == answering.getsockname()


async def test_each_of_many_addresses_has_half_of_the_time(
    many_addresses: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float | None] = []
    real = asyncio.timeout

    def timeout(delay: float | None) -> asyncio.Timeout:
        given.append(delay)
        return real(delay)

    monkeypatch.setattr(asyncio, "timeout", timeout)
    with socket.create_server(("127.0.0.1", 0)) as answering:
        host, port = answering.getsockname()
        many_addresses += [(f"127.0.0.{last}", port) for last in range(2, 9)] + [(host, port)]
        await connect(_Told, "store-3", 1, 10.0)
    assert given == [10.0, *[5.0] * 7, None]


class _Told(asyncio.Protocol):
    """Tells to whom it is connected, and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = transport.get_extra_info("peername")
        transport.close()


async def test_a_peer_whose_first_address_is_silent_is_reached_by_its_second(two_addresses: tuple[str, int]) -> None:
    connection = await connect_framed(Address("kafka-1", 1), FramedConnection(), timeout_s=0.4)
    assert connection.is_writable
    connection.abort()


async def test_where_no_address_answers_the_last_error_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await connect(asyncio.Protocol, "127.0.0.1", port, 5.0)


async def test_whoever_gives_up_leaves_no_socket_behind() -> None:
    with silent_address() as (host, port), pytest.raises(TimeoutError):
        await connect(asyncio.Protocol, host, port, 0.05)
