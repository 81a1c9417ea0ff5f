"""The object store of this machine, without its sockets: moto, with a front that adds what moto lacks.

For long runs with many objects, which moto lists slowly, another S3 server may stand behind the front.

The front answers CreateSession and checks its tokens, makes the conditional PUT atomic, verifies the CRC32C of uploads,
lists directory buckets (names that end in `--x-s3`) unsorted, gives them ETags that are no MD5, waits as long as a
store would, and plays faults. moto keeps the objects in memory, and they are gone with the process.
"""

import calendar
import contextlib
import hashlib
import io
import json
import random
import re
import sys
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Final
from urllib.parse import parse_qs

from kafka_log.crc32c import crc32c
from local_cluster.object_store.faults import Fault, Faults

DIRECTORY_BUCKET_SUFFIX: Final = "--x-s3"
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
_UNSIGNED: Final = "AWS4-HMAC-SHA256 Credential=none/20200101/us-east-1/s3/aws4_request"
_CONTENTS: Final = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; header names in lower case."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    remote_address: str = "127.0.0.1"

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{self.query}"

    @property
    def bucket(self) -> str:
        """The first part of the path."""
        return self.path.split("/")[1]


class Cut(Enum):
    """The place where the connection is cut instead of a whole answer."""

    NOT = 0
    BEFORE_THE_ANSWER = 1
    IN_THE_BODY = 2


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    cut: Cut = Cut.NOT


class Sessions:
    """Tokens of directory buckets, each good for one bucket and for some time."""

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], time.struct_time] = time.gmtime,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._ends: dict[tuple[str, str], float] = {}
        self.created = 0

    def create(self, bucket: str) -> Answer:
        """Answer CreateSession."""
        self.created += 1
        token = f"session-{self.created}"
        self._ends[bucket, token] = self._clock() + self._seconds
        end = time.gmtime(calendar.timegm(self._wall_clock()) + self._seconds)
        return _xml(
            200,
            '<CreateSessionResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Credentials>'
            f"<SessionToken>{token}</SessionToken><SecretAccessKey>secret-of-{token}</SecretAccessKey>"
            f"<AccessKeyId>key-of-{token}</AccessKeyId>"
            f"<Expiration>{time.strftime('%Y-%m-%dT%H:%M:%SZ', end)}</Expiration>"
            "</Credentials></CreateSessionResult>",
        )

    def refusal(self, bucket: str, token: str) -> Answer | None:
        """Return the error for a token that is not, or no longer, good for the bucket."""
        end = self._ends.get((bucket, token))
        if end is None:
            return _error(403, "AccessDenied", "no session for this bucket")
        if end <= self._clock():
            return _error(400, "ExpiredToken", "the session has expired")
        return None

    def expire(self) -> None:
        """End all sessions."""
        for session in list(self._ends):
            self._ends[session] = self._clock()


