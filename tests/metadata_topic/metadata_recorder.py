"""A broker that does nothing but write down who asks for which topics, and whether they may be made by that.

It says of itself what a broker says that a client has to know, and of each topic that it is not there.
"""

import socket
import socketserver
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse

_API_VERSIONS, _METADATA = 18, 3
_SPOKEN = {
    _API_VERSIONS: (0, 3),
    _METADATA: (4, 12),
    0: (3, 9),
    1: (4, 16),
    2: (1, 7),
    19: (2, 5),
    23: (2, 4),
    32: (1, 4),
    75: (0, 0),
    60: (0, 1),
}
"""Versions by API key: enough for producers, consumers and admin clients to go on to ask for topics."""
UNKNOWN_TOPIC = 3


class Asked(NamedTuple):
    client_id: str
    topics: tuple[str, ...] | None
    """None: all topics."""
    may_create: bool


class MetadataRecorder:
    """Listens on loopback while entered."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._changed = threading.Condition()
        recorder = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                recorder.serve(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def address(self) -> str:
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait_for(self, topic: str, times: int = 1, timeout_s: float = 60.0) -> list[Asked]:
        """What was asked by name for this topic, once that was often enough."""

        def found() -> list[Asked]:
            return [asked for asked in self.asked if asked.topics is not None and topic in asked.topics]

        with self._changed:
            assert self._changed.wait_for(lambda: len(found()) >= times, timeout_s), self.asked
            return found()

    def serve(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as reader, suppress(ConnectionError):
            while size := reader.read(4):
                frame = reader.read(int.from_bytes(size, "big"))
                answer = self._answer(frame)
                if answer is not None:
                    connection.sendall(len(answer).to_bytes(4, "big") + answer)

    def _answer(self, frame: bytes) -> bytes | None:
        api_key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        correlation_id = int.from_bytes(frame[4:8], "big")
        if api_key == _API_VERSIONS:
            keys = [
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
                for key, (low, high) in _SPOKEN.items()
            ]
            return _encoded(ApiVersionsResponse(error_code=0, api_keys=keys, version=version), correlation_id)
        if api_key == _METADATA:
            return self._metadata(frame, version, correlation_id)
        response = self.answer(frame, api_key, version)
        return None if response is None else _encoded(response, correlation_id)

    def answer(self, frame: bytes, api_key: int, version: int) -> Any:
        """Return the answer to another request; None: there is none."""

    def topic(self, name: str) -> Any:
        """Return what is said of a topic."""
        return MetadataResponse.MetadataResponseTopic(
            error_code=UNKNOWN_TOPIC, name=name, is_internal=False, partitions=[]
        )

    def _metadata(self, frame: bytes, version: int, correlation_id: int) -> bytes:
        request: Any = MetadataRequest.decode(frame, version=version, header=True)
        names = None if request.topics is None else tuple(topic.name or "" for topic in request.topics)
        with self._changed:
            self.asked.append(Asked(request.header.client_id or "", names, request.allow_auto_topic_creation))
            self._changed.notify_all()
        host, port = self.address.split(":")
        brokers = [MetadataResponse.MetadataResponseBroker(node_id=1, host=host, port=int(port), rack=None)]
        topics = [self.topic(name) for name in names or ()]
        response = MetadataResponse(
            brokers=brokers, cluster_id="recorder", controller_id=1, topics=topics, version=version
        )
        return _encoded(response, correlation_id)


def _encoded(message: Any, correlation_id: int) -> bytes:
    message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(header=True))
