"""A server that answers every request with the same bytes, whatever they are, and closes the connection."""

import contextlib
import socket
import threading
from collections.abc import Callable

Answer = Callable[[bytes], bytes]


class OddStore:
    """Answers as `answer` says, which is given the request's head."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _: b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(2)
                head = b""
                while b"\r\n\r\n" not in head and (received := connection.recv(65536)):
                    head += received
                connection.sendall(self.answer(head))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):  # else the bytes that were not read would reset what was sent
                    pass
