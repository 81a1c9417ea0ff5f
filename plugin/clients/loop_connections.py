"""Kept connections to one host on an event loop, each with one exchange at a time, without threads.

A caller has a connection alone until its answer is complete; then it is kept for the next. One that failed, or was not
read to its end, is closed. The loop reports at once when a host closes an unused connection, or sends unrequested
bytes. Nothing is sent twice here, and no redirect is followed.

Only OSError (including ssl.SSLError and TimeoutError) and http.client.HTTPException are raised. For one event loop
only; `close` for any thread.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Final, cast
from urllib.parse import urlsplit

from plugin.clients.dialling import connect
from plugin.clients.http_messages import HttpRequest, HttpResponse, HttpResponseReader

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Time limits in seconds, and how many unused connections are kept."""

    connect_timeout: float
    """Limit for the TLS handshake, and for connecting with it to one of several addresses; two of them are tried. A
    host's only address has it twice.
    """
    read_timeout: float
    """Limit for waiting for bytes, or until all sent bytes are accepted."""
    kept: int
    attempt_timeout: float
    """Time from the request to the end of its answer."""


class LoopConnections:
    """A pool of HTTP connections to one host, for one event loop."""

    def __init__(
        self, url: str, tls: ssl.SSLContext | None, limits: RequestLimits, loop: asyncio.AbstractEventLoop
    ) -> None:
        """`url` is any URL on the host; `tls` is needed for https."""
        parts = urlsplit(url)
        self._tls = tls
        self._host = parts.hostname or ""
        self._port = parts.port or _DEFAULT_PORTS[parts.scheme]
        self._limits = limits
        self._loop = loop
        self._kept: deque[_Connection] = deque()
        self._closed = False
        self._in_use = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def exchange(self, request: HttpRequest, most: int) -> HttpResponse:
        """Send a request, and return its response; of a successful body at most `most` bytes.

        As many exchanges run at once as connections may be kept; others wait in order. Raises OSError, HTTPException.
        """
        kept = self._kept
        if self._in_use < self._limits.kept:
            self._in_use += 1
        else:
            await self._turn()
        try:
            while kept:
                connection = kept.pop()
                if not connection.is_lost:
                    break
            else:
                connection = await self._connect()
            answer = await connection.exchange(request, most, self._limits)
        finally:
            self._give_turn()
        if answer.is_kept and not self._closed and len(kept) < self._limits.kept:
            kept.append(connection)
        else:
            connection.abort()
        return answer

    async def _turn(self) -> None:
        turn = self._loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn was already given
                self._give_turn()
            raise

    def _give_turn(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._in_use -= 1

    def close(self) -> None:
        """Close the pool. Connections in use are closed after their responses."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and its connections with it
            self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._closed = True
        while self._kept:
            self._kept.pop().abort()

    async def _connect(self) -> "_Connection":
        make, each_s = partial(_Connection, self._loop), self._limits.connect_timeout
        return await connect(make, self._host, self._port, 2 * each_s, self._tls, handshake_timeout_s=each_s)


class _Connection(asyncio.Protocol):
    """A connection with one exchange at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._reader: HttpResponseReader | None = None
        self._waiting: asyncio.Future[HttpResponse] | None = None
        self._heard_s = 0.0
        self.is_lost = False

    async def exchange(self, request: HttpRequest, most: int, limits: RequestLimits) -> HttpResponse:
        loop = self._loop
        self._reader, self._waiting = HttpResponseReader(most), loop.create_future()
        self._heard_s = loop.time()
        deadline_s = self._heard_s + limits.attempt_timeout
        timer = loop.call_later(limits.read_timeout, self._is_late, self._waiting, limits.read_timeout, deadline_s)
        try:
            self._transport.writelines((request.head(), request.body) if request.body else (request.head(),))
            return await self._waiting
        except BaseException:
            self.abort()
            raise
        finally:
            timer.cancel()
            self._reader = self._waiting = None

    def abort(self) -> None:
        """End it, whatever is under way."""
        self.is_lost = True
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        plain: socket.socket | None = transport.get_extra_info("socket")
        if plain is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        if self._reader is None or self._waiting is None or self._waiting.done():
            self.abort()  # unrequested, or more than was wanted
            return
        self._heard_s = self._loop.time()
        try:
            answer = self._reader.received(data)
        except Exception as error:
            self._waiting.set_exception(error)
            return
        if answer is not None:
            self._waiting.set_result(answer)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self._reader is None or self._waiting is None or self._waiting.done():
            return
        try:
            if exc is not None:
                raise exc
            self._waiting.set_result(self._reader.ended())
        except Exception as error:
            self._waiting.set_exception(error)

    def _is_late(self, waiting: asyncio.Future[HttpResponse], read_timeout_s: float, deadline_s: float) -> None:
        """Check whether an answer has stalled: arriving bytes do not move the timer."""
        if waiting.done():
            return
        now_s, until_s = self._loop.time(), min(self._heard_s + read_timeout_s, deadline_s)
        if now_s >= until_s:
            waiting.set_exception(TimeoutError("the answer came too slowly"))
        else:
            self._loop.call_at(until_s, self._is_late, waiting, read_timeout_s, deadline_s)
