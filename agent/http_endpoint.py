"""Metrics, health and state over HTTP: GET only, in a thread of its own.

/metrics   Prometheus text
/healthz   200 while the process runs
/readyz    200 once the agent relays and knows leadership and settings; 503 with the reasons before. After "ready" come
           lines that begin with "degraded: ", for what is not well, here or with others
/describe  JSON: what `remote-wal describe` shows
/objects   JSON: what `remote-wal describe --objects` shows

A few threads answer, each connection within a bounded time. One that comes while all are busy is closed.
"""

import asyncio
import json
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest

from replication.wire.peer_connection import Address, Listener

Describe = Callable[[], dict[str, Any]]
Reasons = Callable[[], list[str]]


_ACCEPT_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What bounds those who ask."""

    threads: int = 16
    """Answers at once."""
    silence_s: float = 5.0
    """Without a byte of a request."""
    answer_s: float = 30.0
    """From the accept until the answer is read, whatever comes meanwhile."""


class HttpMetrics:
    """Counts what was not answered."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.closed = Counter(
            "remote_wal_http_closed",
            "HTTP connections closed without an answer: all threads busy, a slow peer, or one that broke off",
            ["reason"],
            registry=registry,
        )


class _Handler(WSGIRequestHandler):
    def parse_request(self) -> bool:
        """The request is there; what is left is bounded by the server."""
        self.connection.settimeout(None)
        return super().parse_request()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: monitors ask every few seconds."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        listener: Listener,
        answer: Callable[..., Iterable[bytes]],
        limits: HttpLimits,
        metrics: HttpMetrics,
    ) -> None:
        """A socket that was handed over stays open when the server closes: there is no other way to it."""
        self._limits = limits
        self._closed = metrics.closed
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        """Since when, of each connection that a thread serves."""
        address = (listener.host, listener.port) if isinstance(listener, Address) else listener.getsockname()[:2]
        super().__init__(address, _Handler, bind_and_activate=isinstance(listener, Address))
        if not isinstance(listener, Address):
            self.socket.close()
            self.socket = listener.dup()
            self._name()
        self.set_app(answer)

    def get_request(self) -> tuple[Any, Any]:
        """Where no connection can be taken, as without file descriptors, the next try would fail at once, too; in a
        loop, that takes the interpreter from the event loop.
        """
        try:
            return super().get_request()
        except OSError:
            threading.Event().wait(_ACCEPT_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own, if one is free."""
        with self._lock:
            is_free = len(self._open) < self._limits.threads
            if is_free:
                self._open[request] = time.monotonic()
        if is_free:
            request.settimeout(self._limits.silence_s)
            super().process_request(request, client_address)
        else:
            self._closed.labels("busy").inc()
            super().shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """At the end of each."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Twice a second: cut off who takes too long, so that its thread ends. Only that thread closes the socket."""
        oldest_s = time.monotonic() - self._limits.answer_s
        with self._lock:
            for request in [one for one, since_s in self._open.items() if since_s < oldest_s]:
                self._open[request] = math.inf
                self._closed.labels("slow").inc()
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What answering fails by, the handler answers itself; so this is the connection."""
        with self._lock:
            if self._open.get(request) == math.inf:  # cut off, and counted
                return
        self._closed.labels("slow" if isinstance(sys.exc_info()[1], TimeoutError) else "broken").inc()

    def server_bind(self) -> None:
        """As WSGIServer's, but for the question to a name server what this host is called, which may take long."""
        TCPServer.server_bind(self)
        self._name()

    def _name(self) -> None:
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()


class HttpEndpoint:
    """Serves from `start` until `close`. What it is given is called on the server's threads."""

    def __init__(
        self,
        registry: CollectorRegistry,
        describe: Describe,
        not_ready: Reasons,
        objects: Describe | None = None,
        degraded: Reasons = list,
        limits: HttpLimits | None = None,
    ) -> None:
        """Without `objects` there is no /objects."""
        self._limits = limits or HttpLimits()
        self._metrics = HttpMetrics(registry)
        self._registry = registry
        self._describe = describe
        self._not_ready = not_ready
        self._objects = objects
        self._degraded = degraded
        self._server: WSGIServer | None = None

    @property
    def address(self) -> Address | None:
        """Where it serves; None while it does not."""
        server = self._server
        return None if server is None else Address(server.server_name, server.server_port)

    async def run(self, listener: Listener) -> None:
        """Serve until cancelled. Raises OSError when the address is taken, and what ended serving."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        self.start(listener, lambda defect: loop.call_soon_threadsafe(ended.set_exception, defect))
        try:
            await ended
        finally:
            await asyncio.to_thread(self.close)

    def start(self, listener: Listener, on_defect: Callable[[Exception], object] = lambda _defect: None) -> Address:
        """Where it serves; for port 0, the port that was free.

        `on_defect` is called on the server's thread, if that ends. Raises OSError when the address is taken.
        """
        server = self._server = _Server(listener, self._answer, self._limits, self._metrics)

        def serve() -> None:
            try:
                server.serve_forever()
            except Exception as defect:
                on_defect(defect)

        threading.Thread(target=serve, name="http-endpoint", daemon=True).start()
        return Address(server.server_name, server.server_port)

    def close(self) -> None:
        """Stop serving. Idempotent."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, content_type, body = self._respond(environ["REQUEST_METHOD"], environ["PATH_INFO"])
        start_response(f"{status.value} {status.phrase}", [("Content-Type", content_type)])
        return [body]

    def _respond(self, method: str, path: str) -> tuple[HTTPStatus, str, bytes]:
        if method != "GET":
            return HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"GET only\n"
        if path == "/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(self._registry)
        if path == "/healthz":
            return HTTPStatus.OK, "text/plain", b"ok\n"
        if path == "/describe":
            return HTTPStatus.OK, "application/json", json.dumps(self._describe()).encode()
        if path == "/objects" and self._objects is not None:
            return HTTPStatus.OK, "application/json", json.dumps(self._objects()).encode()
        if path == "/readyz":
            reasons = self._not_ready()
            status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
            lines = reasons or ["ready", *(f"degraded: {reason}" for reason in self._degraded())]
            return status, "text/plain", "\n".join(lines).encode() + b"\n"
        return HTTPStatus.NOT_FOUND, "text/plain", b"there are /metrics /healthz /readyz /describe /objects\n"
