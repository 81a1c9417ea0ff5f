"""Mutual TLS between agents, with real sockets and certificates made on the spot."""

import asyncio
import datetime
import inspect
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from local_cluster.security.authority import Authority
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_connection import Address, PeerTls, check_certificate, connect_framed, exchange_hellos
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerRefusedError

Test = Callable[..., Coroutine[Any, Any, None]]

A_DAY = datetime.timedelta(days=1)


def on_both_event_loops(test: Test) -> Callable[..., None]:
    """The agent runs on uvloop; asyncio's own loop is the reference."""

    @pytest.mark.parametrize("run", [pytest.param(asyncio.run, id="asyncio"), pytest.param(uvloop.run, id="uvloop")])
    def on_loop(run: Callable[[Coroutine[Any, Any, None]], None], **arguments: Any) -> None:
        run(test(**arguments))

    parameters = [
        inspect.Parameter("run", inspect.Parameter.KEYWORD_ONLY),
        *(
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(test).parameters.values()
        ),
    ]
    on_loop.__signature__ = inspect.Signature(parameters)
    on_loop.__name__ = test.__name__
    return cast(Callable[..., None], on_loop)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def answering(hello: Hello, tls: PeerTls | None) -> AsyncIterator[Address]:
    """An agent's peer listener that answers one hello, checks it, and echoes frames."""
    tasks: list[asyncio.Task[None]] = []

    async def serve(connection: FramedConnection) -> None:
        first = await connection.read_frame()
        if first is not None:
            try:
                check_certificate(connection, Hello.decode(first))
            except PeerRefusedError:
                connection.close()
                return
            connection.write_frame(hello.encode())
            while (frame := await connection.read_frame()) is not None:
                connection.write_frame(frame)
        connection.close()

    def accept() -> FramedConnection:
        return FramedConnection(on_connected=lambda one: tasks.append(asyncio.create_task(serve(one))))

    context = tls.server_context() if tls else None
    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def greet(address: Address, connection: FramedConnection, context: ssl.SSLContext | None) -> None:
    """Connect as broker 2's agent to broker 1's."""
    await connect_framed(address, connection, context)
    await exchange_hellos(connection, hello_of(2), expected_broker_id=1)


def hello_of(broker_id: int) -> Hello:
    return Hello("cluster", broker_id, 1)


@pytest.mark.parametrize("size", [1, 60_000, 3_000_000])
@on_both_event_loops
async def test_frames_of_all_sizes_cross_a_connection_under_mutual_tls(authority: Authority, size: int) -> None:
    async with answering(hello_of(1), authority.tls_for("broker-1")) as address:
        connection = FramedConnection()
        await connect_framed(address, connection, authority.tls_for("broker-2").client_context())
        assert await exchange_hellos(connection, hello_of(2), expected_broker_id=1) == CAPABILITIES
        frame = bytes(range(256)) * (size // 256 + 1)
        connection.write_frame(frame[:size])
        assert await connection.read_frame() == frame[:size]
        connection.close()


@on_both_event_loops
async def test_a_certificate_of_another_broker_is_refused_by_the_side_that_connects(authority: Authority) -> None:
    async with answering(hello_of(1), authority.tls_for("broker-3")) as address:
        connection = FramedConnection()
        await connect_framed(address, connection, authority.tls_for("broker-2").client_context())
        with pytest.raises(PeerRefusedError, match="does not name broker-1"):
            await exchange_hellos(connection, hello_of(2), expected_broker_id=1)
        connection.close()


@on_both_event_loops
async def test_a_rotated_certificate_is_shown_from_the_next_connection_on(authority: Authority) -> None:
    async def serial_shown() -> object:
        connection = FramedConnection()
        await greet(address, connection, authority.tls_for("broker-2").client_context())
        certificate = connection.peer_certificate
        connection.close()
        return certificate and certificate["serialNumber"]

    tls = authority.tls_for("broker-1")
    async with answering(hello_of(1), tls) as address:
        first = await serial_shown()
        assert await serial_shown() == first
        authority.tls_for("broker-1")
        rotated = await serial_shown()
        assert rotated != first
        tls.key_file.write_text("half written")
        assert await serial_shown() == rotated


@on_both_event_loops
async def test_an_expired_certificate_is_refused_by_the_side_that_connects_in_a_clear_line(
    authority: Authority,
) -> None:
    async with answering(hello_of(1), authority.tls_for("broker-1", life=A_DAY)) as address:
        connection = FramedConnection()
        with pytest.raises(ssl.SSLError, match="certificate has expired"):
            await greet(address, connection, authority.tls_for("broker-2").client_context())
        connection.close()
        # Once it is renewed, the next connection succeeds; nothing was started anew.
        authority.tls_for("broker-1")
        renewed = FramedConnection()
        await greet(address, renewed, authority.tls_for("broker-2").client_context())
        renewed.close()


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
@on_both_event_loops
async def test_versions_below_tls_1_2_are_refused(authority: Authority) -> None:
    async with answering(hello_of(1), authority.tls_for("broker-1")) as address:
        for highest, speaks in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            context = authority.tls_for("broker-2").client_context()
            context.minimum_version, context.maximum_version = ssl.TLSVersion.MINIMUM_SUPPORTED, highest
            context.set_ciphers("ALL:@SECLEVEL=0")
            connection = FramedConnection()
            if speaks:
                await greet(address, connection, context)
            else:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await greet(address, connection, context)
            connection.close()


def trusting_anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


NOT_GOOD: dict[str, Callable[[Authority, Authority], ssl.SSLContext | None]] = {
    "no certificate": lambda _own, _other: trusting_anybody(),
    "another authority's": lambda _own, other: other.tls_for("broker-2").client_context(),
    "another broker's": lambda own, _other: own.tls_for("broker-3").client_context(),
    "expired": lambda own, _other: own.tls_for("broker-2", life=A_DAY).client_context(),
    "no TLS": lambda _own, _other: None,
}


@pytest.mark.parametrize("shown", NOT_GOOD)
@on_both_event_loops
async def test_who_has_no_certificate_of_ours_is_not_answered(authority: Authority, tmp_path: Path, shown: str) -> None:
    """The side that listens refuses it; the one that connects trusts anybody here."""
    (tmp_path / "other").mkdir()
    context = NOT_GOOD[shown](authority, Authority(tmp_path / "other"))
    if context is not None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    async with answering(hello_of(1), authority.tls_for("broker-1")) as address:
        refused = pytest.raises((ssl.SSLError, ConnectionError))  # at the handshake, or in TLS 1.3 at the first read
        with closing(FramedConnection()) as connection, refused:
            await greet(address, connection, context)
