"""Standard output is the answer alone: JSON where that is wanted, also when there is no answer."""

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.exit_code import ExitCode
from cli.main import json_is_wanted, main
from cli.reachability import ClusterUnreachableError, reach

pytestmark = pytest.mark.real_connections


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Nobody listens there, and nobody else gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def broker_config(tmp_path: Path, closed_port: int) -> Path:
    file = tmp_path / "server.properties"
    lines = {
        "node.id": "1",
        "process.roles": "broker",
        "log.dirs": str(tmp_path),
        "listeners": f"PLAINTEXT://127.0.0.1:{closed_port}",
        "controller.quorum.bootstrap.servers": "127.0.0.1:1",
        "controller.listener.names": "CONTROLLER",
        "remote.log.wal.storage.manager.class.name": "plugin.local_directory.LocalWalStorageManager",
        "rsm.wal.config.directory": str(tmp_path / "store"),
        "remote.wal.agent.state.directory": str(tmp_path / "state"),
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return file


COMMANDS = (
    "describe --json --bootstrap-server {at}",
    "topics list --json --bootstrap-server {at}",
    "reassign plan --balance --json --bootstrap-server {at}",
    "reassign status --json --bootstrap-server {at}",
    "rollout check --to enabled --json --bootstrap-server {at}",
    "verify --json --broker-config {file} --bootstrap-server {at}",
    "recover --dry-run --json --broker-config {file} --bootstrap-server {at}",
    "report --json - --bootstrap-server {at}",
    "cluster status --json --directory {file}.none",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_where_nobody_answers_json_says_so_and_one_line_for_people(
    command: str,
    broker_config: Path,
    closed_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word.format(at=f"127.0.0.1:{closed_port}", file=broker_config) for word in command.split()]
    monkeypatch.setattr(sys, "argv", ["remote-wal", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (ended.value.code, answer["exit_code"]) == (ExitCode.UNKNOWN, ExitCode.UNKNOWN), (out, err)
    assert answer["error"] in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "command", ["describe --json", "describe --json --no-such-option", "no-such-command --json", "reassign plan --json"]
)
def test_a_wrong_command_is_told_as_json_where_that_is_wanted(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["remote-wal", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code, json.loads(out)["exit_code"]) == (ExitCode.USAGE, ExitCode.USAGE)
    assert json.loads(out)["error"] in err


def test_a_bad_plan_is_refused_before_anybody_is_asked(
    tmp_path: Path, closed_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    words = ["reassign", "execute", "--json", "--plan", str(plan), "--bootstrap-server", f"127.0.0.1:{closed_port}"]
    monkeypatch.setattr(sys, "argv", ["remote-wal", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.USAGE
    assert str(plan) in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("describe --json", True),
        ("describe", False),
        ("report --json -", True),
        ("report --json=-", True),
        ("report --json file.json", False),
    ],
)
def test_a_file_for_json_leaves_standard_output_to_people(words: str, wanted: bool) -> None:
    assert json_is_wanted(words.split()) is wanted


def test_one_broker_that_takes_a_connection_is_enough_and_otherwise_each_is_named(closed_port: int) -> None:
    refused = f"127.0.0.1:{closed_port}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        reach(f"{refused}, 127.0.0.1:{server.getsockname()[1]}")
    with pytest.raises(ClusterUnreachableError, match=rf"{refused}: .*refused.*; localhost:{closed_port}: "):
        reach(f"{refused},localhost:{closed_port}")
