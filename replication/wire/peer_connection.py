"""Connects to other agents: where they are, TCP or mutual TLS, and the hellos.

`KnownPeers` has their addresses: those of the configured list, and those that agents registered. If a broker has both,
the listed address is tried first, because it may be a special route. An address that answered is kept while it fails
(agents restart) until the agent registers another one. An address that never answered gives way to the other.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import structlog

from kafka_log.crc32c import Buffer
from plugin.clients.dialling import connect
from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_protocol import Hello, PeerCapabilities, PeerRefusedError, agree

log = structlog.get_logger(__name__)

HELLO_TIMEOUT_S = 5.0
BROKER_ROLES = ("broker",)
GATEWAY_ROLES = ("gateway", "broker")
"""The certificate roles that may connect for clients. A gateway with a certificate of its own can do nothing else."""
_CLUSTER = "cluster-"


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port."""

    host: str
    port: int
    is_shared: bool = False
    """Whether another process of this user may listen there as well."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Listener = Address | socket.socket
"""An address to listen on, or a listening socket that a service manager has handed over."""


@dataclass(frozen=True, slots=True)
class PeerTls:
    """PEM files for mutual TLS between agents.

    A certificate must name `broker-<id>`, as DNS name or common name, or `gateway-<id>` if it is for clients alone.
    """

    certificate_file: Path
    key_file: Path
    ca_file: Path

    def client_context(self) -> ssl.SSLContext:
        """The TLS context for connections to other agents. The files are read at each use, so that new ones take
        effect."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(self.ca_file))
        context.check_hostname = False  # the certificate is checked against the broker id instead
        return _loaded(context, self.certificate_file, self.key_file)

    def server_context(self) -> ssl.SSLContext:
        return listening_context(self.certificate_file, self.key_file, self.ca_file)


def listening_context(certificate_file: Path, key_file: Path, ca_file: Path | None) -> ssl.SSLContext:
    """Return the TLS context of a listener; with `ca_file`, clients must show a certificate of that authority.

    The files are read at each handshake, so that rotated ones take effect. If they cannot be read then (only one is
    replaced so far), the last good ones stay in use.
    """

    def load() -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca_file) if ca_file else None)
        if ca_file is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return _loaded(context, certificate_file, key_file)

    newest = load()

    def take_newest(handshake: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _old: ssl.SSLContext) -> None:
        nonlocal newest
        try:
            newest = load()
        except (OSError, ssl.SSLError) as error:
            log.warning("certificate_unreadable", file=str(certificate_file), error=str(error))
        handshake.context = newest

    context = load()
    context.sni_callback = take_newest
    return context


def _loaded(context: ssl.SSLContext, certificate_file: Path, key_file: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate_file, key_file)
    return context


async def connect_framed(
    address: Address,
    connection: FramedConnection,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = 5.0,
    server_name: str | None = None,
) -> FramedConnection:
    """Connect within `timeout_s` to the first of the host's addresses that accepts.

    `server_name` is the name that the certificate must have, if it differs from the host.

    Raises OSError (TimeoutError included) or ssl.SSLError.
    """
    return await connect(lambda: connection, address.host, address.port, timeout_s, tls, server_name)


async def exchange_hellos(
    connection: FramedConnection,
    own: Hello,
    expected_broker_id: int,
    heard: Callable[[Hello, Hello], None] = lambda _own, _peer: None,
) -> PeerCapabilities:
    """Say hello as the connecting side, and return the capabilities that both agents have.

    `heard` gets both hellos, our own first, once the peer has proved to be the expected one.

    Raises PeerRefusedError when another broker's agent or another cluster responds, ConnectionError when no agent does.
    """
    connection.write_frame(own.encode())
    async with asyncio.timeout(HELLO_TIMEOUT_S):
        answer = await connection.read_frame()
    if answer is None:
        raise ConnectionResetError("the peer closed the connection instead of a hello")
    heard(own, check_hello(connection, own, expected_broker_id, answer))
    return connection.agreed


def check_hello(connection: FramedConnection, own: Hello, expected_broker_id: int, answer: Buffer) -> Hello:
    """Parse and check the hello that the dialled side sent (`answer`), and set what both agreed on.

    Raises PeerRefusedError when it is not the expected broker's agent, of our cluster.
    """
    try:
        peer = Hello.decode(answer)
    except MalformedFrameError as error:
        raise PeerRefusedError(str(error)) from error
    if peer.broker_id != expected_broker_id:
        raise PeerRefusedError(f"broker {peer.broker_id}'s agent answers where broker {expected_broker_id}'s should")
    check_certificate(connection, peer)
    connection.agreed = agree(own, peer)
    return peer


def check_certificate(connection: FramedConnection, peer: Hello, roles: tuple[str, ...] = BROKER_ROLES) -> None:
    """Under TLS, check that the peer's certificate covers what the peer claims to be.

    It must name the broker in one of these roles. If it names clusters, it is valid only for those; `agree` compares
    the peer's cluster with our own. Raises PeerRefusedError.
    """
    certificate = connection.peer_certificate
    if certificate is None:
        return
    names = _names(certificate)
    wanted = [f"{role}-{peer.broker_id}" for role in roles]
    if names.isdisjoint(wanted):
        raise PeerRefusedError(f"the certificate does not name {' or '.join(wanted)}")
    clusters = {name for name in names if name.startswith(_CLUSTER)}
    if clusters and _CLUSTER + peer.cluster_id not in clusters:
        raise PeerRefusedError(f"the certificate is for {', '.join(sorted(clusters))}, not {_CLUSTER}{peer.cluster_id}")


def _names(certificate: dict[str, object]) -> set[str]:
    alternative = cast(tuple[tuple[str, str], ...], certificate.get("subjectAltName", ()))
    subject = cast(tuple[tuple[tuple[str, str], ...], ...], certificate.get("subject", ()))
    names = {value for kind, value in alternative if kind == "DNS"}
    return names | {value for attribute in subject for key, value in attribute if key == "commonName"}


class KnownPeers(Mapping[int, Address]):
    """The address to dial next, by broker id. Use it in the event loop."""

    def __init__(self, listed: Mapping[int, Address]) -> None:
        self._listed = dict(listed)
        self._registered: dict[int, Address] = {}
        self._answered: dict[int, Address] = {}
        self._failures: dict[int, int] = {}

    def learned(self, registered: Mapping[int, Address]) -> None:
        """Replace the registered addresses by those of all agents that are registered now."""
        for broker_id in self._registered.keys() | registered.keys():
            if self._registered.get(broker_id) != registered.get(broker_id):
                self._answered.pop(broker_id, None)
        self._registered = dict(registered)

    def answered(self, broker_id: int, address: Address) -> None:
        """Record that the broker's agent sent its hello from this address."""
        self._answered[broker_id] = address

    def failed(self, broker_id: int, address: Address) -> None:
        """Record that no hello came from this address, so that another one is tried next."""
        if self.get(broker_id) == address and self._answered.get(broker_id) != address:
            self._failures[broker_id] = self._failures.get(broker_id, 0) + 1

    def _addresses(self, broker_id: int) -> list[Address]:
        found = self._listed.get(broker_id), self._registered.get(broker_id)
        return list(dict.fromkeys(address for address in found if address is not None))

    def __getitem__(self, broker_id: int) -> Address:
        if not (addresses := self._addresses(broker_id)):
            raise KeyError(broker_id)
        return addresses[self._failures.get(broker_id, 0) % len(addresses)]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._listed.keys() | self._registered.keys()))

    def __len__(self) -> int:
        return len(self._listed.keys() | self._registered.keys())
