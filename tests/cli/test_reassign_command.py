"""What `remote-wal reassign` refuses before it asks a cluster."""

import pytest
from typer.testing import CliRunner

from cli import reassign
from cli.connection import Connection
from cli.reassign import app
from recovery.errors import ReassignmentError

HERE = ["--bootstrap-server", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["drain"], "Missing argument 'broker'"),
        (["execute"], "Missing option '--plan'"),
        (["execute", "--plan", "/nowhere/plan.json"], "does not exist"),
        (["balance", "--max-moves", "0"], "max-moves"),
    ],
)
def test_a_wrong_command_is_refused_with_exit_code_2(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, [arguments[0], *HERE, *arguments[1:]], terminal_width=200)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_a_drain_does_not_wait_for_sizes_that_nobody_tells(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody(_connection: Connection, _seconds: float) -> None:
        raise ReassignmentError("describe log directories", "", "timed out")

    monkeypatch.setattr(reassign, "measured_loads", nobody)
    assert reassign.stored_loads(Connection("127.0.0.1:1")) == {}
    assert "spread by their number" in capsys.readouterr().err
