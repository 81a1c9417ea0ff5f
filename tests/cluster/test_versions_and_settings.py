"""Agents of another version, brokers' versions that no agent knows, and an agent that cannot start."""

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from local_cluster.cluster import agent_is_ready
from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess
from tests.cluster.script import PATIENCE_S, PLAIN, Script

OLDER = """
import replication.wire.peer_protocol as protocol

protocol.CAPABILITIES = protocol.PeerCapabilities.LINKS
from cli.main import main

main()
"""
"""An agent that understands links, and nothing of catching up or the archive."""
API_VERSIONS, FETCH = 18, 1
WRONG = {"remote.wal.log.manager.thread.pool.size": "many", "remote.wal.no.such.key": "1"}


def test_an_agent_that_cannot_start_and_then_one_of_an_older_version_beside_newer_ones(
    agent_script: Script, tmp_path: Path
) -> None:
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[1, 2, 3], [3, 1, 2]])
    script.produce(PLAIN)
    script.expect_links_to_be_used()
    script.stop_agent(2)
    newest = cluster.agent(2).spec

    # A service manager that starts it over and over: each time it ends at once, and names file and keys in one line.
    wrong = tmp_path / "server.properties"
    right = cluster.layout.server_properties(2).read_text()
    wrong.write_text(right + "".join(f"{key}={value}\n" for key, value in WRONG.items()))
    command = [str(wrong) if part == str(cluster.layout.server_properties(2)) else part for part in newest.command]
    for _ in range(3):
        ended = subprocess.run(
            command, cwd=newest.working_directory, capture_output=True, text=True, timeout=60, check=False
        )
        assert (ended.returncode, ended.stdout) == (3, "")
        (line,) = ended.stderr.splitlines()
        assert all(key in line for key in (str(wrong), *WRONG)), line
    # Its broker lives, fetches from nobody, and is out of sync; with the two others acks=all goes on.
    assert cluster.broker(2).is_alive()
    cluster.admin.wait_for_isr(script.topic, [1, 3], partition=0, timeout_s=PATIENCE_S)
    script.expect_records_to_flow()

    # An older version: what both understand is used, and links go on both ways.
    older = ManagedProcess(replace(newest, command=(sys.executable, "-c", OLDER, *newest.command[3:])))
    older.start()
    try:
        cluster.wait_for_agent(2)
        cluster.admin.wait_for_full_isr(script.topic, timeout_s=PATIENCE_S)
        agreed = '"capabilities": "LINKS|SHARED_READS"'  # the latter is a setting, and on by default
        wait_until(lambda: agreed in script.agent_log(1), "links alone are agreed on", PATIENCE_S)
        script.expect_links_to_be_used()
        script.expect_records_to_flow()
    finally:
        older.terminate(30)
    script.start_agent(2)
    script.expect_promises()


@contextmanager
def connected(host: str, port: int) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=PATIENCE_S) as connection:
        yield connection


def asked(connection: socket.socket, api_key: int, version: int) -> bytes:
    """The broker's answer, without its size; empty when it closes the connection."""
    client_id = b"broker-2-fetcher-0"
    request = struct.pack(">hhih", api_key, version, 7, len(client_id)) + client_id + b"\0\x01\x01\0"
    connection.sendall(struct.pack(">i", len(request)) + request)
    with connection.makefile("rb") as answer:
        size = answer.read(4)
        return answer.read(int.from_bytes(size, "big")) if size else b""


def test_what_a_broker_says_to_versions_above_ours_is_the_same_through_the_agents(agent_script: Script) -> None:
    layout = agent_script.cluster.layout
    directly = ("127.0.0.1", layout.replica_port(1))
    through_agents = (layout.agent_replica_host(2), layout.replica_port(1))
    said = []
    for address in (directly, through_agents):
        with connected(*address) as connection:
            said.append([asked(connection, API_VERSIONS, version) for version in (0, 3, 99)])
            # A broker closes the connection on a Fetch that it does not know.
            assert asked(connection, FETCH, 99) == b""
    assert said[0] == said[1]
    assert all(said[0])
    unsupported = said[0][2][4:6]
    assert int.from_bytes(unsupported, "big") == 35  # UNSUPPORTED_VERSION
    assert agent_is_ready(agent_script.cluster.layout, 2)
