"""The agent as a process: what it is handed at its start, what it tells, how it waits, hangs and ends."""

import asyncio
import http.client
import json
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import typer

from cli.fleet.agent import overrides_of
from tests.agent.agent_process import CHECKOUT, PATIENCE_S, agent_process
from tests.agent.agent_rig import format_log_directory, is_relayed, write_properties
from tests.replication.fetch_frames import request
from tests.replication.two_agents import ScriptedBroker, framed

OFF = {"remote_log_wal_storage_system_enable": "false", "remote_wal_archive_enable": "false"}
"""Relaying alone: these tests are not about the rest."""

AS_LARGE_AS_MAY_BE = """
import resource
hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
"""
"""Of a core dump."""


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    scripted = ScriptedBroker()
    yield scripted
    await scripted.stop()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """Where a service manager listens for what its services tell."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


async def told(manager: socket.socket, state: str) -> list[str]:
    heard: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while state not in heard:
            heard += (await asyncio.get_running_loop().sock_recv(manager, 4096)).decode().split("\n")
    return heard


def ask(port: int, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def free_port() -> int:
    with closing(listening_socket()) as listening:
        return int(listening.getsockname()[1])


def listening_socket() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


async def test_every_listener_can_be_handed_over_and_is_found_by_name_or_by_address(
    tmp_path: Path, broker: ScriptedBroker
) -> None:
    peer, page, replica, foreign = (listening_socket() for _ in range(4))
    replica_port = replica.getsockname()[1]
    properties = write_properties(
        tmp_path,
        await broker.start(),
        # Of these addresses none could be bound here: it is the handed ones that are used.
        remote_wal_agent_peer_listener="192.0.2.1:1",
        remote_wal_agent_plaintext_enable="true",
        remote_wal_agent_http_listener="192.0.2.1:2",
        remote_wal_agent_http_plaintext_accepted="true",
        remote_wal_agent_peers=f"2@127.0.0.1:{peer.getsockname()[1]}",
        remote_wal_agent_replica_port_base=str(replica_port - 2),
        **OFF,
    )
    handed = [("peer", peer), ("remote-wal.socket", replica), ("http", page), ("remote-wal.socket", foreign)]
    # Who connects before the agent is there waits for it, and is not refused.
    early = asyncio.create_task(is_relayed(peer.getsockname()))
    async with agent_process(properties, sockets=handed) as agent:
        assert await early, agent.log
        await agent.until_logged("handed_socket_not_wanted")
        assert str(foreign.getsockname()[1]) in agent.log
        status, told = await asyncio.to_thread(ask, page.getsockname()[1], "/readyz")
        assert (status, told.splitlines()[0]) == (200, "ready")
        _, writer = await asyncio.open_connection(*replica.getsockname())
        writer.write(framed(request({0: 0})))
        await agent.until_logged("peer_refused")  # at the other end is this very agent, and not broker 2's
        writer.close()
    for listening in (peer, page, replica, foreign):
        listening.close()


async def test_a_service_manager_is_told_when_it_relays_that_it_lives_and_when_it_stops(
    tmp_path: Path, broker: ScriptedBroker, manager: socket.socket
) -> None:
    properties = write_properties(tmp_path, await broker.start(), **OFF)
    notify = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "400000"}
    async with agent_process(properties, environment=notify) as agent:
        await told(manager, "READY=1")
        await told(manager, "WATCHDOG=1")
        await told(manager, "WATCHDOG=1")
        agent.process.send_signal(signal.SIGTERM)
        await told(manager, "STOPPING=1")
        assert await agent.exit_code() == 0, agent.log


BLOCKED = """
import asyncio, ctypes, time
from agent.wiring.storage_system import StorageSystem
begin = StorageSystem.start
def block(self):
    begin(self)
    {how}
