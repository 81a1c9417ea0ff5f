"""A server that answers every request with the same bytes, whatever they are, and closes the connection."""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Callable

Answer = Callable[[bytes], bytes]


class OddStore(socketserver.ThreadingTCPServer):
    """Answers as `answer` says, which is given the request's head."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        self.answer: Answer = lambda _: b""
        super().__init__(("127.0.0.1", 0), _Connection)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Connection(socketserver.BaseRequestHandler):
    server: OddStore
    request: socket.socket

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.request.settimeout(30)  # far beyond what a busy machine takes to send a request
            head = b""
            while b"\r\n\r\n" not in head and (received := self.request.recv(65536)):
                head += received
            self.request.sendall(self.server.answer(head))
            self.request.shutdown(socket.SHUT_WR)
            while self.request.recv(65536):  # else the bytes that were not read would reset what was sent
                pass
