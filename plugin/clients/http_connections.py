"""Kept connections to one host, each with one HTTP/1.1 exchange at a time, with little overhead over the sockets.

A caller has a connection alone until its answer was read to the end; then it is kept for the next. A kept connection is
checked before it is used again: if the host has closed it or sent unrequested bytes, a new one is made. A connection
that failed, or whose answer was not read to its end, is closed. Nothing is sent twice here, and no redirect is
followed.

Only OSError (including ssl.SSLError and TimeoutError) and http.client.HTTPException are raised. Safe for many threads.
"""

import contextlib
import select
import socket
import ssl
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from plugin.clients.http_messages import AnswerReader, HttpAnswer, HttpRequest

_SENT_TOGETHER_BYTES: Final = 16 * 1024
"""Up to this size, copying a body costs less than a system call and a TLS record of its own."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Time limits in seconds, and how many unused connections are kept."""

    connect_timeout: float
    """Limit for connecting, and again for the TLS handshake."""
    read_timeout: float
    """Limit for waiting for bytes, or until all sent bytes are accepted."""
    kept: int
    attempt_timeout: float
    """Time from the request to the end of its answer, checked whenever bytes came."""


class HttpConnections:
    """The connections to one host. See the module's theory."""

    def __init__(self, url: str, tls: ssl.SSLContext | None, limits: RequestLimits) -> None:
        """`url`: any of the host's; `tls` is needed for https."""
        parts = urlsplit(url)
        self._tls = tls
        self._host = parts.hostname or ""
        self._port = parts.port or DEFAULT_PORTS[parts.scheme]
        self._limits = limits
        self._kept: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        self._closed = False
        weakref.finalize(self, _close, self._kept)  # so that unclosed pools leave no sockets either

    def open_some(self, count: int) -> None:
        """Connect ahead of the first request. Raises OSError."""
        for _ in range(count):
            self._keep(self._connect())

    def exchange(self, request: HttpRequest, most: int, is_late: Callable[[], bool] = lambda: False) -> HttpAnswer:
        """Send the request, and return its answer; of a success at most so many bytes.

        `is_late` is called whenever bytes came, because a host that sends byte by byte could hold a thread without end.
        """
        connection = self._take() or self._connect()
        try:
            # A host may answer and close before it has read a body that it does not want.
            with contextlib.suppress(BrokenPipeError):
                together = len(request.body) <= _SENT_TOGETHER_BYTES
                connection.sendall(request.head() + request.body if together else request.head())
                if not together:
                    connection.sendall(request.body)
            answer = _read(connection, AnswerReader(most), is_late)
        except BaseException:
            connection.close()
            raise
        if answer.is_kept:
            self._keep(connection)
        else:
            connection.close()
        return answer

    @property
    def is_closed(self) -> bool:
        """Whether the pool is closed."""
        return self._closed

    def close(self) -> None:
        """Close the pool. Connections in use are closed after their answers."""
        with self._lock:
            self._closed = True
            _close(self._kept)

    def _take(self) -> socket.socket | None:
        while True:
            with self._lock:
                if not self._kept:
                    return None
                connection = self._kept.pop()  # the last used, so that surplus ones grow old and are closed
            if self._is_quiet(connection):
                return connection
            connection.close()

    def _keep(self, connection: socket.socket) -> None:
        with self._lock:
            keep = not self._closed and len(self._kept) < self._limits.kept
            if keep:
                self._kept.append(connection)
        if not keep:
            connection.close()

    def _is_quiet(self, connection: socket.socket) -> bool:
        """Whether it is neither closed nor has sent anything; TLS's own messages, such as tickets, are read here."""
        asked = select.poll()
        asked.register(connection, select.POLLIN)
        if not asked.poll(0) and not (isinstance(connection, ssl.SSLSocket) and connection.pending()):
            return True
        connection.settimeout(0.0)
        try:
            connection.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            connection.settimeout(self._limits.read_timeout)
            return True
        except OSError:
            return False
        return False

    def _connect(self) -> socket.socket:
        plain = socket.create_connection((self._host, self._port), self._limits.connect_timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection = self._tls.wrap_socket(plain, server_hostname=self._host) if self._tls else plain
        except BaseException:
            plain.close()
            raise
        connection.settimeout(self._limits.read_timeout)
        return connection


def _read(connection: socket.socket, reader: AnswerReader, is_late: Callable[[], bool]) -> HttpAnswer:
    while reader.answer is None:
        count = connection.recv_into(reader.buffer())
        if count == 0:
            return reader.ended()
        if not reader.received(count) and is_late():
            raise TimeoutError("the answer came too slowly")
    return reader.answer


def _close(connections: deque[socket.socket]) -> None:
    while connections:
        connections.pop().close()
