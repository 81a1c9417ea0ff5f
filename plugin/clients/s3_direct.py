"""PUT and ranged GET of one bucket's objects on the event loop, over our own connections.

Building, dispatching and parsing a boto3 call takes longer than an object of some 100 KB needs to travel. What boto3
finds out is the same for each object of a bucket: where the bucket is, and how its requests are signed. So boto3 is
asked once (`plugin.clients.s3_route`), and after that only for its client's credentials and sessions, which it
refreshes. That may take long. So the event loop signs with what a thread got less than half a minute ago (`renew`);
after that the next request is a thread's, which sends it by boto3 as it sends all that is large or rare.

An answer that is not plainly this bucket's is left to boto3: after a redirect, a signature for another region, or with
a proxy, the caller is told to send the same request by boto3, which handles these, and the route is looked up again.
"""

import asyncio
import hashlib
import os
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

import botocore.session
from botocore.exceptions import ClientError
from botocore.httpsession import get_cert_path
from botocore.parsers import create_parser
from botocore.utils import get_environ_proxies

from plugin.clients.http_messages import HttpRequest, HttpResponse
from plugin.clients.loop_connections import LoopConnections, RequestLimits
from plugin.clients.object_store import LOOP_MAX_BYTES
from plugin.clients.s3_route import EMPTY_PAYLOAD, UNSIGNED_PAYLOAD, Route, Routes, S3Signer
from plugin.errors import RemoteStorageError
from plugin.wall_clock import wall_ms

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_ANSWER_MAX_BYTES: Final = 64 * 1024
"""Limit for answers that are no objects."""
_SIGNER_KEPT_S: Final = 30.0
"""How long the event loop signs without asking botocore for refreshed credentials. botocore refreshes them, and
sessions, longer before their end than that. If it cannot, they may end earlier: the store then refuses a request, and a
thread asks for others."""
_OF_CREDENTIALS: Final = frozenset({400, 401, 403})
_CHECKSUM: Final = "x-amz-checksum-crc32c"
_ELSEWHERE: Final = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)


class _Operation(NamedTuple):
    method: str
    name: str
    """botocore's name."""


_PUT: Final = _Operation("PUT", "PutObject")
_GET: Final = _Operation("GET", "GetObject")


