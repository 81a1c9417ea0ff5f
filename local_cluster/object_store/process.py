"""The S3 look-alike as a process of its own, beside brokers and agents."""

import sys
from pathlib import Path

from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess, ProcessSpec, ProcessStartError

_START_TIMEOUT_S = 30.0


def start_object_store(directory: Path, bucket: str, *arguments: str) -> tuple[ManagedProcess, str]:
    """Start the process, which the caller ends, and return it with its endpoint.

    `arguments` are further ones of object_store_server. Raises ProcessStartError, WaitTimeoutError.
    """
    server = ManagedProcess(
        ProcessSpec(
            "object store server",
            (sys.executable, "-m", "local_cluster.object_store.server", "--bucket", bucket, *arguments),
            directory / "server.log",
            directory / "pid",
            Path(__file__).resolve().parents[2],
        )
    )
    server.start()

    def endpoint() -> str:
        if not server.is_alive():
            raise ProcessStartError(f"the object store server has ended: {server.log_tail()}")
        first = server.log_tail().partition(" ")[0]
        return first if first.startswith("http://") else ""

    try:
        return server, wait_until(endpoint, "the object store server listens", _START_TIMEOUT_S)
    except BaseException:
        server.kill()
        raise
