"""PUT and ranged GET of one bucket's objects, over connections of our own: in threads that wait, or on the event loop.

Theory. A boto3 call builds, dispatches and parses for longer than an object of some 100 KB takes to travel. What it
finds out is the same for each object of a bucket: where the bucket is, and how its requests are signed. So boto3 is
asked once (`plugin.clients.s3_route`), and after that for its client's credentials and sessions alone, which it
refreshes. That may take long. So the event loop signs by what a thread was given less than half a minute ago; after
that the next request is a thread's.

What is not plainly this bucket's answer is boto3's: where it is redirected, is signed for another region, or a proxy is
set, the caller is told to send the same request by boto3, which follows, and the route is asked for anew.
"""

import asyncio
import contextlib
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

from plugin.clients.http_connections import HttpConnections, RequestLimits
from plugin.clients.http_messages import HttpAnswer, HttpRequest
from plugin.clients.loop_connections import LoopConnections
from plugin.clients.s3_route import Route, Routes
from plugin.clients.s3_signatures import EMPTY_PAYLOAD, UNSIGNED_PAYLOAD, S3Signer
from plugin.errors import RemoteStorageError, RemoteStorageTimeoutError
from plugin.wall_clock import wall_ms

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_OPENED_AHEAD: Final = 4
_ANSWER_MAX_BYTES: Final = 64 * 1024
"""Of what is no object."""
_BLOCK_BYTES: Final = 64 * 1024
"""Memory for so much is had at each read, which gives one record of TLS at most: for a body's rest it would be had, and
let go of, some hundred times."""
_LOOP_MAX_BYTES: Final = 1024 * 1024
_HASHED_ON_LOOP_MAX_BYTES: Final = 64 * 1024
"""Where a body is signed, by a SHA-256 of it."""
_SIGNER_KEPT_S: Final = 30.0
"""On the event loop, without asking botocore whether credentials are to be refreshed. It does that longer before their
end, as sessions do."""
_OF_CREDENTIALS: Final = frozenset({400, 401, 403})
_CHECKSUM: Final = "x-amz-checksum-crc32c"
_ELSEWHERE: Final = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)


class _Operation(NamedTuple):
    method: str
    name: str
    """botocore's."""


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
        self._on_loop: LoopConnections | None = None
        self._opening: asyncio.Task[None] | None = None
        self.known_signer: S3Signer | None = None
        """The one that a thread was given last."""
        self._signs_until = 0.0
        self.connections = HttpConnections(route.url, self._tls, limits)
        self.is_boto3s = bool(get_environ_proxies(route.url).get(parts.scheme))
        """All requests are."""

    def signer(self, now: float) -> S3Signer | None:
        """May block; None where requests are boto3's. Raises what botocore does."""
        signer = self._route.signer(self.known_signer)
        self.known_signer, self._signs_until = signer, now + _SIGNER_KEPT_S
        self.is_boto3s = signer is None
        return signer

    def distrust_signer(self) -> None:
        """The store may know its credentials no more."""
        self._signs_until = 0.0

    def admits_on_loop(self, size_bytes: int, now: float) -> bool:
        """Whether a request of so many bytes may be sent on the event loop, as nobody needs to be asked first."""
        most = _HASHED_ON_LOOP_MAX_BYTES if self._signs_bodies else _LOOP_MAX_BYTES
        return now < self._signs_until and size_bytes <= most and self.known_signer is not None

    def on_loop(self) -> LoopConnections:
        """Of the loop that runs; there is one for all time."""
        if self._on_loop is None:
            loop = asyncio.get_running_loop()
            self._on_loop = LoopConnections(self._route.url, self._tls, self._limits, loop)
            self._opening = loop.create_task(_ahead(self._on_loop), name="s3-connect")
        return self._on_loop

    def open_on_loop(self) -> None:
        """Be connected there before the first request."""
        if not self.connections.is_closed:
            self.on_loop()
        if self.connections.is_closed:  # meanwhile
            self.close()

    def request(
        self, signer: S3Signer, operation: _Operation, key: str, headers: Mapping[str, str], body: bytes
    ) -> HttpRequest:
        """Signed."""
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
        """Close all connections."""
        self.connections.close()
        if self._on_loop is not None:
            self._on_loop.close()