class _Way:
    """A route, and the connections that lead there."""

    def __init__(self, route: Route, ca_file: str | None, limits: RequestLimits) -> None:
        parts = urlsplit(route.url)
        self._route = route
        self._path = parts.path
        self._host = _host(parts)
        self._limits = limits
        self._signs_bodies = route.signs_bodies
        self._tls = _tls(ca_file) if parts.scheme == "https" else None
        self._connections: LoopConnections | None = None
        self.signer: S3Signer | None = None
        """The signer that a thread got last."""
        self._signs_until = 0.0
        self._is_behind_proxy = bool(get_environ_proxies(route.url).get(parts.scheme))

    def renew(self, now: float) -> None:
        """Ask for the signer; there is none if requests are left to boto3. May block. Raises botocore's errors."""
        if not self._is_behind_proxy:
            self.signer = self._route.signer(self.signer)
            self._signs_until = now + _SIGNER_KEPT_S

    def distrust_signer(self) -> None:
        """Forget the signer: the store may not accept its credentials any more."""
        self._signs_until = 0.0

    def is_current(self, now: float) -> bool:
        return now < self._signs_until

    def connections(self) -> LoopConnections:
        if self._connections is None:
            self._connections = LoopConnections(self._route.url, self._tls, self._limits, asyncio.get_running_loop())
        return self._connections

    def request(
        self, signer: S3Signer, operation: _Operation, key: str, headers: Mapping[str, str], body: bytes
    ) -> HttpRequest:
        path = self._path + quote(key, safe="/~")
        payload = EMPTY_PAYLOAD
        if body:
            payload = hashlib.sha256(body).hexdigest() if self._signs_bodies else UNSIGNED_PAYLOAD
        sent = signer.signed(operation.method, path, {"host": self._host, **headers}, payload, wall_ms() // 1000)
        sent["accept-encoding"] = "identity"
        if body:
            sent["content-length"] = str(len(body))
        return HttpRequest(operation.method, path, sent, body)

    def close(self) -> None:
        if self._connections is not None:
            self._connections.close()


class S3Direct:
    """PUT and ranged GET of one bucket's objects, without boto3. Raises errors of botocore, http.client, sockets and
    `plugin.errors`."""

    def __init__(
        self, client: "S3Client", bucket: str, ca_file: str | None, limits: RequestLimits, clock: Callable[[], float]
    ) -> None:
        """`ca_file`: certificates to trust instead of those of boto3."""
        self._routes = Routes(client, bucket)
        self._ca_file = ca_file
        self._limits = limits
        self._clock = clock
        shape = client.meta.service_model.operation_model("PutObject").output_shape
        assert shape is not None  # noqa: S101 - a PUT's answer has one
        self._shape = shape
        self._parser = create_parser("rest-xml")
        self._lock = threading.Lock()
        self._known: _Way | None = None
        self._closed = False

    def renew(self) -> None:
        """Ask boto3 for the bucket's route and credentials. May block. Raises botocore's errors."""
        self._way().renew(self._clock())

    def admits(self, size_bytes: int) -> bool:
        """Whether the event loop can send a request of this size without a blocking call or a long computation."""
        way = self._known
        return (
            size_bytes <= LOOP_MAX_BYTES
            and way is not None
            and way.signer is not None
            and way.is_current(self._clock())
        )

    async def put(self, key: str, body: bytes, checksum: int) -> bool:
        """Write an object with this CRC32C, if the event loop admits that. Returns False if boto3 must send the
        request."""
        return _is_stored(key, checksum, await self._ask(_PUT, key, _put_headers(checksum), body, _ANSWER_MAX_BYTES))

    async def get(self, key: str, start: int, end: int) -> bytes | None:
        """Return the bytes [start, end), and one more if the store sends another range; None if boto3 must send the
        request."""
        answer = await self._ask(_GET, key, {"range": f"bytes={start}-{end - 1}"}, b"", end - start + 1)
        return answer.content if answer is not None else None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._known is not None:
                self._known.close()

    async def _ask(
        self, operation: _Operation, key: str, headers: Mapping[str, str], body: bytes, most: int
    ) -> HttpResponse | None:
        """Return the store's answer, at most so many bytes of it; None: it is left to boto3."""
        way = self._known
        if way is None or way.signer is None:
            return None
        request = way.request(way.signer, operation, key, headers, body)
        return self._judged(way, operation, await way.connections().exchange(request, most))

    def _judged(self, way: _Way, operation: _Operation, answer: HttpResponse) -> HttpResponse | None:
        if answer.status < 300:
            return answer
        if answer.status >= 400:
            if answer.status in _OF_CREDENTIALS:
                way.distrust_signer()
            error = self._parser.parse(
                {"status_code": answer.status, "headers": answer.headers, "body": answer.content}, self._shape
            )
            if error.get("Error", {}).get("Code") not in _ELSEWHERE:
                raise ClientError(error, operation.name)
        self._forget(way)
        return None

    def _way(self) -> _Way:
        with self._lock:
            if self._known is None:
                self._known = _Way(self._routes.find(), self._ca_file, self._limits)
                if self._closed:
                    self._known.close()
            return self._known

    def _forget(self, way: _Way) -> None:
        with self._lock:
            if self._known is way:
                self._known = None
        way.close()


def _put_headers(checksum: int) -> dict[str, str]:
    return {
        "if-none-match": "*",
        "content-type": "application/octet-stream",
        _CHECKSUM: _in_base64(checksum),
        "x-amz-meta-crc32c": f"{checksum:08x}",
    }


def _is_stored(key: str, checksum: int, answer: HttpResponse | None) -> bool:
    if answer is None:
        return False
    answer.headers["etag"]  # an answer without it does not come from an object store
    sent = _in_base64(checksum)
    received = answer.headers.get(_CHECKSUM, sent)
    if received != sent:
        raise RemoteStorageError("put", key, f"the store has the checksum {received}", label="bad_digest")
    return True


def _in_base64(checksum: int) -> str:
    return b64encode(checksum.to_bytes(4, "big")).decode()


def _host(parts: SplitResult) -> str:
    """Return the host as botocore signs it: without a default port."""
    port = {"http": ":80", "https": ":443"}[parts.scheme]
    return parts.netloc.lower().removesuffix(port)


def _tls(ca_file: str | None) -> ssl.SSLContext:
    """Return a context that trusts what boto3 would."""
    trusted = Path(
        ca_file
        or botocore.session.get_session().get_config_variable("ca_bundle")
        or os.environ.get("REQUESTS_CA_BUNDLE")
        or str(get_cert_path(True))
    )
    return (
        ssl.create_default_context(capath=trusted) if trusted.is_dir() else ssl.create_default_context(cafile=trusted)
    )
