"""The agent's HTTP endpoint: GET only, in threads of its own (`agent.http.http_server`).

/metrics   Prometheus text
/livez     200 while the process answers
/readyz    200 once the agent relays and knows leadership and settings; 503 with the reasons before. After "ready" come
           lines that begin with "degraded: ", for what is not well, here or with others: another agent that does
           not answer takes no other broker out of service
others     the pages that are given

Where a token is asked for, /livez and /readyz answer without it, for the probes of orchestrators, which have none; but
/readyz gives its reasons to nobody without.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from agent.http.http_access import HttpAccess
from agent.http.http_server import HttpLimits, HttpMetrics, HttpServer
from replication.wire.peer_connection import Address, Listener

_TEXT, _JSON = "text/plain", "application/json"
_HEADERS = [
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
]
"""A page loads nothing and runs nothing, whatever a topic is called."""
_ASK_TO_LOG_IN = ("WWW-Authenticate", 'Basic realm="remote-wal: any name, the token as password"')

Reasons = Callable[[], list[str]]
Described = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Page:
    """The content at one path, built at each request."""

    content_type: str
    body: Callable[[], bytes]


def json_page(state: Described) -> Page:
    """Return a page that shows the state as JSON."""
    return Page(_JSON, lambda: json.dumps(state()).encode())


@dataclass(frozen=True, slots=True)
class Health:
    """The state that /readyz shows: what is missing, and what is degraded."""

    not_ready: Reasons = field(default=list)
    degraded: Reasons = field(default=list)


def tell_health(registry: CollectorRegistry, health: Health) -> None:
    """Register metrics of the health, for alerts."""
    ready = Gauge("remote_wal_ready", "1 while /readyz answers 200", registry=registry)
    ready.set_function(lambda: not health.not_ready())
    degraded = Gauge(
        "remote_wal_degraded", "How much is not well, as /readyz tells, while it is ready", registry=registry
    )
    degraded.set_function(lambda: len(health.degraded()))


@dataclass(frozen=True, slots=True)
class _Answer:
    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT
    headers: tuple[tuple[str, str], ...] = ()


class HttpEndpoint:
    """The agent's HTTP endpoint, from `start` until `close`. Its callbacks run on the server's threads."""

    def __init__(
        self,
        registry: CollectorRegistry,
        pages: Mapping[str, Page],
        health: Health | None = None,
        access: HttpAccess | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        """`pages` are by path."""
        self._registry = registry
        self._pages = {"/metrics": Page(CONTENT_TYPE_LATEST, lambda: generate_latest(registry)), **pages}
        self._health = health or Health()
        tell_health(registry, self._health)
        self._access = access or HttpAccess()
        self._limits = limits or HttpLimits()
        self._metrics = HttpMetrics(registry)
        self._server: HttpServer | None = None

    @property
    def address(self) -> Address | None:
        """The address of the listening socket; None before `start`."""
        server = self._server
        return None if server is None else Address(server.server_name, server.server_port)

    async def run(self, listener: Listener) -> None:
        """Serve until cancelled. Raises OSError when the address is taken, and the error that ended serving."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        self.start(listener, lambda defect: loop.call_soon_threadsafe(ended.set_exception, defect))
        try:
            await ended
        finally:
            await asyncio.to_thread(self.close)

    def start(self, listener: Listener, on_defect: Callable[[Exception], object] = lambda _defect: None) -> Address:
        """Start serving. Returns the address; for port 0, with the port that was free.

        `on_defect` is called on the server's thread if an error ends it. Raises OSError when the address is taken.
        """
        server = self._server = HttpServer(listener, self._answer, self._limits, self._metrics, self._access.tls)

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
        is_admitted = self._access.admits(environ.get("HTTP_AUTHORIZATION", ""))
        answer = self._respond(environ["REQUEST_METHOD"], environ["PATH_INFO"], is_admitted)
        status = f"{answer.status.value} {answer.status.phrase}"
        start_response(status, [("Content-Type", answer.content_type), *_HEADERS, *answer.headers])
        return [answer.body]

    def _respond(self, method: str, path: str, is_admitted: bool) -> _Answer:
        if method != "GET":
            return _Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"GET only\n")
        if path == "/livez":
            return _Answer(HTTPStatus.OK, b"ok\n")
        if path == "/readyz":
            return self._readiness(is_admitted)
        if not is_admitted:
            return _Answer(HTTPStatus.UNAUTHORIZED, b"the token is missing or wrong\n", headers=(_ASK_TO_LOG_IN,))
        if (page := self._pages.get(path)) is not None:
            return _Answer(HTTPStatus.OK, page.body(), page.content_type)
        there = " ".join(["/livez", "/readyz", *self._pages])
        return _Answer(HTTPStatus.NOT_FOUND, f"there are {there}\n".encode())

    def _readiness(self, is_admitted: bool) -> _Answer:
        reasons = self._health.not_ready()
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        if not is_admitted:
            return _Answer(status, b"not ready\n" if reasons else b"ready\n")
        lines = reasons or ["ready", *(f"degraded: {reason}" for reason in self._health.degraded())]
        return _Answer(status, "\n".join(lines).encode() + b"\n")
