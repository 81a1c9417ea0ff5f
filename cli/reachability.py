"""Whether a broker can be reached at all, found out before librdkafka tries for as long as it likes."""

import socket
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final

CONNECT_TIMEOUT_S: Final = 10.0


class ClusterUnreachableError(Exception):
    """Nobody takes a connection at any of the addresses."""


def reach(bootstrap_servers: str, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
    """One of these takes a connection within the time, all tried at once. Raises ClusterUnreachableError.

    What is no host:port is passed over: who uses it says what is wrong with it.
    """
    addresses = [one.strip() for one in bootstrap_servers.split(",")]
    named = [one for one in addresses if one.rpartition(":")[2].isdecimal() and one.rpartition(":")[0]]
    if not named:
        return
    reasons: dict[str, str] = {}
    pool = ThreadPoolExecutor(len(named))
    try:
        tried = {pool.submit(connect, one, timeout_s): one for one in named}
        for done in as_completed(tried):
            error = done.exception()
            if error is None:
                return
            reasons[tried[done]] = "no answer" if isinstance(error, TimeoutError) else str(error)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    told = "; ".join(f"{one}: {reasons[one]}" for one in named)
    raise ClusterUnreachableError(f"no broker takes a connection within {timeout_s:g} s: {told}")


def connect(address: str, timeout_s: float) -> None:
    """To host:port, and away again. Raises OSError."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
