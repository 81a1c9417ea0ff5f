"""PUT and ranged GET of one bucket's objects, signed by botocore, over connections of our own.

Theory. A boto3 call builds, dispatches and parses for longer than an object of some 100 KB takes to travel. What it
finds out is the same for each object of a bucket: where the bucket is, and how its requests are signed. So boto3 is
asked once, by a request that it builds and does not send (`_Routes`); after that only botocore's signer runs for each
request, with the credentials and sessions that boto3's client has, which refreshes them.

What is not plainly this bucket's answer is boto3's: where it is redirected, is signed for another region, or a proxy is
set, the caller is told to send the same request by boto3, which follows, and the route is asked for anew.
"""

import contextlib
import os
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, quote, urlsplit

import botocore.session
from botocore.awsrequest import AWSRequest
from botocore.exceptions import ClientError
from botocore.httpsession import get_cert_path
from botocore.parsers import create_parser
from botocore.utils import get_environ_proxies

from plugin.clients.http_connections import HttpConnections, RequestLimits
from plugin.errors import RemoteStorageError, RemoteStorageTimeoutError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_PROBE_KEY: Final = "k"
_OPENED_AHEAD: Final = 4
_ANSWER_MAX_BYTES: Final = 64 * 1024
"""Of what is no object: an error's text."""
_BLOCK_BYTES: Final = 64 * 1024
"""Memory for so much is had at each read, which gives one record of TLS at most: for a body's rest it would be had, and
let go of, some hundred times."""
_CHECKSUM: Final = "x-amz-checksum-crc32c"
_ELSEWHERE: Final = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)


