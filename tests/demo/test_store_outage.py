"""Outages of a store that is a process."""

from pathlib import Path

import pytest

from demo.faults import StoreOutageError, server_paused
from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess, ProcessSpec


def _state(server: ManagedProcess) -> str:
    return Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_server_stands_still_and_goes_on(tmp_path: Path) -> None:
    server = ManagedProcess(ProcessSpec("server", ("sleep", "600"), tmp_path / "log", tmp_path / "pid", tmp_path))
    server.start()
    try:
        with server_paused(server):
            wait_until(lambda: _state(server) == "T", "it stands still", 10.0)
        wait_until(lambda: _state(server) != "T", "it goes on", 10.0)
    finally:
        server.kill()


def test_what_does_not_run_has_no_outage(tmp_path: Path) -> None:
    server = ManagedProcess(ProcessSpec("server", ("sleep", "600"), tmp_path / "log", tmp_path / "pid", tmp_path))
    with pytest.raises(StoreOutageError, match="does not run"), server_paused(server):
        pass
