import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.main import get_command
from typer.testing import CliRunner

from agent.log_stream import LogStream
from cli import main as main_module
from cli import start as start_module
from cli.exit_code import ExitCode
from cli.log_lines import show_log
from kafka_cluster.client_config import LIBRDKAFKA_LOGGER
from local_cluster.layout import LayoutError


def test_help_lists_the_commands() -> None:
    result = CliRunner().invoke(main_module.build_app(), ["--help"])
    assert result.exit_code == 0
    assert "cluster" in result.output


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


def test_a_command_that_is_looked_for_in_the_wrong_group_is_named() -> None:
    done = CliRunner().invoke(main_module.build_app(), ["topics", "describe", "orders"], prog_name="remote-wal")
    assert done.exit_code == ExitCode.USAGE
    assert "is remote-wal describe meant? Here are enable, set, pack, disable, reset, list." in done.output


@pytest.mark.usefixtures("narrow")
def test_every_help_is_whole_in_80_columns() -> None:
    app, seen = main_module.build_app(), 0
    waiting: list[tuple[Any, tuple[str, ...]]] = [(get_command(app), ())]
    while waiting:
        command, words = waiting.pop()
        lines = CliRunner().invoke(app, [*words, "--help"]).output.splitlines()
        cut_off = [line for line in lines if len(line) > 80 or "\N{HORIZONTAL ELLIPSIS}" in line]
        assert not cut_off, words
        for option in command.params:
            assert all(any(name in line for line in lines) for name in option.opts if name.startswith("--")), words
        waiting += [(below, (*words, name)) for name, below in getattr(command, "commands", {}).items()]
        seen += 1
    assert seen > 30


def test_what_is_logged_meanwhile_stays_off_standard_output_and_kafkas_clients_are_quiet(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for verbose in ([], ["--verbose"]):
        show_log(verbose=bool(verbose))
        structlog.get_logger().warning("of_ours")
        structlog.get_logger().info("of_less_weight")
        logging.getLogger(LIBRDKAFKA_LOGGER).error("Connect failed")
        logging.getLogger("kafka.conn").error("Connect failed")
        out, err = capfd.readouterr()
        assert not out
        assert "of_ours" in err
        assert err.count("Connect failed") == 2 * len(verbose)
        assert ("of_less_weight" in err) == bool(verbose)


def test_help_does_not_load_what_is_heavy() -> None:
    code = (
        "import sys; from cli.main import build_app; build_app();"
        "heavy = {'numpy', 'boto3', 'obstore', 'confluent_kafka', 'kafka', 'pyspark', 'moto'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_an_error_of_ours_is_one_line_and_exit_code_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["remote-wal", "cluster", "down", "--directory", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        main_module.main()
    assert caught.value.code == 3
    assert capsys.readouterr().err.startswith("remote-wal: there is no cluster in")


def test_a_file_that_is_wrong_is_exit_code_2_as_a_wrong_command_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # an agent writes its log by a stream of its own
    file = tmp_path / "server.properties"
    file.write_text("node.id=1\nprocess.roles=broker\nremote.wal.no.such.key=1\n")
    for words in (
        ["recover", "--broker-config"],
        ["agent", "--broker-config"],
        ["agent", "--log-format=json", "--broker-config"],
    ):
        monkeypatch.setattr(sys, "argv", ["remote-wal", *words, str(file)])
        with pytest.raises(SystemExit) as caught:
            start_module.main()
        if isinstance(sys.stderr, LogStream):
            sys.stderr.drain()
        assert (caught.value.code, "remote.wal.no.such.key" in capfd.readouterr().err) == (2, True)


def test_every_exit_code_is_in_the_table_of_the_docs_and_no_other() -> None:
    text = (Path(__file__).parents[2] / "docs/operations.md").read_text().partition("## Exit codes")[2]
    codes = [int(row.split("|")[1]) for row in text.partition("## doctor")[0].splitlines() if re.match(r"\| \d", row)]
    assert codes == [code.value for code in ExitCode]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(28, "No space left on device", "/data/t-0"), "No space left on device: '/data/t-0'"),
        (ZeroDivisionError("a defect"), "Traceback"),
    ],
)
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_what_was_not_done_is_exit_code_3_whatever_was_in_the_way(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    told: str,
    json: list[str],
) -> None:
    def fails(**_: object) -> None:
        raise error

    monkeypatch.setattr(main_module, "build_app", lambda: fails)
    monkeypatch.setattr(sys, "argv", ["remote-wal", "recover", *json])
    with pytest.raises(SystemExit) as caught:
        main_module.main()
    shown = capsys.readouterr()
    assert caught.value.code == 3
    assert told in shown.err
    assert bool(json) == ('"exit_code": 3' in shown.out)
    assert (error.__class__ is OSError) == ("Traceback" not in shown.err)
    assert "Errno" not in shown.err


def test_a_wrong_command_is_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["remote-wal", "cluster", "sideways"])
    with pytest.raises(SystemExit) as caught:
        main_module.main()
    assert caught.value.code == 2


def test_only_errors_of_ours_lose_their_traceback() -> None:
    assert main_module.is_own_error(LayoutError("x"))
    assert not main_module.is_own_error(ValueError("x"))


def test_a_directory_with_other_things_in_it_is_not_taken_for_a_cluster(tmp_path: Path) -> None:
    from local_cluster.cluster import LocalCluster

    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(LayoutError, match="is not empty"):
        LocalCluster.create(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.txt"]