StorageSystem.start = block
"""


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ("asyncio.get_running_loop().call_soon(time.sleep, 3600)", "cli/start.py"),
        (
            "asyncio.get_running_loop().run_in_executor(None, ctypes.PyDLL(None).sleep, 3600)",
            "concurrent/futures/thread.py",
        ),  # PyDLL keeps the interpreter for itself
    ],
    ids=["loop", "interpreter"],
)
async def test_an_agent_that_stands_still_ends_with_the_stacks_of_its_threads_in_its_log(
    tmp_path: Path, broker: ScriptedBroker, how: str, where: str
) -> None:
    properties = write_properties(tmp_path, await broker.start(), remote_wal_agent_watchdog_timeout_ms="1000")
    async with agent_process(properties, before=BLOCKED.format(how=how)) as agent:
        assert await agent.exit_code() == 1
        assert "Timeout (0:00:01)!" in agent.log  # before the log's thread could write on a busy machine, or after
        assert "most recent call first" in agent.log
        assert where in agent.log


async def test_a_handed_http_socket_that_is_open_to_others_needs_the_flag_too(
    tmp_path: Path, broker: ScriptedBroker
) -> None:
    properties = write_properties(tmp_path, await broker.start(), **OFF)
    with closing(socket.create_server(("0.0.0.0", 0))) as page:
        async with agent_process(properties, sockets=[("http", page)]) as agent:
            assert await agent.exit_code() == 2
            assert "remote.wal.agent.http.plaintext.accepted=true" in agent.log


async def test_log_directories_that_are_not_formatted_yet_are_waited_for(
    tmp_path: Path, broker: ScriptedBroker, manager: socket.socket
) -> None:
    peer_port, http_port = free_port(), free_port()
    properties = write_properties(
        tmp_path,
        await broker.start(),
        remote_wal_agent_peer_listener=f"127.0.0.1:{peer_port}",
        remote_wal_agent_http_listener=f"127.0.0.1:{http_port}",
        **OFF,
    )
    shutil.rmtree(tmp_path / "data")
    async with agent_process(properties, environment={"NOTIFY_SOCKET": manager.getsockname()}) as agent:
        # The broker's unit, which may format them, is started after this one is ready.
        heard = await told(manager, "READY=1")
        assert not any("relaying" in state for state in heard)
        await agent.until_logged("log_directories_not_formatted")
        status, reasons = await asyncio.to_thread(ask_until_served, http_port, "/readyz")
        assert (status, reasons) == (503, "log directories are not formatted yet\n")
        assert not await is_relayed(("127.0.0.1", peer_port))
        format_log_directory(tmp_path)
        await agent.until_logged("agent_started")
        assert await is_relayed(("127.0.0.1", peer_port))
        assert (await asyncio.to_thread(ask, http_port, "/readyz"))[0] == 200
        assert agent.log.count("log_directories_not_formatted") == 1
        assert "Traceback" not in agent.log


async def test_an_agent_that_waits_for_its_log_directories_ends_in_order(
    tmp_path: Path, broker: ScriptedBroker
) -> None:
    properties = write_properties(tmp_path, await broker.start())
    shutil.rmtree(tmp_path / "data")
    async with agent_process(properties) as agent:
        await agent.until_logged("log_directories_not_formatted")
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.exit_code() == 0
        assert "Traceback" not in agent.log


def ask_until_served(port: int, path: str) -> tuple[int, str]:
    for _ in range(1000):
        try:
            return ask(port, path)
        except ConnectionError:
            threading.Event().wait(0.01)
    raise AssertionError("nothing is served")


async def test_sigterm_ends_an_agent_whose_parts_hang_and_it_relays_until_then(
    tmp_path: Path, broker: ScriptedBroker
) -> None:
    peer_port = free_port()
    properties = write_properties(
        tmp_path, await broker.start(), remote_wal_agent_peer_listener=f"127.0.0.1:{peer_port}"
    )
    hangs = """
import agent.process
from agent.wiring.storage_system import StorageSystem
async def hang(self):
    agent.process.log.info("hangs")
    await agent.process.asyncio.Event().wait()
