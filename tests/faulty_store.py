"""The object store of the tests: an S3 and S3 Express look-alike on a port of this machine, with faults.

It is moto, with a front that adds what moto lacks. The front answers CreateSession and checks its tokens, makes the
conditional PUT atomic, verifies the CRC32C of uploads, lists directory buckets (names that end in `--x-s3`) unsorted,
gives them ETags that are no MD5, waits as long as a store would, and plays faults. moto keeps the objects in memory,
and they are gone with the process.

In a test, FaultyServer is the handle; `start_faulty_store` runs one in a process of its own.
"""

import argparse
import calendar
import contextlib
import hashlib
import http.client
import io
import random
import re
import signal
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import parse_qs, unquote

from kafka_log.crc32c import crc32c
from local_cluster.processes import ManagedProcess, ProcessSpec

DEFAULT_BUCKET: Final = "remote-wal"
DEFAULT_DIRECTORY_BUCKET: Final = "remote-wal--local-az1--x-s3"
_DIRECTORY_BUCKET_SUFFIX: Final = "--x-s3"
_SESSION_S: Final = 300.0
"""The life of a session of S3 Express."""
_UNSIGNED: Final = "AWS4-HMAC-SHA256 Credential=none/20200101/us-east-1/s3/aws4_request"
_CONTENTS: Final = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_OWN_HEADERS: Final = frozenset({"content-length", "connection", "transfer-encoding", "server", "date"})
_START_TIMEOUT_S: Final = 30.0

FaultKind = Literal[
    "error", "hang", "cut_body", "alter_body", "latency", "lose_response", "ignore_conditions", "empty_session"
]
ALL_METHODS: Final = ("PUT", "GET", "HEAD", "DELETE")


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; header names in lower case."""

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def target(self) -> str:
        return f"{self.path}?{self.query}"

    @property
    def bucket(self) -> str:
        return self.path.split("/")[1]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    is_cut: bool = False
    """Whether the connection ends half way through the body."""


class Sessions:
    """Tokens of directory buckets, each good for one bucket and for some time."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, str], float] = {}
        self.created = 0

    def create(self, bucket: str) -> Answer:
        self.created += 1
        token = f"session-{self.created}"
        self._ends[bucket, token] = time.monotonic() + _SESSION_S
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(calendar.timegm(time.gmtime()) + _SESSION_S))
        return _xml(
            200,
            '<CreateSessionResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Credentials>'
            f"<SessionToken>{token}</SessionToken><SecretAccessKey>secret-of-{token}</SecretAccessKey>"
            f"<AccessKeyId>key-of-{token}</AccessKeyId><Expiration>{end}</Expiration>"
            "</Credentials></CreateSessionResult>",
        )

    def refusal(self, bucket: str, token: str) -> Answer | None:
        """Return the error for a token that is not, or no longer, good for the bucket."""
        end = self._ends.get((bucket, token))
        if end is None:
            return _error(403, "AccessDenied", "no session for this bucket")
        if end <= time.monotonic():
            return _error(400, "ExpiredToken", "the session has expired")
        return None

    def expire(self) -> None:
        for session in list(self._ends):
            self._ends[session] = time.monotonic()


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, the requests that it strikes, and how often.

    - error: answer `status` and `code`; with `after_effect` only once the request has taken effect
    - hang: no answer until the fault is cleared, and no effect until then
    - cut_body: the answer's body ends half way
    - alter_body: one byte of it is changed; of a PUT, one byte of what arrives
    - latency: `seconds` more
    - lose_response: the request takes effect, then the connection is cut
    - ignore_conditions: If-None-Match is ignored
    - empty_session: CreateSession answers 200 without credentials
    """

    kind: FaultKind
    methods: tuple[str, ...] = ALL_METHODS
    times: int | None = None
    """The number of requests that it strikes; None: all, until cleared."""
    status: int = 503
    code: str = "SlowDown"
    seconds: float = 0.0
    after_effect: bool = False
    path_part: str = ""
    """Only requests with this text in their path and query, without percent-encoding, as Google's client escapes
    more than others."""


class Faults:
    """The faults that are set. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._cleared = threading.Event()

    def add(self, fault: Fault) -> None:
        """Set one more; of two that fit a request, the one set first strikes."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Remove all faults and let hanging requests continue."""
        with self._lock:
            self._faults.clear()
            self._cleared.set()
            self._cleared = threading.Event()

    def take(self, kind: FaultKind, request: Request, after_effect: bool = False) -> Fault | None:
        """Return the fault of this kind that strikes this request, if any, and count the strike."""
        with self._lock:
            for index, fault in enumerate(self._faults):
                if (fault.kind, fault.after_effect) != (kind, after_effect):
                    continue
                if request.method not in fault.methods or fault.path_part not in unquote(request.target):
                    continue
                if fault.times is not None:
                    left = fault.times - 1
                    self._faults[index : index + 1] = [replace(fault, times=left)] if left else []
                return fault
        return None

    def wait_until_cleared(self) -> None:
        """Block until `clear` is called."""
        with self._lock:
            cleared = self._cleared
        cleared.wait()


