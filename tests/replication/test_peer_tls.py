"""Mutual TLS between agents, with real sockets and certificates made on the spot."""

import asyncio
import datetime
import inspect
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from replication.framed_connection import FramedConnection
from replication.peer_connection import Address, PeerTls, check_certificate, connect_framed, exchange_hellos
from replication.peer_protocol import LINK_VERSION, Hello, PeerRefusedError

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Authority:
    """Signs certificates for agents."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self.file = directory / "ca.pem"
        certificate = self._builder(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.file.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def tls_for(self, name: str) -> PeerTls:
        """Files for an agent with this name in its certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an agent")])
        certificate = self._builder(subject, key.public_key()).add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
        )
        certificate_file, key_file = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        certificate_file.write_bytes(
            certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return PeerTls(certificate_file, key_file, self.file)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW)
            .not_valid_after(NOW + datetime.timedelta(days=36_500))
        )


Test = Callable[..., Coroutine[Any, Any, None]]


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
    on_loop.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    on_loop.__name__ = test.__name__
    return on_loop


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


async def greet(address: Address, connection: FramedConnection, context: ssl.SSLContext) -> None:
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
        peer, link_version = await exchange_hellos(connection, hello_of(2), expected_broker_id=1)
        assert (peer.broker_id, link_version) == (1, LINK_VERSION)
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
async def test_a_certificate_of_another_broker_is_refused_by_the_side_that_listens(authority: Authority) -> None:
    async with answering(hello_of(1), authority.tls_for("broker-1")) as address:
        connection = FramedConnection()
        await connect_framed(address, connection, authority.tls_for("broker-3").client_context())
        with pytest.raises(ConnectionError):
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


@pytest.mark.parametrize(
    "context_of",
    [
        pytest.param(lambda _tmp: ssl._create_unverified_context(), id="no certificate"),
        pytest.param(
            lambda tmp: Authority(tmp).tls_for("broker-2").client_context(), id="certificate of another authority"
        ),
    ],
)
@on_both_event_loops
async def test_who_has_no_certificate_of_ours_is_not_answered(
    authority: Authority, tmp_path: Path, context_of: Callable[[Path], ssl.SSLContext]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    context = context_of(other)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with answering(hello_of(1), authority.tls_for("broker-1")) as address:
        connection = FramedConnection()
        with pytest.raises((ssl.SSLError, ConnectionError)):  # at the handshake, or in TLS 1.3 at the first read
            await greet(address, connection, context)
        connection.close()


@on_both_event_loops
async def test_a_listener_under_tls_does_not_answer_plain_connections(authority: Authority) -> None:
    async with answering(hello_of(1), authority.tls_for("broker-1")) as address:
        connection = FramedConnection()
        await connect_framed(address, connection)
        with pytest.raises(ConnectionError):
            await exchange_hellos(connection, hello_of(2), expected_broker_id=1)
        connection.close()