StorageSystem.stop = hang
agent.process.CLOSING_S = 2.0
"""
    async with agent_process(properties, before=hangs) as agent:
        await agent.until_logged("storage_ready")
        agent.process.send_signal(signal.SIGTERM)
        await agent.until_logged("hangs")
        assert await is_relayed(("127.0.0.1", peer_port))
        assert await agent.exit_code() == 0
        assert "stopped_halfway" in agent.log


def test_what_an_agent_begins_to_relay_with_has_none_of_the_heavy_libraries() -> None:
    heavy = [
        "numpy",
        "pandas",
        "pyarrow",
        "boto3",
        "botocore",
        "obstore",
        "confluent_kafka",
        "kafka",
        "typer",
        "tenacity",
    ]
    packages = [
        "agent.wiring.gateway",
        "gateway",
        "agent.wiring.storage_system",
        "rlm.write_path.remote_wal_log_manager",
        "metadata_topic.store.store",
    ]
    code = (
        "import sys; import cli.start, cli.agent_start, agent.process, agent.settings_file;"
        f"print([name for name in {heavy + packages} if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    assert told.stdout.strip() == "[]"


async def test_a_crash_leaves_no_core_dump(tmp_path: Path, broker: ScriptedBroker) -> None:
    properties = write_properties(tmp_path, await broker.start(), **OFF)
    async with agent_process(properties, before=AS_LARGE_AS_MAY_BE) as agent:
        await agent.until_logged("agent_started")
        soft, _ = resource.prlimit(agent.process.pid, resource.RLIMIT_CORE)
        assert soft == 0


async def test_sighup_tells_what_has_changed_in_the_file_and_ends_nothing(
    tmp_path: Path, broker: ScriptedBroker
) -> None:
    properties = write_properties(tmp_path, await broker.start(), **OFF)
    written = properties.read_text()
    async with agent_process(properties) as agent:
        await agent.until_logged("agent_started")
        for added, expected in (
            ("", "configuration_unchanged"),
            ("remote.wal.bandwidth.limit=bytes-of-a-secret\n", "configuration_wrong"),
            ("remote.wal.agent.shutdown.timeout.ms=1234\n", "configuration_changed"),
        ):
            properties.write_text(written + added)
            agent.process.send_signal(signal.SIGHUP)
            await agent.until_logged(expected)
        told = [json.loads(line) for line in agent.log.splitlines() if "configuration_" in line]
        assert "remote.wal.bandwidth.limit: no such setting" in told[-2]["error"]
        assert told[-1]["keys"] == ["remote.wal.agent.shutdown.timeout.ms"]
        assert "bytes-of-a-secret" not in agent.log
        agent.process.send_signal(signal.SIGTERM)
        assert await agent.exit_code() == 0


async def test_what_is_set_on_the_command_line_counts_in_the_place_of_the_file(
    tmp_path: Path, broker: ScriptedBroker
) -> None:
    port = free_port()
    properties = write_properties(tmp_path, await broker.start(), remote_wal_agent_shutdown_timeout_ms="1000", **OFF)
    over = (f"remote.wal.agent.http.listener=127.0.0.1:{port}", "remote.wal.agent.shutdown.timeout.ms=1234")
    async with agent_process(properties, arguments=[word for one in over for word in ("--set", one)]) as agent:
        await agent.until_logged("agent_started")
        agent.process.send_signal(signal.SIGHUP)
        await agent.until_logged("configuration_unchanged")
        _, told = await asyncio.to_thread(ask, port, "/config")
    assert json.loads(told)["settings"]["remote.wal.agent.shutdown.timeout.ms"] == 1234


@pytest.mark.parametrize(
    "given",
    [
        ["remote.wal.agent.shutdown.timeout.ms"],
        ["broker.rack=az2"],
        ["remote.wal.archive.enable=false", "remote.wal.archive.enable=true"],
    ],
)
def test_on_the_command_line_only_the_agents_own_keys_can_be_set_and_each_once(given: list[str]) -> None:
    with pytest.raises(typer.BadParameter):
        overrides_of(given)
