"""An HTTP server that clients cannot exhaust: each connection has a bounded time, and each address its share.

A thread reads each request. When there are too many, the oldest one of the address that has most gives way to the next,
so requests that drip in keep nobody out: a probe's comes at once. Few are answered at a time, and half of these places
at most belong to one address; who finds none is told so. Short answers, as for probes, need no place. The TLS handshake
counts towards the same time.
"""

import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry

from replication.wire.peer_connection import Address, Listener
from replication.wire.peer_listener import holder_at

SHORT_ANSWERS = ("/livez", "/readyz")
"""Paths for probes, whose answers no peer has to be waited for to read."""
_ACCEPT_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class HttpLimits:
    requests: int = 64
    """How many requests are read at once."""
    threads: int = 16
    """How many of them are answered at once."""
    silence_s: float = 5.0
    """How long a client may send nothing of a request."""
    answer_s: float = 30.0
    """Time from the accept until the answer is read, whatever comes meanwhile."""


class HttpMetrics:
    """Counts connections that were closed without a response."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.closed = prometheus_client.Counter(
            "remote_wal_http_closed",
            "HTTP connections that got no page: no place for it, a slow peer, or one that broke off",
            ["reason"],
            registry=registry,
        )


@dataclass(slots=True)
class _Open:
    """A connection that a thread serves."""

    address: str
    since_s: float
    is_answered: bool = False
    """It has one of the places."""
    is_cut: bool = False
    """It was counted as closed, and its thread ends."""


class _Handler(WSGIRequestHandler):
    server: "HttpServer"

    def parse_request(self) -> bool:
        """Parse the request; after it, the server's limit applies."""
        if not super().parse_request():
            return False
        self.connection.settimeout(None)
        if self.path.partition("?")[0] in SHORT_ANSWERS or self.server.takes_place():
            return True
        self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "no place is free; ask again")
        return False

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: monitors ask every few seconds."""


class HttpServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        listener: Listener,
        answer: Callable[..., Iterable[bytes]],
        limits: HttpLimits,
        metrics: HttpMetrics,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`listener` may be a socket from the service manager, which stays open when the server closes, because it
        cannot be made again."""
        self._limits = limits
        self._tls = tls
        self._closed = metrics.closed
        self._lock = threading.Lock()
        self._open: dict[socket.socket, _Open] = {}
        """In the order in which they came."""
        self._served = threading.local()
        address = (listener.host, listener.port) if isinstance(listener, Address) else listener.getsockname()[:2]
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler, bind_and_activate=isinstance(listener, Address))
        if not isinstance(listener, Address):
            self.socket.close()
            self.socket = listener.dup()
            self._name()
        self.set_app(answer)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; pause after a failure.

        Without file descriptors, for instance, the next try would fail at once, and a loop of tries would take the
        interpreter from the event loop.
        """
        try:
            return super().get_request()
        except OSError:
            threading.Event().wait(_ACCEPT_PAUSE_S)
            raise

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve the connection in its thread, so that a TLS handshake blocks no other. `request` stays the socket
        that `_cut` closes."""
        self._served.request = request
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        with request.dup() as own:
            own.settimeout(self._limits.silence_s)
            with self._tls.wrap_socket(own, server_side=True) as encrypted:
                super().finish_request(encrypted, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread. If there are too many, another connection is cut off."""
        with self._lock:
            reading = {one: known for one, known in self._open.items() if not known.is_answered and not known.is_cut}
            if len(reading) >= self._limits.requests:
                [(most, _)] = Counter(known.address for known in reading.values()).most_common(1)
                self._cut(next(one for one, known in reading.items() if known.address == most), "busy")
            is_served = len(self._open) < 2 * self._limits.requests + self._limits.threads
            if is_served:
                self._open[request] = _Open(holder_at(str(client_address[0])), time.monotonic())
        if is_served:
            request.settimeout(self._limits.silence_s)
            super().process_request(request, client_address)
        else:
            self._closed.labels("busy").inc()
            super().shutdown_request(request)

    def takes_place(self) -> bool:
        """Whether the request that this thread has read may be answered now: only so many pages are made at once."""
        with self._lock:
            own = self._open[self._served.request]
            if own.is_cut:
                return False
            answered = [known.address for known in self._open.values() if known.is_answered]
            of_one = answered.count(own.address)
            own.is_answered = len(answered) < self._limits.threads and 2 * of_one < self._limits.threads
        if not own.is_answered:
            self._closed.labels("busy").inc()
        return own.is_answered

    def _cut(self, request: socket.socket, reason: str) -> None:
        """Cut a connection off, so that its thread ends. Only that thread closes the socket."""
        self._open[request].is_cut = True
        self._closed.labels(reason).inc()
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off slow clients, twice a second."""
        oldest_s = time.monotonic() - self._limits.answer_s
        with self._lock:
            for request in [one for one, known in self._open.items() if known.since_s < oldest_s and not known.is_cut]:
                self._cut(request, "slow")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Count a broken connection. Errors of pages are handled before, by the handler."""
        with self._lock:
            known = self._open.get(request)
            if known is not None:
                if known.is_cut:
                    return
                known.is_cut = True
        self._closed.labels("slow" if isinstance(sys.exc_info()[1], TimeoutError) else "broken").inc()

    def server_bind(self) -> None:
        """Bind like WSGIServer, but without asking a name server for this host's name, which may take long."""
        TCPServer.server_bind(self)
        self._name()

    def _name(self) -> None:
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()
