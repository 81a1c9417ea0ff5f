"""Metrics, health and state over HTTP: GET only, loopback by default, in a thread of its own.

/metrics   Prometheus text
/healthz   200 while the process runs
/readyz    200 once the agent relays and knows leadership and settings; 503 with the reasons before
/describe  JSON: what `remote-wal describe` shows
/objects   JSON: what `remote-wal describe --objects` shows
"""

import json
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from replication.peer_connection import Address

Describe = Callable[[], dict[str, Any]]
NotReady = Callable[[], list[str]]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: monitors ask every few seconds."""


class HttpEndpoint:
    """Serves from `start` until `close`. `describe`, `not_ready` and `objects` are called on the server's threads."""

    def __init__(
        self, registry: CollectorRegistry, describe: Describe, not_ready: NotReady, objects: Describe | None = None
    ) -> None:
        """Without `objects` there is no /objects."""
        self._registry = registry
        self._describe = describe
        self._not_ready = not_ready
        self._objects = objects
        self._server: WSGIServer | None = None

    def start(self, listener: Address) -> None:
        """Raises OSError when the address is taken."""
        self._server = make_server(listener.host, listener.port, self._answer, _Server, _Handler)
        threading.Thread(target=self._server.serve_forever, name="http-endpoint", daemon=True).start()

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
            return status, "text/plain", ("\n".join(reasons) or "ready").encode() + b"\n"
        return HTTPStatus.NOT_FOUND, "text/plain", b"there are /metrics /healthz /readyz /describe /objects\n"
