"""Agents of another version, brokers' versions that no agent knows, and an agent that cannot start."""

import re
import socket
import struct
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from local_cluster.cluster import agent_is_ready
from local_cluster.kafka_distribution import KAFKA_VERSION
from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess, ProcessSpec
from tests.cluster.agent_views import answer_of, describe, moved_bytes, read_metrics
from tests.cluster.replica_moves import wait_for_isr
from tests.cluster.script import PATIENCE_S, PLAIN, TRANSACTIONS, Script

_ANOTHER_VERSION = """
import replication.wire.peer_protocol as protocol

protocol.Hello.__init__.__defaults__ = (protocol.CAPABILITIES, protocol.PROTOCOL_VERSION + 1, ())
from cli.main import main

main()
"""

_TELLS_FETCH_VERSIONS = """
import replication.leader.relay_core as core

read = core.parse_request_header
seen = set()

def told(frame):
    header = read(frame)
    if header.api_key == core.FETCH_API_KEY and header.api_version not in seen:
        seen.add(header.api_version)
        print("asked by Fetch", header.api_version, flush=True)
    return header

core.parse_request_header = told
from cli.main import main

main()
"""


def with_another_version(agent: ProcessSpec) -> ManagedProcess:
    """The agent in the place of the one that has this specification, this tree's, which says that it has another
    protocol version.
    """
    return _running(agent, _ANOTHER_VERSION)


def telling_fetch_versions(agent: ProcessSpec) -> ManagedProcess:
    """The same, which says in its log by which version of Fetch followers ask."""
    return _running(agent, _TELLS_FETCH_VERSIONS)


def _running(agent: ProcessSpec, program: str) -> ManagedProcess:
    return ManagedProcess(replace(agent, command=(sys.executable, "-c", program, *agent.command[3:])))


PAIRS = ((1, 2), (2, 1), (2, 3), (3, 2), (1, 3), (3, 1))
"""Leader and follower of each partition."""
MOVED_BYTES = 20_000
API_VERSIONS, FETCH = 18, 1
FETCH_VERSIONS = {"3.9": 17, "4.0": 17, "4.1": 18, "4.2": 18, "4.3": 18, "4.4": 18}
"""Of followers, where the metadata version is that of the release."""
WRONG = {"remote.wal.log.manager.combiner.thread.pool.size": "many", "remote.wal.no.such.key": "1"}


def test_an_agent_that_cannot_start_names_what_is_wrong(agent_script: Script, tmp_path: Path) -> None:
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[1, 2, 3], [3, 1, 2]])
    script.produce(PLAIN)
    script.expect_links_to_be_used()
    script.stop_agent(2)
    spec = cluster.agent(2).spec

    # A service manager that starts it over and over: each time it ends at once, and names file and keys in one line.
    wrong = tmp_path / "server.properties"
    right = cluster.layout.server_properties(2).read_text()
    wrong.write_text(right + "".join(f"{key}={value}\n" for key, value in WRONG.items()))
    command = [str(wrong) if part == str(cluster.layout.server_properties(2)) else part for part in spec.command]
    for _ in range(3):
        ended = subprocess.run(
            command, cwd=spec.working_directory, capture_output=True, text=True, timeout=60, check=False
        )
        assert (ended.returncode, ended.stdout) == (2, "")
        (line,) = ended.stderr.splitlines()
        assert all(key in line for key in (str(wrong), *WRONG)), line
    # Its broker lives, fetches from nobody, and is out of sync; with the two others acks=all goes on.
    assert cluster.broker(2).is_alive()
    wait_for_isr(cluster.admin, script.topic, [1, 3], partition=0, timeout_s=PATIENCE_S)
    script.expect_records_to_flow()

    script.start_agent(2)
    script.expect_promises()


@pytest.mark.thorough
def test_agents_of_two_versions_replicate_inline_and_by_links_once_the_last_is_upgraded(
    agent_script: Script,
) -> None:
    # 2 is upgraded: inline between it and the others, links between those -> 1 is: inline between 3 and the others
    # -> 3 is: links everywhere
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=PAIRS)
    script.produce(PLAIN, TRANSACTIONS)
    script.expect_links_to_be_used()
    newer = {one: with_another_version(cluster.agent(one).spec) for one in cluster.broker_ids}
    older = set(cluster.broker_ids)
    try:
        for broker_id in (2, 1, 3):
            script.stop_agent(broker_id)
            newer[broker_id].start()
            older.remove(broker_id)
            cluster.wait_for_agent(broker_id)
            cluster.admin.wait_for_full_isr(script.topic, timeout_s=PATIENCE_S)
            for one in cluster.broker_ids:
                expect_told(script, one, newer.keys() - older if one in older else older)
            expect_ways(script, ["inline" if len(older & {*pair}) == 1 else "linked" for pair in PAIRS])
    finally:
        for broker_id, agent in newer.items():  # one at a time: without any agent all producers stand still
            agent.terminate(30)
            script.start_agent(broker_id)
    script.expect_promises()


@pytest.mark.kafka_core
def test_followers_ask_by_the_version_of_fetch_that_belongs_to_their_release(agent_script: Script) -> None:
    script, cluster = agent_script, agent_script.cluster
    script.create_topic(assignment=[[1, 2, 3]])
    script.produce(PLAIN)
    script.stop_agent(1)
    telling = telling_fetch_versions(cluster.agent(1).spec)
    telling.start()
    try:
        cluster.wait_for_agent(1)
        script.expect_links_to_be_used()
        told = set(re.findall(r"^asked by Fetch (\d+)$", script.agent_log(1), re.MULTILINE))
        assert told == {str(FETCH_VERSIONS[KAFKA_VERSION.rpartition(".")[0]])}
    finally:
        telling.terminate(30)
    script.start_agent(1)
    script.expect_promises()


def expect_told(script: Script, broker_id: int, others: Collection[int]) -> None:
    """By this agent, which is ready, that those have another protocol version."""
    cluster, metric = script.cluster, ("remote_wal_peers_of_another_version", ())

    def is_told() -> bool:
        named = describe(cluster, broker_id)["agents_of_another_version"]
        return bool(read_metrics(cluster, broker_id)[metric] == len(others) and named == sorted(others))

    wait_until(is_told, f"agent {broker_id} tells of another version of {sorted(others)}", PATIENCE_S)
    ready = answer_of(cluster, broker_id, "/readyz").decode().splitlines()
    told = [re.search(r"the agent of broker (\d) has protocol version", line) for line in ready]
    assert ready[0] == "ready"
    assert [int(one[1]) for one in told if one is not None] == sorted(others)


def expect_ways(script: Script, ways: Sequence[str]) -> None:
    """By partition, how its records travel from now on: `linked`, or `inline` without a single link."""
    script.expect_records_to_flow()
    before = moved_bytes(script.cluster, script.topic)

    def have_moved() -> bool:
        now = moved_bytes(script.cluster, script.topic)
        grown = [now[one].since(before[one]) for one in sorted(now)]
        assert all(one.linked == 0 for one, way in zip(grown, ways, strict=True) if way == "inline"), grown
        return all(getattr(one, way) > MOVED_BYTES for one, way in zip(grown, ways, strict=True))

    wait_until(have_moved, f"records travel {list(zip(PAIRS, ways, strict=True))}", PATIENCE_S)


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
