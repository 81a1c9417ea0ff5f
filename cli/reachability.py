"""Finds out whether a broker answers at all before librdkafka tries, which has no deadline of its own."""

import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kafka_cluster.client_config import KafkaClientConfig

CONNECT_TIMEOUT_S: Final = 10.0

_API_VERSIONS: Final = 18
_CLIENT_ID: Final = b"remote-wal"
_HEADER = struct.pack(">hhih", _API_VERSIONS, 0, 0, len(_CLIENT_ID)) + _CLIENT_ID
_QUESTION: Final = struct.pack(">i", len(_HEADER)) + _HEADER
"""An ApiVersions request of version 0, which every broker answers before any login (Kafka's protocol guide)."""


class ClusterUnreachableError(Exception):
    """None of the addresses answers."""


def reach(
    client: "KafkaClientConfig", timeout_s: float | None = None, clock: Callable[[], float] = time.monotonic
) -> None:
    """Return once a bootstrap server answers in time, by default in 10 s; all are asked at once.

    Under TLS an accepted connection is enough, because anything that is not TLS would be logged by the broker as a
    failed login. An address that is no host:port is skipped: the code that uses it reports the mistake. Raises
    ClusterUnreachableError.
    """
    begun_s = clock()
    bound_s = CONNECT_TIMEOUT_S if timeout_s is None else timeout_s
    addresses = [one.strip() for one in client.bootstrap_servers.split(",")]
    named = [one for one in addresses if one.rpartition(":")[2].isdecimal() and one.rpartition(":")[0]]
    if not named:
        return
    is_plain = not str(client.properties.get("security.protocol", "")).upper().endswith("SSL")
    reasons: dict[str, str] = {}
    pool = ThreadPoolExecutor(len(named))
    try:
        tried = {pool.submit(ask, one, bound_s, is_plain): one for one in named}
        for done in as_completed(tried):
            error = done.exception()
            if error is None:
                return
            reasons[tried[done]] = _reason(error)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    told = "; ".join(f"{one}: {reasons[one]}" for one in named)
    raise ClusterUnreachableError(f"no broker answers, after {clock() - begun_s:.1f} s: {told}")


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return "connection refused" if isinstance(error, ConnectionRefusedError) else str(error)


def ask(address: str, timeout_s: float, is_plain: bool) -> None:
    """Ask one address. Raises OSError if the connection is not accepted, or is closed without an answer."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
        if is_plain:
            connection.sendall(_QUESTION)
            if not connection.recv(1):
                raise ConnectionResetError("it closes the connection unanswered")
