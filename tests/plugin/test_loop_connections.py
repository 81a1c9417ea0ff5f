"""Connections are kept for as long as they are good for another request, and no longer."""

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from local_cluster.security.authority import Authority
from plugin.clients.http_messages import HttpRequest
from plugin.clients.loop_connections import LoopConnections, RequestLimits
from plugin.store_loop import ask

LIMITS = RequestLimits(connect_timeout=10, read_timeout=10, kept=2, attempt_timeout=20)
IMPATIENT = RequestLimits(connect_timeout=10, read_timeout=0.2, kept=2, attempt_timeout=0.4)


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
        if self.path in ("/never", "/slowly"):
            self.be_slow(writes=self.path == "/slowly")
            return
        body = str(self.number).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path == "/in-two":
            time.sleep(0.05)
        self.wfile.write(body)
        self.close_connection = self.path == "/and-close"  # without a word of it

    def be_slow(self, *, writes: bool) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            if writes:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while self.wfile.write(b"x"):
                    time.sleep(0.02)
            self.rfile.read(1)

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


class Opened:
    """Connections of the tests' event loop."""

    def __init__(self, url: str, tls: ssl.SSLContext | None, limits: RequestLimits) -> None:
        self._connections = ask(self._made(url, tls, limits))

    async def _made(self, url: str, tls: ssl.SSLContext | None, limits: RequestLimits) -> LoopConnections:
        return LoopConnections(url, tls, limits, asyncio.get_running_loop())

    def ask(self, target: str = "/", most: int = 100) -> bytes:
        return ask(self._connections.exchange(HttpRequest("GET", target, {"host": "store"}), most)).content

    def close(self) -> None:
        self._connections.close()


Open = Callable[..., Opened]


@pytest.fixture
def opened(server: Server) -> Open:
    def opened(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, limits: RequestLimits = LIMITS) -> Opened:
        scheme = "https" if tls is not None else "http"
        return Opened(f"{scheme}://{host}:{server.server_address[1]}/", tls, limits)

    return opened


@pytest.mark.parametrize("path", ["/", "/in-two"])
def test_an_answer_that_was_read_to_its_end_leaves_the_connection_for_the_next(opened: Open, path: str) -> None:
    connections = opened()
    assert [connections.ask(path), connections.ask()] == [b"1", b"1"]
    connections.close()


def test_an_answer_that_is_longer_than_wanted_takes_its_connection_with_it(opened: Open) -> None:
    connections = opened()
    assert connections.ask(most=0) == b""
    assert connections.ask() == b"2"
    connections.close()


def test_a_connection_that_the_host_has_closed_meanwhile_is_not_used_again(opened: Open, server: Server) -> None:
    connections = opened()
    assert connections.ask("/and-close") == b"1"
    server.closed.acquire()
    assert connections.ask() == b"2"
    connections.close()


def test_after_closing_nothing_is_kept(opened: Open) -> None:
    connections = opened()
    connections.close()
    assert [connections.ask(), connections.ask()] == [b"1", b"2"]


def test_on_a_loop_no_more_are_asked_at_once_than_connections_are_kept(server: Server) -> None:
    async def asked() -> list[bytes]:
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        connections = LoopConnections(url, None, LIMITS, asyncio.get_running_loop())
        request = HttpRequest("GET", "/", {"host": "store"})
        tasks = [asyncio.ensure_future(connections.exchange(request, 100)) for _ in range(10)]
        await asyncio.sleep(0)
        tasks[5].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers.pop(5), asyncio.CancelledError)
        connections.close()
        return [answer.content for answer in answers if not isinstance(answer, BaseException)]

    answers = ask(asked())
    assert (len(answers), set(answers)) == (9, {b"1", b"2"})


@pytest.mark.parametrize("path", ["/never", "/slowly"])
def test_an_answer_that_comes_too_slowly_is_a_time_out(opened: Open, path: str) -> None:
    connections = opened(limits=IMPATIENT)
    with pytest.raises(TimeoutError):
        connections.ask(path)
    connections.close()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_host_is_believed_by_a_certificate_with_its_name_from_a_trusted_authority(
    opened: Open, server: Server, tmp_path: Path, name: str
) -> None:
    directories = (tmp_path / "one", tmp_path / "other")
    for directory in directories:
        directory.mkdir()
    authority, other = map(Authority, directories)
    files = authority.tls_for("store", ["127.0.0.1"])
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(files.certificate_file, files.key_file)
    server.socket = own.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)

    trusting = opened(name, ssl.create_default_context(cafile=authority.file))
    if name == "127.0.0.1":
        assert [trusting.ask(), trusting.ask()] == [b"1", b"1"]
    else:
        with pytest.raises(ssl.SSLCertVerificationError):
            trusting.ask()
    trusting.close()
    with pytest.raises(ssl.SSLCertVerificationError):
        opened(name, ssl.create_default_context(cafile=other.file)).ask()
