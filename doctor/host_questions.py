"""Asks this host's kernel, and other agents over the network."""

import os
import resource
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from agent.identity import LOCK_FILE
from kafka_cluster.preflight import unverified
from kafka_log.log_directory import LogDirectory
from plugin.errors import in_words
from replication.wire.peer_connection import Address, PeerTls

_CLIENT_ID = b"remote-wal-doctor"
_API_VERSIONS = struct.pack(">ihhih", 10 + len(_CLIENT_ID), 18, 0, 1, len(_CLIENT_ID)) + _CLIENT_ID
"""A frame with an ApiVersions request of version 0 and correlation id 1, which has no body."""
_MAX_USER_WATCHES = Path("/proc/sys/fs/inotify/max_user_watches")
_LOCKS = Path("/proc/locks")
_HOSTS_OPTION = "-Djdk.net.hosts.file="


def count_partitions(log_dirs: tuple[Path, ...]) -> int:
    """Count the partition directories in all log directories. Raises LogDirectoryError."""
    count = 0
    for path in log_dirs:
        directory = LogDirectory(path)
        directory.scan()
        count += len(directory.partitions)
    return count


def max_user_watches() -> int:
    """Return the kernel's limit of inotify watches. Raises OSError, ValueError."""
    return int(_MAX_USER_WATCHES.read_text())


def open_files_limit(state_directory: Path) -> tuple[int, str]:
    """Return the limit of open files of the agent with this state directory, else of this process; and which of the
    two."""
    try:
        pid = lock_holder(_LOCKS.read_text(), (state_directory / LOCK_FILE).stat())
        if pid is not None:
            return soft_limit(Path(f"/proc/{pid}/limits").read_text()), f"the agent (process {pid})"
    except (OSError, ValueError):
        pass  # another user's process, or one that has just ended
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0], "this process (no running agent to be seen)"


def lock_holder(locks: str, file: os.stat_result, kind: str = "FLOCK") -> int | None:
    """Return the id of the process that holds a lock of this kind on the file, by the content of /proc/locks; None
    without one."""
    wanted = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    for line in locks.splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[1] == kind and fields[5] == wanted:
            return int(fields[4])
    return None


def soft_limit(limits: str) -> int:
    """Return the soft limit of open files in the content of /proc/<pid>/limits. Raises ValueError."""
    for line in limits.splitlines():
        if line.startswith("Max open files"):
            soft = line.split()[3]
            return 2**31 if soft == "unlimited" else int(soft)
    raise ValueError("no line Max open files")


def dial(address: Address, tls: PeerTls | None, timeout_s: float) -> str | None:
    """Connect to an address and close again. Returns None, or why that failed. No agent relays anything for it."""
    try:
        with socket.create_connection((address.host, address.port), timeout_s) as connection:
            if tls is not None:
                with tls.client_context().wrap_socket(connection):
                    return None
            return None
    except OSError as error:  # TLS errors, too
        return f"{address}: {in_words(error)}"


def silence(address: Address, timeout_s: float, *, has_tls: bool) -> str | None:
    """Return why a broker says nothing at a listener; None if it says anything, be it a refusal. A frozen process says
    nothing, though its kernel takes the connection."""
    try:
        with socket.create_connection((address.host, address.port), timeout_s) as connection:
            if not has_tls:
                connection.sendall(_API_VERSIONS)
                connection.recv(1)
                return None
            with unverified().wrap_socket(connection):
                return None
    except (ssl.SSLError, ConnectionResetError):
        return None
    except OSError as error:
        return f"{address}: {in_words(error)}"


def broker_hosts(log_dirs: Iterable[Path]) -> dict[str, tuple[str, ...]] | None:
    """Return the addresses of all names in the hosts file of the broker's Java, which reads no other then; None if it
    has none, or no broker runs here."""
    for directory in log_dirs:
        try:
            pid = lock_holder(_LOCKS.read_text(), (directory / ".lock").stat(), "POSIX")
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            files = [word.removeprefix(_HOSTS_OPTION) for word in words if word.startswith(_HOSTS_OPTION)]
            lines = [line.partition("#")[0].split() for line in Path(files[-1]).read_text().splitlines()]
        except (OSError, IndexError):
            continue
        named = sorted((name, line[0]) for line in lines for name in line[1:])
        return {name: tuple(address for one, address in named if one == name) for name, _ in named}
    return None


def addresses_of(host: str, hosts: Mapping[str, tuple[str, ...]] | None = None) -> tuple[str, ...]:
    """Return the addresses that the name resolves to, by this hosts file alone if there is one. Raises OSError."""
    if hosts is not None:
        if host not in hosts:
            raise OSError(f"{host} is not in the broker's hosts file")
        return hosts[host]
    return tuple(sorted({str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}))


def ask_broker(
    address: Address, tls: Callable[[], ssl.SSLContext | None], timeout_s: float, name: str | None = None
) -> str | None:
    """Send an ApiVersions request, which needs no login. Returns None, or why that failed. The certificate must have
    the `name`.

    A client certificate that the broker does not trust shows only then: in TLS 1.3 the connection exists before it is
    checked.
    """
    try:
        context = tls()
        with socket.create_connection((address.host, address.port), timeout_s) as connection:
            if context is None:
                return _api_versions(address, connection)
            with context.wrap_socket(connection, server_hostname=name or address.host) as encrypted:
                return _api_versions(address, encrypted)
    except OSError as error:  # TLS errors, too
        return f"{address}: {in_words(error)}"


def _api_versions(address: Address, connection: socket.socket) -> str | None:
    connection.sendall(_API_VERSIONS)
    answer = connection.recv(8)
    return None if answer[4:8] == _API_VERSIONS[8:12] else f"{address}: closed, or no broker's answer"
