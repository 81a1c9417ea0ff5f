"""What is said of an address that speaks something else than the client."""

import gc
import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from types import MappingProxyType
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.sasl import SaslHandshakeRequest
from prometheus_client import CollectorRegistry

from agent.http.http_endpoint import HttpEndpoint
from kafka_cluster import preflight
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.errors import ClientPropertyError
from kafka_cluster.preflight import ClusterUnreachableError, _dialled, _request, find_frozen, reach
from local_cluster.security.authority import Authority
from replication.wire.peer_connection import Address, listening_context

API_VERSIONS = b"\0\0\0\x0a\0\0\0\0\0\0\0\0\0\0"


class Listener:
    """Answers as a broker's listener does: without TLS or with it, with a login or without."""

    def __init__(self, context: ssl.SSLContext | None, mechanisms: tuple[str, ...], proxy: bool = False) -> None:
        self.leads_to: list[tuple[str, int]] | None = []
        """None: it ends the connection instead of telling it."""
        self.server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._context, self._mechanisms, self._proxy = context, mechanisms, proxy
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server.getsockname()[1])

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self.server.accept()[0],), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, EOFError), ExitStack() as stack:
            stack.enter_context(connection)
            if self._context is not None:
                connection = stack.enter_context(self._context.wrap_socket(connection, server_side=True))
            while size := connection.recv(4):
                if int.from_bytes(size) > 1000:  # as Kafka closes where TLS comes to a plaintext port
                    return
                key = connection.recv(int.from_bytes(size))[1]
                answers = {18: lambda: API_VERSIONS, 17: self._handshake, 3: self._metadata}
                connection.sendall(answers[key]())

    def _metadata(self) -> bytes:
        if self.leads_to is None:
            raise EOFError
        told = [
            struct.pack(f">ih{len(host)}sih", 1, len(host), host.encode(), port, -1) for host, port in self.leads_to
        ]
        answer = struct.pack(">ii", 0, len(told)) + b"".join(told) + struct.pack(">ii", 1, 0)
        return struct.pack(">i", len(answer)) + answer

    def _handshake(self) -> bytes:
        if self._proxy:
            raise EOFError
        listed = b"".join(struct.pack(">h", len(one)) + one.encode() for one in self._mechanisms)
        answer = struct.pack(">ihi", 0, 33 if self._mechanisms else 34, len(self._mechanisms)) + listed
        return struct.pack(">i", len(answer)) + answer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine changes no answer."""
    monkeypatch.setattr(preflight, "_OTHER_WAY_S", 30.0)
    monkeypatch.setattr(preflight, "CONNECT_TIMEOUT_S", 30.0)
    monkeypatch.setattr(preflight, "SILENCE_S", 30.0)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def ports(authority: Authority) -> Iterator[dict[str, int]]:
    tls = authority.tls_for("localhost", ["127.0.0.1"])
    files = tls.certificate_file, tls.key_file
    listeners = {
        "PLAINTEXT": Listener(None, ()),
        "SASL_PLAINTEXT": Listener(None, ("SCRAM-SHA-512", "PLAIN")),
        "SSL": Listener(listening_context(*files, None), ()),
        "SASL_SSL": Listener(listening_context(*files, None), ("PLAIN",)),
        "mutual": Listener(listening_context(*files, tls.ca_file), ()),
        "proxy": Listener(None, (), proxy=True),
    }
    endpoint = HttpEndpoint(CollectorRegistry(), {})
    http = endpoint.start(Address("127.0.0.1", 0))
    with socket.create_server(("127.0.0.1", 0), backlog=64) as mute, socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else gets it
        others = {"http": http.port, "mute": mute.getsockname()[1], "closed": held.getsockname()[1]}
        yield {kind: one.port for kind, one in listeners.items()} | others
    for one in listeners.values():
        one.server.close()
    endpoint.close()


def said_of(
    port: int, protocol: str, properties: Mapping[str, str] = MappingProxyType({}), *, timeout_s: float = 60.0
) -> str:
    """What is said to a client of this protocol; nothing if it is served."""
    login = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"} if "SASL" in protocol else {}
    client = KafkaClientConfig(f"127.0.0.1:{port}", {"security.protocol": protocol, **login, **properties})
    try:
        reach(client, "FILE", timeout_s)
    except ClusterUnreachableError as error:
        return error.reason.partition(f"127.0.0.1:{port}: ")[2]
    return ""


PROTOCOLS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_a_listener_of_another_protocol_is_told_by_the_key_to_change(
    ports: dict[str, int], authority: Authority, kind: str
) -> None:
    for protocol in PROTOCOLS:
        said = said_of(ports[kind], protocol, {"ssl.ca.location": str(authority.file)})
        change = f"it speaks {kind}, and the client {protocol}: change security.protocol in FILE"
        assert said == ("" if protocol == kind else change)


@pytest.mark.parametrize(
    ("kind", "protocol", "said"),
    [
        ("http", "PLAINTEXT", "it speaks HTTP, so it is no broker's port: change the address"),
        ("http", "SASL_SSL", "it speaks HTTP, so it is no broker's port: change the address"),
        ("closed", "PLAINTEXT", "connection refused"),
        ("mute", "PLAINTEXT", "no answer"),
        ("mute", "SSL", "no answer"),
        ("proxy", "PLAINTEXT", ""),
        ("proxy", "SASL_PLAINTEXT", ""),
        (
            "mutual",
            "PLAINTEXT",
            "it speaks SSL or SASL_SSL, and the client PLAINTEXT: change security.protocol in FILE",
        ),
    ],
)
def test_what_is_no_listener_of_kafka_is_told_and_what_may_be_one_is_left_to_the_client(
    ports: dict[str, int], kind: str, protocol: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "http":  # it waits for the end of the line
        monkeypatch.setattr(preflight, "SILENCE_S", 0.1)
    assert said_of(ports[kind], protocol, timeout_s=0.3 if kind == "mute" else 60.0) == said


def test_a_listener_that_is_slow_to_tell_whether_it_wants_a_login_may_want_one(
    ports: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Listener, "_handshake", lambda _listener: b"")
    monkeypatch.setattr(preflight, "SILENCE_S", 0.1)
    assert said_of(ports["SASL_PLAINTEXT"], "SASL_PLAINTEXT", timeout_s=0.2) == ""


def test_a_connection_that_is_reset_before_tls_begins_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    wrap = ssl.SSLContext.wrap_socket

    def wrap_late(context: ssl.SSLContext, connection: socket.socket, **how: Any) -> ssl.SSLSocket:
        with suppress(OSError):  # it is not connected
            connection.getpeername()
            is_reset = select.poll()
            is_reset.register(connection, select.POLLERR)
            is_reset.poll(30_000)
        return wrap(context, connection, **how)

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", wrap_late)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset() -> None:
            with server.accept()[0] as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        resets = threading.Thread(target=reset, daemon=True)
        resets.start()
        with suppress(OSError), _dialled(server.getsockname(), ssl.create_default_context(), 30.0) as connection:
            connection.recv(1)
        resets.join()
    gc.collect()  # a socket that was left open is told of now, as an error


def test_what_is_wrong_with_certificates_and_mechanisms_is_told_by_the_key(
    ports: dict[str, int], authority: Authority
) -> None:
    ca, client = {"ssl.ca.location": str(authority.file)}, authority.tls_for("client")
    own = {"ssl.certificate.location": str(client.certificate_file), "ssl.key.location": str(client.key_file)}
    assert said_of(ports["SSL"], "SSL").endswith("see ssl.truststore.location in FILE")
    assert "as where it wants a client's certificate: see ssl.keystore" in said_of(ports["mutual"], "SSL", ca)
    assert not said_of(ports["mutual"], "SSL", ca | own)
    assert not said_of(ports["mutual"], "SSL", ca | {"ssl.keystore.location": "/a.p12"}), "only librdkafka reads it"
    assert not said_of(ports["SSL"], "SSL", {"enable.ssl.certificate.verification": "false"})
    said = said_of(ports["SASL_PLAINTEXT"], "SASL_PLAINTEXT", {"sasl.mechanism": "SCRAM-SHA-256"})
    assert said.startswith(
        "it takes logins by PLAIN, SCRAM-SHA-512, and the client's is SCRAM-SHA-256: change sasl.mech"
    )


def test_one_broker_that_answers_is_enough_and_otherwise_each_is_named(ports: dict[str, int]) -> None:
    closed, mute = f"127.0.0.1:{ports['closed']}", f"localhost:{ports['mute']}"
    reach(KafkaClientConfig(f"{closed}, 127.0.0.1:{ports['PLAINTEXT']}"))
    with pytest.raises(ClusterUnreachableError, match=rf"{closed}: .*refused.*; {mute}: no answer"):
        reach(KafkaClientConfig(f"{closed},{mute}"), timeout_s=0.3)


@pytest.mark.parametrize("address", ["host:abc", "host", "host:0", "host:65536", ":9092", "", "a:1,", "http://a:1"])
def test_an_impossible_address_is_a_wrong_word_and_not_an_outage(address: str) -> None:
    with pytest.raises(ClientPropertyError, match="this is no host:port"):
        reach(KafkaClientConfig(address))


def test_the_questions_are_kafkas() -> None:
    versions, handshake = ApiVersionsRequest(version=0), SaslHandshakeRequest(mechanism="PLAIN", version=0)
    metadata = MetadataRequest(topics=[], version=1)
    asked = ((versions, 0, _request(18)), (handshake, 0, _request(17, b"\0\5PLAIN")))
    for request, version, ours in (*asked, (metadata, 1, _request(3, bytes(4), version=1))):
        request.with_header(0, "remote-wal")
        assert bytes(request.encode(version=version, header=True, framed=True)) == ours


def test_a_listener_that_leads_clients_nowhere_is_told(ports: dict[str, int]) -> None:
    listener = Listener(None, ())
    nowhere, nobody = ("replica-2.remote-wal.invalid", 19902), ("127.0.0.1", ports["closed"])
    with listener.server:
        listener.leads_to = [nowhere, nobody]
        said = (
            "it leads to replica-2.remote-wal.invalid:19902 and others, and none can be reached (there is no such host)"
        )
        assert said_of(listener.port, "PLAINTEXT") == f"{said}: change the address to a listener for clients"
        listener.leads_to = [nobody]
        assert "none can be reached (connection refused)" in said_of(listener.port, "PLAINTEXT")
        listener.leads_to = None
        assert said_of(listener.port, "PLAINTEXT").startswith("it tells clients of no brokers, as ports for brokers")
        listener.leads_to = [nobody, ("127.0.0.1", ports["mute"])]
        assert said_of(listener.port, "PLAINTEXT") == ""


def test_of_those_that_a_listener_leads_to_only_what_takes_connections_and_answers_nothing_is_frozen(
    ports: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "FROZEN_S", 0.5)
    listener = Listener(None, ())
    with listener.server:
        listener.leads_to = [("127.0.0.1", ports[one]) for one in ("PLAINTEXT", "closed", "mute", "SSL")]
        client = KafkaClientConfig(f"127.0.0.1:{listener.port}")
        assert find_frozen(reach(client), client) == [f"127.0.0.1:{ports['mute']}"]


def test_an_address_is_told_as_it_was_given() -> None:
    with pytest.raises(ClusterUnreachableError, match=r"s: \[::1\]:1: [a-z ]+; localhost:1: [a-z ]+$"):
        reach(KafkaClientConfig("[::1]:1, localhost:1"))
