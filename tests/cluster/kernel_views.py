"""What the kernel knows of processes and their connections."""

import socket
import struct
from pathlib import Path


def unsent_bytes(local_host: str, local_port: int) -> int:
    """Bytes in the send queues of all established connections of this local address."""
    return sum(_send_queues(local_host, local_port))


def is_connected(local_host: str, local_port: int) -> bool:
    """Whether anybody has a connection to this local address."""
    return bool(_send_queues(local_host, local_port))


def _send_queues(local_host: str, local_port: int) -> list[int]:
    """In bytes, of each established connection of a local address. Source: proc(5), /proc/net/tcp."""
    host = struct.unpack("=I", socket.inet_aton(local_host))[0]
    wanted = f"{host:08X}:{local_port:04X}"
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _number, local, _remote, state, queues, *_rest = line.split()
        if local == wanted and state == "01":
            found.append(int(queues.partition(":")[0], 16))
    return found


def is_stopped(pid: int) -> bool:
    """Whether the process stands still, by SIGSTOP. Source: proc(5), /proc/pid/stat, field 3."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
