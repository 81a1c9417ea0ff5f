"""What `remote-wal reassign` refuses before it asks a cluster."""

import pytest
from typer.testing import CliRunner

from cli.reassign import app

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
