"""Every option and every argument of every command is given a word that it does not know: exit code 2, and no question.

What only a running cluster knows is checked by its answers; each such word stands in `BY_CLUSTER`.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cli import main, start
from cli.exit_code import ExitCode
from kafka_cluster import preflight

pytestmark = pytest.mark.real_connections

WORD = "no-such-word"
BY_CLUSTER = {
    "describe --topic", "pause --zone", "pause --topic", "resume --zone", "resume --topic", "orphans --confirm",
    "verify --topic", "verify --cluster-id", "recover --topic", "recover --cluster-id", "recover --log-dir",
    "topics enable topics", "topics set topics", "topics pack topics", "topics disable topics", "topics reset topics",
    "held list topic",
    "held restore topic", "held give-up topic",
}  # fmt: skip
FREE = {
    "pause --reason", "verify --drill", "report --output", "report --textfile", "report --master",
    "estimate --bytes-in", "estimate --bytes-out", "estimate --page", "cluster up --directory",
    "deploy write directory", "deploy spark-zip file", "gateway plan --gateway-name",
    "takeover --directory", "takeover --recover-option",
}  # fmt: skip
"""Texts, queries and places to write to, of which any may be meant."""
OWN_CODE = {"cluster down --directory", "kafka --directory"}
"""A directory without a cluster in it is what these find out: exit code 3."""


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))
    if not hasattr(command, "commands"):
        yield words, command


def lines(root: Any, valid: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Each option or argument, with a command line in which it alone is misspelt."""
    for words, command in commands(root):
        for parameter in command.params:
            is_option = parameter.param_type_name == "option"
            name = max(parameter.opts, key=len) if is_option else parameter.name
            if (is_option and parameter.is_flag) or name in ("--help", "words"):
                continue
            line = [*words, *([name, WORD] if is_option else [])]
            for other in command.params:
                if other.param_type_name == "argument":
                    if other is parameter or other.required:
                        line.append(WORD if other is parameter else valid[other.name])
                elif other.required and other is not parameter and not other.is_flag:
                    line += [other.opts[0], valid[other.opts[0]]]
            line += {"topics set": ["--durable"], "topics pack": ["--on"]}.get(" ".join(words), [])
            line += ["--heal"] if name == "--confirm" else []
            if words in (("pause",), ("resume",)):
                line += [*(() if "--bootstrap-server" in line else ("--bootstrap-server", "127.0.0.1:1"))]
                line += [] if name in ("--broker", "--zone", "--topic") else ["--all"]
            yield f"{' '.join(words)} {name}", line if name != "--set" or words != ("scenario",) else [*line, "today"]


def test_no_option_takes_a_word_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, plan = tmp_path / "server.properties", tmp_path / "plan.json"
    file.write_text(
        f"node.id=1\nprocess.roles=broker\nlog.dirs={tmp_path}/logs\nlisteners=PLAINTEXT://127.0.0.1:1\n"
        "controller.quorum.bootstrap.servers=127.0.0.1:1\ncontroller.listener.names=CONTROLLER\n"
        f"remote.wal.agent.bootstrap.servers=127.0.0.1:1\nrsm.wal.config.directory={tmp_path}/store\n"
    )
    plan.write_text('{"version": 1, "partitions": [{"topic": "o", "partition": 0, "replicas": [1]}]}')
    valid = {
        "--broker-config": str(file), "--bootstrap-server": "127.0.0.1:1", "--plan": str(plan), "--heir": "2",
        "topics": "orders", "topic": "orders", "broker": "1", "partition": "0", "directory": str(tmp_path / "out"),
        "tool": "topics", "--host-config": str(file), "--kafka": str(file), "--directory": str(tmp_path / "place"),
    }  # fmt: skip
    monkeypatch.setattr(preflight, "ask", _refuses)
    command, seen, wrong = get_command(main.build_app()), set(), {}
    monkeypatch.setattr(main, "build_app", lambda: command)
    for name, line in lines(command, valid):
        seen.add(name)
        if name in FREE | OWN_CODE:
            continue
        monkeypatch.setattr(sys, "argv", ["remote-wal", *line])
        with pytest.raises(SystemExit) as ended:
            start.main()
        told = capsys.readouterr()
        wanted = ExitCode.UNKNOWN if name in BY_CLUSTER else ExitCode.USAGE
        if ended.value.code != wanted or "Traceback" in told.err:
            wrong[name] = line, ended.value.code, told.err
    assert not wrong
    assert seen >= FREE | OWN_CODE | BY_CLUSTER, "each stands here for an option that there is"
    assert len(seen) > 150


def _refuses(*_: object) -> None:
    raise ConnectionRefusedError
