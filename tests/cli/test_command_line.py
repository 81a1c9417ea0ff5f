import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import main as main_module
from local_cluster.layout import LayoutError


def test_help_lists_the_commands() -> None:
    result = CliRunner().invoke(main_module.build_app(), ["--help"])
    assert result.exit_code == 0
    assert "cluster" in result.output


def test_help_does_not_load_what_is_heavy() -> None:
    code = (
        "import sys; from cli.main import build_app; build_app();"
        "heavy = {'numpy', 'boto3', 'obstore', 'confluent_kafka', 'kafka', 'pyspark', 'moto'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_an_error_of_ours_is_one_line_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["remote-wal", "cluster", "status", "--directory", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        main_module.main()
    assert caught.value.code == 3
    assert capsys.readouterr().err.startswith("remote-wal: there is no cluster in")


def test_a_wrong_command_is_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["remote-wal", "cluster", "sideways"])
    with pytest.raises(SystemExit) as caught:
        main_module.main()
    assert caught.value.code == 2


def test_only_errors_of_ours_lose_their_traceback() -> None:
    assert main_module.is_own_error(LayoutError("x"))
    assert not main_module.is_own_error(ValueError("x"))


def test_status_of_a_cluster_that_is_down_says_so(tmp_path: Path) -> None:
    from local_cluster.cluster import LocalCluster

    LocalCluster.create(tmp_path / "cluster")
    result = CliRunner().invoke(main_module.build_app(), ["cluster", "status", "-d", str(tmp_path / "cluster")])
    assert result.exit_code == 1
    assert result.output.count("not running") == 3


def test_a_directory_with_other_things_in_it_is_not_taken_for_a_cluster(tmp_path: Path) -> None:
    from local_cluster.cluster import LocalCluster

    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(LayoutError, match="is not empty"):
        LocalCluster.create(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.txt"]