class _Operation(Enum):
    PUT = "PutObject"
    GET = "GetObject"

    @property
    def method(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class _Answer:
    headers: Mapping[str, str]
    """Names in small letters."""
    content: bytes


@dataclass(frozen=True, slots=True)
class _Route:
    """How boto3 would send a request for an object of the bucket."""

    url: str
    """What an object's key is appended to."""
    context: Mapping[str, Any]
    """botocore's, of the request."""
    signer: Any

    def signed(self, operation: _Operation, key: str, headers: Mapping[str, str], body: bytes) -> AWSRequest:
        """A request of ours, as boto3 would have signed it."""
        request = AWSRequest(operation.method, self.url + key, headers, body)
        # A checksum among the headers lets botocore leave the payload unsigned where TLS guards it.
        checksum = {"request_algorithm": {"algorithm": "crc32c", "in": "header", "name": _CHECKSUM}}
        # Handlers write into what belongs to the signature.
        signing = dict(self.context.get("signing", {}))
        request.context = {**self.context, "signing": signing, "checksum": checksum}
        self.signer.sign(operation.value, request)
        return request


class _Built(Exception):  # noqa: N818 - no error: it leaves boto3 with what was asked for
    def __init__(self, route: _Route) -> None:
        super().__init__()
        self.route = route


class _Routes:
    """Asks boto3 how it would send a request, and keeps it from doing so."""

    def __init__(self, client: "S3Client", bucket: str) -> None:
        self._client = client
        self._bucket = bucket
        self._asking = threading.local()
        client.meta.events.register_last("before-sign.s3.PutObject", self._stop)

    def find(self) -> _Route:
        """Where the bucket is by what boto3 knows now. Raises what boto3 does before it sends anything."""
        self._asking.now = True
        try:
            self._client.put_object(Bucket=self._bucket, Key=_PROBE_KEY, Body=b"")
        except _Built as built:
            return built.route
        finally:
            self._asking.now = False
        raise AssertionError("boto3 sends a request without signing it")

    def _stop(self, request: AWSRequest, request_signer: object, **_: object) -> None:
        if getattr(self._asking, "now", False):
            url = str(request.url).removesuffix(_PROBE_KEY)
            raise _Built(_Route(url, request.context, request_signer))


class _Way:
    """A route, and the connections that lead there."""

    def __init__(self, route: _Route, ca_file: str | None, limits: RequestLimits) -> None:
        parts = urlsplit(route.url)
        self.route = route
        self.path = parts.path
        self.host = _host(parts)
        self.proxied = bool(get_environ_proxies(route.url).get(parts.scheme))
        self.connections = HttpConnections(route.url, _tls(ca_file) if parts.scheme == "https" else None, limits)


class S3Direct:
    """See the module's theory. Raises what botocore, http.client and sockets raise, and errors of `plugin.errors`.

    Safe for many threads.
    """

    def __init__(
        self, client: "S3Client", bucket: str, ca_file: str | None, limits: RequestLimits, clock: Callable[[], float]
    ) -> None:
        """`ca_file`: certificates to trust instead of those that boto3 would."""
        self._routes = _Routes(client, bucket)
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

    def open_ahead(self) -> None:
        """Be connected before the first request is made; one that fails is left to that request to tell."""
        with contextlib.suppress(Exception):
            way = self._way()
            if not way.proxied:
                way.connections.open_some(_OPENED_AHEAD)

    def put(self, key: str, body: bytes, checksum: int) -> bool:
        """Whether the object was written, its CRC32C being `checksum`; else boto3 is to send the request."""
        sent = b64encode(checksum.to_bytes(4, "big")).decode()
        headers = {
            "If-None-Match": "*",
            "Content-Type": "application/octet-stream",
            _CHECKSUM: sent,
            "x-amz-meta-crc32c": f"{checksum:08x}",
        }
        answer = self._ask(_Operation.PUT, key, headers, body, _ANSWER_MAX_BYTES)
        if answer is None:
            return False
        answer.headers["etag"]  # what has none comes from something that stores no objects
        received = answer.headers.get(_CHECKSUM, sent)
        if received != sent:
            raise RemoteStorageError("put", key, f"the store has the checksum {received}", label="bad_digest")
        return True

    def get(self, key: str, start: int, end: int) -> bytes | None:
        """The bytes [start, end), and one more where the answer is another one; None: boto3 is to send the request."""
        answer = self._ask(_Operation.GET, key, {"Range": f"bytes={start}-{end - 1}"}, b"", end - start + 1)
        return answer.content if answer is not None else None

    def close(self) -> None:
        """Release connections."""
        with self._lock:
            self._closed = True
            if self._known is not None:
                self._known.connections.close()

    def _ask(
        self, operation: _Operation, key: str, headers: Mapping[str, str], body: bytes, most: int
    ) -> _Answer | None:
        """What the store answered, at most so many bytes of it; None where it is boto3's."""
        way = self._way()
        if way.proxied:
            return None
        deadline = self._clock() + self._limits.attempt_timeout
        quoted = quote(key, safe="/~")
        signed = way.route.signed(operation, quoted, {"Host": way.host, **headers}, body)
        sent = {**signed.headers, "Accept-Encoding": "identity"}
        if body:
            sent["Content-Length"] = str(len(body))
        with way.connections.exchange(operation.method, way.path + quoted, sent, body) as response:
            succeeded = response.status < 300
            content = self._content(operation, key, response, most if succeeded else _ANSWER_MAX_BYTES, deadline)
        answer = _Answer({name.lower(): value for name, value in response.getheaders()}, content)
        if succeeded:
            return answer
        if response.status >= 400:
            error = self._parser.parse(
                {"status_code": response.status, "headers": answer.headers, "body": content}, self._shape
            )
            if error.get("Error", {}).get("Code") not in _ELSEWHERE:
                raise ClientError(error, operation.value)
        self._forget(way)
        return None

    def _content(self, operation: _Operation, key: str, response: HTTPResponse, most: int, deadline: float) -> bytes:
        content = read_in_time(response.read1, most, lambda: self._clock() > deadline, operation.name.lower(), key)
        if len(content) < most and response.length:
            raise IncompleteRead(b"", response.length)
        response.read(0)  # which notices that this was all, so that the connection can be kept
        return content

    def _way(self) -> _Way:
        with self._lock:
            if self._known is None:
                self._known = _Way(self._routes.find(), self._ca_file, self._limits)
                if self._closed:
                    self._known.connections.close()
            return self._known

    def _forget(self, way: _Way) -> None:
        with self._lock:
            if self._known is way:
                self._known = None
        way.connections.close()


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