class ObjectStoreFront:
    """Answers requests; called from many threads at once."""

    def __init__(
        self,
        put_latency: float = 0.0,
        get_latency: float = 0.0,
        session_seconds: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
        store: Callable[[Request], Answer] | None = None,
    ) -> None:
        """Take latencies in seconds; a session of S3 Express lives five minutes. `store` is moto if none is given."""
        self.faults = Faults()
        self.answered: Counter[str] = Counter()
        """Requests for objects that were answered or took effect, by method."""
        self.sessions = Sessions(session_seconds, clock)
        self._ask = store or _moto()
        self._latency = {"PUT": put_latency, "GET": get_latency}
        self._never = threading.Event()

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket; nothing happens if it exists."""
        answer = self._ask(Request("PUT", f"/{bucket}"))
        if answer.status not in (200, 409):
            raise RuntimeError(f"cannot make bucket {bucket}: {answer.body.decode()}")

    def handle(self, request: Request) -> Answer:
        """Return the answer, after the latency and with the faults that strike."""
        if request.path.startswith("/_"):
            return self._control(request)
        method, target = request.method, request.target
        self._wait(method, target)
        if fault := self.faults.take("error", method, target):
            return _error(fault.status, fault.code, "a fault was set")
        answer = self.answer(request)
        self.answered[method] += 1
        if fault := self.faults.take("error", method, target, after_effect=True):
            return _error(fault.status, fault.code, "a fault was set")
        if self.faults.take("lose_response", method, target):
            return replace(answer, cut=Cut.BEFORE_THE_ANSWER)
        if method == "GET" and self.faults.take("alter_body", method, target):
            return replace(answer, body=_altered(answer.body))
        if method == "GET" and self.faults.take("cut_body", method, target):
            return replace(answer, cut=Cut.IN_THE_BODY)
        return answer

    def _wait(self, method: str, target: str) -> None:
        seconds = self._latency.get(method, 0.0)
        if fault := self.faults.take("latency", method, target):
            seconds += fault.seconds
        if seconds:
            self._never.wait(seconds)
        if self.faults.take("hang", method, target):
            self.faults.wait_until_cleared()

    def answer(self, request: Request) -> Answer:
        """Answer as the store itself would, except for faults that change what arrives."""
        if not request.bucket.endswith(DIRECTORY_BUCKET_SUFFIX):
            return self._from_store(request)
        query = parse_qs(request.query, keep_blank_values=True)
        if "session" in query:
            if self.faults.take("empty_session", request.method, request.target):
                return _xml(200, "<CreateSessionResult/>")
            return self.sessions.create(request.bucket)
        refusal = self.sessions.refusal(request.bucket, request.headers.get("x-amz-s3session-token", ""))
        if refusal:
            return refusal
        listing = "list-type" in query
        if listing and not query.get("prefix", ["/"])[0].endswith("/"):
            return _error(400, "InvalidRequest", "prefixes end in / here")
        return _as_directory_bucket(self._from_store(request), listing)

    def _from_store(self, request: Request) -> Answer:
        if request.method != "PUT":
            return self._ask(request)
        body, headers = request.body, dict(request.headers)
        if self.faults.take("alter_body", "PUT", request.target):
            body = _altered(body)
        expected = headers.get("x-amz-checksum-crc32c")
        if expected and expected != b64encode(crc32c(body).to_bytes(4, "big")).decode():
            return _error(400, "BadDigest", "the CRC32C does not match what arrived")
        if self.faults.take("ignore_conditions", "PUT", request.target):
            headers.pop("if-none-match", None)
        return self._ask(replace(request, body=body, headers=headers))

    def _control(self, request: Request) -> Answer:
        if request.remote_address not in _LOOPBACK:
            return _error(403, "AccessDenied", "from this machine only")
        match request.method, request.path:
            case "GET", "/_faults":
                state = {
                    "faults": [asdict(fault) for fault in self.faults.snapshot()],
                    "answered": dict(self.answered),
                }
                return Answer(200, (("Content-Type", "application/json"),), json.dumps(state).encode())
            case "POST", "/_faults":
                try:
                    self.faults.add(Fault.from_json(request.body))
                except ValueError as error:
                    return _error(400, "InvalidRequest", str(error))
            case "DELETE", "/_faults":
                self.faults.clear()
            case "POST", "/_sessions/expire":
                self.sessions.expire()
            case _:
                return _error(404, "NoSuchControl", request.path)
        return Answer(204)


def _moto() -> Callable[[Request], Answer]:
    """Return a moto of its own; in one process all have the same buckets."""
    from moto.server import create_backend_app

    application = create_backend_app("s3")  # moto's dispatcher would look through 90 directories for each request
    writes = threading.Lock()

    def ask(request: Request) -> Answer:
        environ: dict[str, Any] = {
            "HTTP_" + name.upper().replace("-", "_"): value for name, value in request.headers.items()
        }
        signature = request.headers.get("authorization", _UNSIGNED)
        environ |= {
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "RAW_URI": request.target,
            "REQUEST_URI": request.target,
            "QUERY_STRING": request.query,
            "CONTENT_LENGTH": str(len(request.body)),
            "CONTENT_TYPE": request.headers.get("content-type", "application/octet-stream"),
            "HTTP_AUTHORIZATION": signature.replace("/s3express/", "/s3/"),  # moto knows no s3express
            "HTTP_HOST": "127.0.0.1",
            "SERVER_NAME": "127.0.0.1",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(request.body),
            "wsgi.errors": sys.stderr,
        }
        begun: list[tuple[str, list[tuple[str, str]]]] = []
        # It looks first and writes later; two writers must not both find the key free.
        with writes if request.method == "PUT" else contextlib.nullcontext():
            parts = application(environ, lambda status, headers, _error=None: begun.append((status, headers)))
        body = b"".join(parts)
        status, headers = begun[0]
        return Answer(int(status.split()[0]), tuple(headers), body)

    return ask


def _as_directory_bucket(answer: Answer, listing: bool) -> Answer:
    """Change the answer to that of S3 Express: ETags that are no MD5, listings in no order."""
    headers = tuple(
        (name, f'"{hashlib.blake2b(value.encode(), digest_size=12).hexdigest()}"')
        if name.lower() == "etag"
        else (name, value)
        for name, value in answer.headers
    )
    body = answer.body
    items = _CONTENTS.findall(body) if listing else []
    if items:
        shuffled = list(items)
        random.Random(len(items)).shuffle(shuffled)  # noqa: S311 - the same disorder in each run
        order = iter(shuffled)
        body = _CONTENTS.sub(lambda _: next(order), body)
    return replace(answer, headers=headers, body=body)


def _altered(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 0x55]) + body[middle + 1 :] if body else body


def _xml(status: int, content: str) -> Answer:
    document = f'<?xml version="1.0" encoding="UTF-8"?>\n{content}'
    return Answer(status, (("Content-Type", "application/xml"),), document.encode())


def _error(status: int, code: str, message: str) -> Answer:
    return _xml(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>")
