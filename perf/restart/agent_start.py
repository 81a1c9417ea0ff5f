"""From the start of an agent's process to the first byte that it relays."""

import contextlib
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from plugin.loading import DEFAULT_IMPL_PREFIX

_CHECKOUT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 60.0
_FRAME = struct.pack(">ihhih", 12, 18, 0, 1, -1) + b"\0\0"
"""A request of no client id; what it is does not matter, as it is relayed as it is."""
_SERVER_PROPERTIES = """
process.roles=broker
node.id=1
log.dirs={directory}/data
listeners=PLAINTEXT://127.0.0.1:1,REPLICATION://127.0.0.1:{broker_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT
inter.broker.listener.name=REPLICATION
remote.log.wal.storage.system.enable=true
remote.log.wal.storage.manager.class.name=plugin.local_directory.LocalWalStorageManager
{prefix}directory={directory}/objects
remote.wal.agent.state.directory={directory}/state
remote.wal.agent.peer.listener=127.0.0.1:{peer_port}
remote.wal.agent.http.listener=127.0.0.1:0
"""


def start_seconds(directory: Path) -> float:
    """Start an agent with everything on, ask it as a follower would, and end it."""
    for name in ("data", "objects"):
        (directory / name).mkdir(parents=True)
    (directory / "data" / "meta.properties").write_text("version=1\ncluster.id=start\nnode.id=1\n")
    with socket.create_server(("127.0.0.1", 0)) as broker:
        threading.Thread(target=_answer, args=(broker,), daemon=True).start()
        with socket.create_server(("127.0.0.1", 0)) as free:
            peer_port = free.getsockname()[1]
        properties = directory / "server.properties"
        properties.write_text(
            _SERVER_PROPERTIES.format(
                directory=directory,
                prefix=DEFAULT_IMPL_PREFIX,
                broker_port=broker.getsockname()[1],
                peer_port=peer_port,
            )
        )
        begun_s = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "cli.start", "agent", "--broker-config", str(properties)],
            cwd=_CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not _is_relayed(peer_port):
                if process.poll() is not None or time.monotonic() - begun_s > _TIMEOUT_S:
                    raise SystemExit(f"the agent did not begin to relay; exit code {process.returncode}")
            return time.monotonic() - begun_s
        finally:
            process.kill()
            process.wait()


def _answer(broker: socket.socket) -> None:
    """To each first frame, its size in echo: four bytes are enough."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = broker.accept()
            connection.recv(1024)
            connection.sendall(struct.pack(">ii", 4, 1))


def _is_relayed(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as follower:
        follower.sendall(_FRAME)
        return bool(follower.recv(8))
    threading.Event().wait(0.002)
    return False
