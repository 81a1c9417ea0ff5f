"""What the kernel knows of processes and their connections."""

import socket
import struct
from pathlib import Path


def unsent_bytes(local_host: str, local_port: int) -> int:
    """In the send queues of all established connections of a local address. Source: proc(5), /proc/net/tcp."""
    host = struct.unpack("=I", socket.inet_aton(local_host))[0]
    wanted = f"{host:08X}:{local_port:04X}"
    unsent = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _number, local, _remote, state, queues, *_rest = line.split()
        if local == wanted and state == "01":
            unsent += int(queues.partition(":")[0], 16)
    return unsent


def is_stopped(pid: int) -> bool:
    """Whether the process stands still, by SIGSTOP. Source: proc(5), /proc/pid/stat, field 3."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