class FaultyFront:
    """Answers requests; called from many threads at once. With `behind`, another S3 server has buckets and objects.

    That is for long runs with many objects, which moto lists slowly.
    """

    def __init__(self, put_latency: float = 0.0, get_latency: float = 0.0, behind: str | None = None) -> None:
        """Take latencies in seconds, and host and port of the server behind; in one process all motos are one."""
        self.faults = Faults()
        self.sessions = Sessions()
        self._ask = _moto() if behind is None else _server_behind(behind)
        self._latency = {"PUT": put_latency, "GET": get_latency}
        self._never = threading.Event()

    def create_bucket(self, bucket: str) -> None:
        """Make a bucket; nothing happens if it exists."""
        answer = self._ask(Request("PUT", f"/{bucket}"))
        if answer.status not in (200, 409):
            raise RuntimeError(f"cannot make bucket {bucket}: {answer.body.decode()}")

    def handle(self, request: Request) -> Answer:
        """Return the answer, after the latency and with the faults that strike.

        Raises ConnectionAbortedError for an answer that is lost.
        """
        self._wait(request)
        if fault := self.faults.take("error", request):
            return _error(fault.status, fault.code, "a fault was set")
        answer = self.answer(request)
        if fault := self.faults.take("error", request, after_effect=True):
            return _error(fault.status, fault.code, "a fault was set")
        if self.faults.take("lose_response", request):
            raise ConnectionAbortedError
        if request.method == "GET" and self.faults.take("alter_body", request):
            return replace(answer, body=_altered(answer.body))
        if request.method == "GET" and self.faults.take("cut_body", request):
            return replace(answer, is_cut=True)
        return answer

    def _wait(self, request: Request) -> None:
        seconds = self._latency.get(request.method, 0.0)
        if fault := self.faults.take("latency", request):
            seconds += fault.seconds
        if seconds:
            self._never.wait(seconds)
        if self.faults.take("hang", request):
            self.faults.wait_until_cleared()

    def answer(self, request: Request) -> Answer:
        """Answer as the store itself would, except for faults that change what arrives."""
        if not request.bucket.endswith(_DIRECTORY_BUCKET_SUFFIX):
            return self._from_store(request)
        query = parse_qs(request.query, keep_blank_values=True)
        if "session" in query:
            if self.faults.take("empty_session", request):
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
        if self.faults.take("alter_body", request):
            body = _altered(body)
        expected = headers.get("x-amz-checksum-crc32c")
        if expected and expected != b64encode(crc32c(body).to_bytes(4, "big")).decode():
            return _error(400, "BadDigest", "the CRC32C does not match what arrived")
        if self.faults.take("ignore_conditions", request):
            headers.pop("if-none-match", None)
        return self._ask(replace(request, body=body, headers=headers))


def _moto() -> Callable[[Request], Answer]:
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


def _server_behind(host_and_port: str) -> Callable[[Request], Answer]:
    """Return what asks another S3 server, without a change to the signed request.

    Raises OSError, http.client.HTTPException if that server does not answer.
    """

    def ask(request: Request) -> Answer:
        with contextlib.closing(http.client.HTTPConnection(host_and_port, timeout=60.0)) as connection:
            connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(request.body or None)
            answer = connection.getresponse()
            return Answer(answer.status, tuple(answer.getheaders()), answer.read())

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
        random.Random(len(items)).shuffle(items)
        order = iter(items)
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


class FaultyServer:
    """The front on a port of this machine, in threads of this process. `with` starts and stops it."""

    def __init__(self, front: FaultyFront, buckets: Sequence[str], host: str = "127.0.0.1") -> None:
        """Make the buckets and take a free port, which is bound on return."""
        self.front, self.faults = front, front.faults
        for bucket in buckets:
            front.create_bucket(bucket)
        self._server = _Server((host, 0), front)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="object-store", daemon=True
        )

    @property
    def endpoint_url(self) -> str:
        """The value for a backend's endpoint.url."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.faults.clear()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], front: FaultyFront) -> None:
        self.front = front
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that broke; report anything else."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """Reads a request, asks the front, writes the answer."""

    protocol_version = "HTTP/1.1"  # connections stay open, as with the real one
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._write(self.server.front.handle(Request(self.command, path, query, headers, body)))

    def handle_expect_100(self) -> bool:
        """Flush the answer, because the client waits for it."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def _write(self, answer: Answer) -> None:
        self.send_response(answer.status)
        length = str(len(answer.body))
        for name, value in answer.headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            if name.lower() not in _OWN_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if answer.is_cut:
            self.wfile.write(answer.body[: len(answer.body) // 2])
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line per request would fill the output of a benchmark."""


def start_faulty_store(directory: Path, *arguments: str) -> tuple[ManagedProcess, str]:
    """Start a process with these arguments of `main`, which the caller ends; return it with its endpoint.

    Raises ProcessStartError, WaitTimeoutError.
    """
    command = (sys.executable, "-m", "tests.faulty_store", *arguments)
    checkout = Path(__file__).resolve().parents[1]
    server = ManagedProcess(
        ProcessSpec("object store server", command, directory / "server.log", directory / "pid", checkout)
    )

    def endpoint() -> str:
        first = server.log_tail().partition("\n")[0]
        return first if first.startswith("http://") else ""

    return server, server.start_until(endpoint, "listens", _START_TIMEOUT_S)


def main() -> None:
    """Serve until SIGTERM or SIGINT; print the endpoint once it answers."""
    parser = argparse.ArgumentParser(description="S3 and S3 Express look-alike, in memory, on loopback")
    parser.add_argument("--bucket", action="append", default=[], help="a bucket to make; may be given again")
    parser.add_argument("--put-latency-ms", type=float, default=0.0)
    parser.add_argument("--get-latency-ms", type=float, default=0.0)
    parser.add_argument("--behind", metavar="HOST:PORT", help="the S3 server that keeps the objects, with its buckets")
    options = parser.parse_args()
    front = FaultyFront(options.put_latency_ms / 1000, options.get_latency_ms / 1000, options.behind)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with FaultyServer(front, options.bucket) as server:
        sys.stdout.write(f"{server.endpoint_url}\n")
        sys.stdout.flush()
        stopped.wait()


if __name__ == "__main__":
    main()
