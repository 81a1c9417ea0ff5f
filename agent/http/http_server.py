"""An HTTP server that clients cannot exhaust: a few threads answer, each connection within a bounded time.

A connection that comes while all threads are busy is closed. The TLS handshake counts towards the same time.
"""

import math
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter

from replication.wire.peer_connection import Address, Listener

_ACCEPT_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits for clients."""

    threads: int = 16
    """How many requests are answered at once."""
    silence_s: float = 5.0
    """How long a client may send nothing of a request."""
    answer_s: float = 30.0
    """Time from the accept until the answer is read, whatever comes meanwhile."""


class HttpMetrics:
    """Counts connections without an answer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.closed = Counter(
            "remote_wal_http_closed",
            "HTTP connections closed without an answer: all threads busy, a slow peer, or one that broke off",
            ["reason"],
            registry=registry,
        )


class _Handler(WSGIRequestHandler):
    def parse_request(self) -> bool:
        """Parse the request; after it, the server's limit applies."""
        self.connection.settimeout(None)
        return super().parse_request()

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
        """A socket that was handed over stays open when the server closes, because it cannot be made again."""
        self._limits = limits
        self._tls = tls
        self._closed = metrics.closed
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        """By connection that a thread serves, its start."""
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
        """Serve in its thread, so that a handshake blocks nobody else. `request` stays the socket that may be cut
        off.
        """
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        with request.dup() as own:
            own.settimeout(self._limits.silence_s)
            with self._tls.wrap_socket(own, server_side=True) as encrypted:
                super().finish_request(encrypted, client_address)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve in a thread, if one is free."""
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
        """Finish a request."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off slow clients, twice a second, so that their threads end. Only that thread closes the socket."""
        oldest_s = time.monotonic() - self._limits.answer_s
        with self._lock:
            for request in [one for one, since_s in self._open.items() if since_s < oldest_s]:
                self._open[request] = math.inf
                self._closed.labels("slow").inc()
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Count a broken connection: the handler itself answers errors of pages."""
        with self._lock:
            if self._open.get(request) == math.inf:  # cut off, and already counted
                return
        self._closed.labels("slow" if isinstance(sys.exc_info()[1], TimeoutError) else "broken").inc()

    def server_bind(self) -> None:
        """Bind like WSGIServer, but without asking a name server for this host's name, which may take long."""
        TCPServer.server_bind(self)
        self._name()

    def _name(self) -> None:
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()
