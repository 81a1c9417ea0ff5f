"""Connections are kept for as long as they are good for another request, and no longer."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from local_cluster.authority import Authority
from plugin.clients.http_connections import HttpConnections, RequestLimits

LIMITS = RequestLimits(connect_timeout=10, read_timeout=10, kept=2, attempt_timeout=20)


class Server(ThreadingHTTPServer):
    """Answers with the number of the connection that was asked over."""

    daemon_threads = True
    connections = 0

    def __init__(self) -> None:
        self.closed = threading.Semaphore(0)
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that does not trust it is what the test is about."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1
        self.number = self.server.connections

    def do_GET(self) -> None:
        body = str(self.number).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.path == "/and-close"  # without a word of it

    def finish(self) -> None:
        super().finish()
        self.server.shutdown_request(self.request)
        self.server.closed.release()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def opened(server: Server, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> HttpConnections:
    scheme = "https" if tls is not None else "http"
    return HttpConnections(f"{scheme}://{host}:{server.server_address[1]}/", tls, LIMITS)


def asked(connections: HttpConnections, target: str = "/") -> bytes:
    with connections.exchange("GET", target, {"Host": "store"}) as response:
        return response.read()


def test_an_answer_that_was_read_to_its_end_leaves_the_connection_for_the_next(server: Server) -> None:
    connections = opened(server)
    assert [asked(connections), asked(connections)] == [b"1", b"1"]
    connections.close()


def test_an_answer_that_was_not_read_takes_its_connection_with_it(server: Server) -> None:
    connections = opened(server)
    with connections.exchange("GET", "/", {"Host": "store"}):
        pass
    assert asked(connections) == b"2"
    connections.close()


def test_a_connection_that_the_host_has_closed_meanwhile_is_not_used_again(server: Server) -> None:
    connections = opened(server)
    assert asked(connections, "/and-close") == b"1"
    server.closed.acquire()
    assert asked(connections) == b"2"
    connections.close()


def test_what_was_opened_ahead_is_used(server: Server) -> None:
    connections = opened(server)
    connections.open_some(2)
    assert {asked(connections), asked(connections)} <= {b"1", b"2"}
    assert server.connections == 2
    connections.close()


def test_after_closing_nothing_is_kept(server: Server) -> None:
    connections = opened(server)
    connections.close()
    assert [asked(connections), asked(connections)] == [b"1", b"2"]


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_host_is_believed_by_a_certificate_with_its_name_from_a_trusted_authority(
    server: Server, tmp_path: Path, name: str
) -> None:
    directories = (tmp_path / "one", tmp_path / "other")
    for directory in directories:
        directory.mkdir()
    authority, other = map(Authority, directories)
    files = authority.tls_for("store", ["127.0.0.1"])
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(files.certificate_file, files.key_file)
    server.socket = own.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)

    trusting = opened(server, name, ssl.create_default_context(cafile=authority.file))
    if name == "127.0.0.1":
        # The host's session tickets come after the handshake, and are no sign of its end.
        trusting.open_some(1)
        assert [asked(trusting), asked(trusting)] == [b"1", b"1"]
    else:
        with pytest.raises(ssl.SSLCertVerificationError):
            asked(trusting)
    trusting.close()
    with pytest.raises(ssl.SSLCertVerificationError):
        asked(opened(server, name, ssl.create_default_context(cafile=other.file)))
