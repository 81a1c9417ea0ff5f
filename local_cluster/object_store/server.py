"""An S3 and S3 Express look-alike on a port of this machine; `front` says what it does.

In a test, ObjectStoreServer is the handle. Run by itself (`python -m local_cluster.object_store.server
--help`), or
from other processes, the same port takes, from loopback only:

    GET    /_faults            the faults that are set, and how many requests were answered, by method
    POST   /_faults            set one: {"kind": "error", "methods": ["PUT"], "times": 2, "status": 503, ...}
    DELETE /_faults            clear all; requests that hang go on
    POST   /_sessions/expire   end all sessions of directory buckets
"""

import argparse
import contextlib
import http.client
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from local_cluster.object_store.faults import Faults
from local_cluster.object_store.front import Answer, Cut, ObjectStoreFront, Request

DEFAULT_BUCKET: Final = "remote-wal"
DEFAULT_DIRECTORY_BUCKET: Final = "remote-wal--local-az1--x-s3"
_OWN_HEADERS: Final = frozenset({"content-length", "connection", "transfer-encoding", "server", "date"})


class ObjectStoreServer:
    """The front on a port of this machine, in threads of this process. `with` starts and stops it."""

    def __init__(self, front: ObjectStoreFront, buckets: Sequence[str], port: int = 0, host: str = "127.0.0.1") -> None:
        """Port 0 takes a free one; the port is bound and the buckets are there on return."""
        self.front = front
        for bucket in buckets:
            front.create_bucket(bucket)
        self._server = _Server((host, port), front)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="object-store", daemon=True
        )

    @property
    def endpoint_url(self) -> str:
        """The value for a backend's endpoint.url."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def faults(self) -> Faults:
        """The faults, which tests set and clear."""
        return self.front.faults

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.front.faults.clear()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def server_behind(host_and_port: str) -> Callable[[Request], Answer]:
    """Return what asks another S3 server, without a change to the signed request.

    Raises OSError, http.client.HTTPException where that server does not answer.
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], front: ObjectStoreFront) -> None:
        self.front = front
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that went away; report anything else."""
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
        request = Request(
            self.command,
            path,
            query,
            {name.lower(): value for name, value in self.headers.items()},
            self.rfile.read(int(self.headers.get("Content-Length", 0))),
            self.client_address[0],
        )
        self._write(self.server.front.handle(request))

    def handle_expect_100(self) -> bool:
        """Flush the answer, because the client waits for it."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def _write(self, answer: Answer) -> None:
        if answer.cut is Cut.BEFORE_THE_ANSWER:
            self.close_connection = True
            return
        self.send_response(answer.status)
        length = str(len(answer.body))
        for name, value in answer.headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            if name.lower() not in _OWN_HEADERS:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if answer.cut is Cut.IN_THE_BODY:
            self.wfile.write(answer.body[: len(answer.body) // 2])
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line per request would fill the output of a benchmark."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; prints the endpoint once it answers."""
    parser = argparse.ArgumentParser(description="S3 and S3 Express look-alike, in memory, on loopback")
    parser.add_argument("--port", type=int, default=0, help="0 (the default) takes a free one")
    parser.add_argument("--express", action="store_true", help="make a directory bucket (S3 Express)")
    parser.add_argument("--bucket", action="append", help="a bucket to make; may be given again")
    parser.add_argument("--put-latency-ms", type=float, default=0.0)
    parser.add_argument("--get-latency-ms", type=float, default=0.0)
    parser.add_argument("--session-seconds", type=float, default=300.0)
    parser.add_argument("--behind", metavar="HOST:PORT", help="the S3 server that keeps the objects, with its buckets")
    options = parser.parse_args(arguments)
    latencies = options.put_latency_ms / 1000, options.get_latency_ms / 1000
    store = server_behind(options.behind) if options.behind else None
    front = ObjectStoreFront(*latencies, options.session_seconds, store=store)
    buckets = [] if store else options.bucket or [DEFAULT_DIRECTORY_BUCKET if options.express else DEFAULT_BUCKET]
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with ObjectStoreServer(front, buckets, options.port) as server:
        sys.stdout.write(f"{server.endpoint_url} {' '.join(buckets)}\n")
        sys.stdout.flush()
        stopped.wait()


if __name__ == "__main__":
    main()
