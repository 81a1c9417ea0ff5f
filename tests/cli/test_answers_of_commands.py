"""Standard output is the answer alone: JSON where that is wanted, also when there is no answer."""

import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cli.exit_code import ExitCode
from cli.main import build_app, main
from kafka_cluster import preflight

pytestmark = pytest.mark.real_connections


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Nobody listens there, and nobody else gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _broker_config(tmp_path: Path, at: str) -> Path:
    file = tmp_path / "server.properties"
    lines = {
        "node.id": "1",
        "process.roles": "broker",
        "log.dirs": str(tmp_path / "logs"),
        "listeners": "PLAINTEXT://127.0.0.1:1",
        "remote.wal.agent.bootstrap.servers": at,
        "controller.quorum.bootstrap.servers": "127.0.0.1:1",
        "controller.listener.names": "CONTROLLER",
        "remote.log.wal.storage.manager.class.name": "plugin.local_directory.LocalWalStorageManager",
        "rsm.wal.config.directory": str(tmp_path / "store"),
        "remote.wal.agent.state.directory": str(tmp_path / "state"),
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return file


@pytest.fixture
def mute_port() -> Iterator[int]:
    """Connections are taken there, and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


ASKING = (
    "status --json --bootstrap-server {at}",
    "estimate --json --bootstrap-server {at}",
    "describe --json --bootstrap-server {at}",
    "pause --json --all --bootstrap-server {at}",
    "resume --json --all --bootstrap-server {at}",
    "topics enable --json --bootstrap-server {at} orders",
    "topics set --json --durable --bootstrap-server {at} orders",
    "topics pack --json --on --bootstrap-server {at} orders",
    "topics disable --json --bootstrap-server {at} orders",
    "topics reset --json --bootstrap-server {at} orders",
    "topics list --json --bootstrap-server {at}",
    "gateway plan --json --bootstrap-server {at} --gateway-name gateway.{{zone}}.example.com",
    "reassign balance --json --bootstrap-server {at}",
    "reassign drain --json --bootstrap-server {at} 1",
    "reassign join --json --bootstrap-server {at} 1",
    "reassign execute --plan {plan} --json --bootstrap-server {at}",
    "verify --json --broker-config {file}",
    "verify --json --broker-config {file} --bootstrap-server {at}",
    "recover --dry-run --json --broker-config {file}",
    "metadata rebuild --json --broker-config {file}",
    "orphans --json --broker-config {file}",
    "held list --json --broker-config {file} topic 0",
    "report --json --bootstrap-server {at}",
)
"""Every command with --json that needs brokers, as {file} names them where no address is given."""
ASKING_NOBODY = {
    "demo", "doctor", "scenario", "config check", "cluster up",
    "deploy spark-zip", "deploy write",
}  # fmt: skip
"""The others with --json. What doctor does not learn is one of its findings."""


def test_each_command_with_json_is_asked_here() -> None:
    with_json = {name for name, options in _commands(get_command(build_app()), "") if "--json" in options}
    assert with_json == {command.partition(" --")[0] for command in ASKING} | ASKING_NOBODY


def _commands(command: Any, name: str) -> Iterator[tuple[str, set[str]]]:
    """Each command that has none below it, with its options."""
    for below, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{name} {below}".strip())
    if not hasattr(command, "commands"):
        yield name, {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("command", ASKING)
@pytest.mark.parametrize(("port", "why"), [("closed_port", "connection refused"), ("mute_port", "no answer")])
def test_where_nobody_answers_json_says_so_and_one_line_for_people(
    command: str,
    port: str,
    why: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at, plan = f"127.0.0.1:{request.getfixturevalue(port)}", tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2]}]}))
    file = _broker_config(tmp_path, at)
    words = [word.format(at=at, file=file, plan=plan, zone="{zone}") for word in command.split()]
    monkeypatch.setattr(preflight, "ANSWER_TIMEOUT_S", 0.3)
    answer, err = _failed(words, monkeypatch, capsys)
    assert re.fullmatch(rf"reach the cluster: no broker answers, after \d+\.\d s: {at}: {why}", answer["error"])
    assert err.splitlines()[-1].endswith(answer["error"])


def _failed(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, Any], str]:
    """What a command that does not find out says, on standard output and on standard error."""
    monkeypatch.setattr(sys, "argv", ["remote-wal", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    answer: dict[str, Any] = json.loads(out)
    assert (ended.value.code, answer["exit_code"]) == (ExitCode.UNKNOWN, ExitCode.UNKNOWN), (out, err)
    assert "Traceback" not in err
    return answer, err


@pytest.mark.parametrize(
    "command",
    ["describe --json", "describe --json --no-such-option", "no-such-command --json", "reassign drain --json"],
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