class S3Direct:
    """See the module's theory. Raises what botocore, http.client and sockets raise, and errors of `plugin.errors`.

    Safe for many threads.
    """

    def __init__(
        self, client: "S3Client", bucket: str, ca_file: str | None, limits: RequestLimits, clock: Callable[[], float]
    ) -> None:
        """`ca_file`: certificates to trust instead of those that boto3 would."""
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

    def open_ahead(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Be connected before the first request is made, on that loop as well; one that fails is left to that request
        to tell.
        """
        with contextlib.suppress(Exception):
            way = self._way()
            if not way.is_boto3s:
                way.connections.open_some(_OPENED_AHEAD)
                if loop is not None:
                    loop.call_soon_threadsafe(way.open_on_loop)

    def put(self, key: str, body: bytes, checksum: int) -> bool:
        """Whether the object was written, its CRC32C being `checksum`; else boto3 is to send the request."""
        return _is_stored(key, checksum, self._ask(_PUT, key, _put_headers(checksum), body))

    async def put_on_loop(self, key: str, body: bytes, checksum: int) -> bool:
        """As `put`, where the loop is admitted."""
        return _is_stored(key, checksum, await self._await(_PUT, key, _put_headers(checksum), body))

    def get(self, key: str, start: int, end: int) -> bytes | None:
        """The bytes [start, end), and one more where the answer is another one; None: boto3 is to send the request."""
        answer = self._ask(_GET, key, _range_headers(start, end), b"", end - start + 1)
        return answer.content if answer is not None else None

    async def get_on_loop(self, key: str, start: int, end: int) -> bytes | None:
        """As `get`, where the loop is admitted."""
        answer = await self._await(_GET, key, _range_headers(start, end), b"", end - start + 1)
        return answer.content if answer is not None else None

    def admits_on_loop(self, size_bytes: int) -> bool:
        """Whether a request of so many bytes may be awaited: nobody is to be asked first, and nothing in it is long."""
        way = self._known
        return way is not None and way.admits_on_loop(size_bytes, self._clock())

    def close(self) -> None:
        """Release connections."""
        with self._lock:
            self._closed = True
            if self._known is not None:
                self._known.close()

    def _ask(
        self, operation: _Operation, key: str, headers: Mapping[str, str], body: bytes, most: int = _ANSWER_MAX_BYTES
    ) -> HttpAnswer | None:
        """What the store answered, at most so many bytes of it; None where it is boto3's."""
        way = self._way()
        signer = way.signer(self._clock()) if not way.is_boto3s else None
        if signer is None:
            return None
        deadline = self._clock() + self._limits.attempt_timeout
        request = way.request(signer, operation, key, headers, body)
        return self._judged(way, operation, way.connections.exchange(request, most, lambda: self._clock() > deadline))

    async def _await(
        self, operation: _Operation, key: str, headers: Mapping[str, str], body: bytes, most: int = _ANSWER_MAX_BYTES
    ) -> HttpAnswer | None:
        way = self._known
        signer = way.known_signer if way is not None else None
        if way is None or signer is None:
            return None
        request = way.request(signer, operation, key, headers, body)
        return self._judged(way, operation, await way.on_loop().exchange(request, most))

    def _judged(self, way: _Way, operation: _Operation, answer: HttpAnswer) -> HttpAnswer | None:
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


async def _ahead(connections: LoopConnections) -> None:
    with contextlib.suppress(Exception):  # which a request will tell
        await connections.open_some(_OPENED_AHEAD - 1)


def _put_headers(checksum: int) -> dict[str, str]:
    return {
        "if-none-match": "*",
        "content-type": "application/octet-stream",
        _CHECKSUM: _in_base64(checksum),
        "x-amz-meta-crc32c": f"{checksum:08x}",
    }


def _range_headers(start: int, end: int) -> dict[str, str]:
    return {"range": f"bytes={start}-{end - 1}"}


def _is_stored(key: str, checksum: int, answer: HttpAnswer | None) -> bool:
    if answer is None:
        return False
    answer.headers["etag"]  # what has none comes from something that stores no objects
    sent = _in_base64(checksum)
    received = answer.headers.get(_CHECKSUM, sent)
    if received != sent:
        raise RemoteStorageError("put", key, f"the store has the checksum {received}", label="bad_digest")
    return True


def _in_base64(checksum: int) -> str:
    return b64encode(checksum.to_bytes(4, "big")).decode()


def read_in_time(
    read: Callable[[int], bytes], most: int, is_late: Callable[[], bool], operation: str, key: str
) -> bytes:
    """At most so many bytes of a body. `read` takes how many it may give, and gives none at the end.

    A store that gives byte by byte would hold a thread for as long as it likes. So this raises
    RemoteStorageTimeoutError; and what `read` does.
    """
    blocks, left = list[bytes](), most
    while left and (block := read(min(left, _BLOCK_BYTES))):
        blocks.append(block)
        left -= len(block)
        if is_late():
            raise RemoteStorageTimeoutError(operation, key, "the body came too slowly")
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _host(parts: SplitResult) -> str:
    """As botocore signs it: without a port that goes without saying."""
    port = {"http": ":80", "https": ":443"}[parts.scheme]
    return parts.netloc.lower().removesuffix(port)


def _tls(ca_file: str | None) -> ssl.SSLContext:
    """What boto3 would trust."""
    trusted = Path(
        ca_file
        or botocore.session.get_session().get_config_variable("ca_bundle")
        or os.environ.get("REQUESTS_CA_BUNDLE")
        or str(get_cert_path(True))
    )
    return (
        ssl.create_default_context(capath=trusted) if trusted.is_dir() else ssl.create_default_context(cafile=trusted)
    )
