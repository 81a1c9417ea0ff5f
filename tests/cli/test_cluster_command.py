"""`remote-wal cluster` and `kafka`: what they say before there is a cluster, when one starts, and at its end."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.local import cluster as command
from cli.local.cluster import DEFAULT_DIRECTORY
from cli.main import build_app
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.layout import LayoutError
from local_cluster.polling import WaitTimeoutError
from tests.command_lines import is_command


@pytest.mark.parametrize("words", ["cluster down", "cluster down --remove", "kafka topics"])
def test_without_a_cluster_the_command_that_makes_one_is_named(words: str, tmp_path: Path) -> None:
    first, *rest = words.split()
    at = ["-d", str(tmp_path)]
    told = CliRunner().invoke(build_app(), [first, *at, *rest] if first == "kafka" else [first, *rest, *at])
    assert isinstance(told.exception, LayoutError)
    assert str(told.exception).endswith("start one by ./run cluster up")


def test_a_cluster_that_has_started_is_shown_with_what_to_do_next_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    layout = LocalCluster.create(Path("mine"), settings=ClusterSettings(AgentsMode())).layout
    command._show(layout, as_json=False)  # noqa: SLF001
    command._show_next_steps(layout, DEFAULT_DIRECTORY)  # noqa: SLF001
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("directory")) <= 80
    words = {word for line in lines for word in line.split()}
    assert {
        layout.client_address(2),
        layout.peer_address(3),
        layout.agent_http_address(1),
        str(layout.directory),
        f"{DEFAULT_DIRECTORY}/agent-1/agent.log,",
    } <= words
    steps = [line.partition("./run ")[2].partition(",")[0].split() for line in lines if "./run " in line]
    assert len(steps) == 6
    assert all(is_command("", words) for words in steps)


def test_a_topic_of_the_new_cluster_has_replicas_without_asking_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_start", lambda *_: None)
    words = ["cluster", "up", "-d", str(tmp_path)]
    assert CliRunner().invoke(build_app(), words, catch_exceptions=False).exit_code == 0
    told = LocalCluster.open(tmp_path).layout.server_properties(1).read_text()
    assert "default.replication.factor=3\n" in told


def test_a_start_that_takes_too_long_says_what_it_stopped_and_which_log_to_read() -> None:
    class Slow:
        def start(self) -> None:
            raise WaitTimeoutError("not within 120 s: brokers are registered")

    with pytest.raises(WaitTimeoutError, match=r"120 s.*is stopped again.*mine/broker-\*/kafka.log.*try again"):
        command._start(Slow(), Path("mine"))  # type: ignore[arg-type]  # noqa: SLF001


@pytest.mark.parametrize(("options", "end"), [([], "data stay in {}"), (["--remove"], "{} is removed")])
def test_the_end_says_what_became_of_the_data(
    options: list[str], end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cluster:
        def stop(self) -> None: ...

        def kill_all(self) -> None: ...

    monkeypatch.setattr(LocalCluster, "open", lambda _directory: Cluster())
    directory = tmp_path / "mine"
    directory.mkdir()
    told = CliRunner().invoke(build_app(), ["cluster", "down", "-d", str(directory), *options])
    assert told.stdout == f"brokers and agents are ended; {end.format(directory)}\n"
    assert directory.exists() is not bool(options)
