"""`remote-wal deploy`: what is written, and what is left as it is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.fleet import deploy
from cli.fleet.deploy import PARTS, app
from remote_wal import ROOT

UNIT = "systemd/remote-wal.service"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, [*words])


def test_each_part_has_files(tmp_path: Path) -> None:
    told = json.loads(run("write", str(tmp_path), "--json").stdout)
    assert {one.partition("/")[0] for one in told["written"]} == {*PARTS}


def test_a_part_is_written_alone(tmp_path: Path) -> None:
    told = run("write", str(tmp_path), "prometheus", "--json")
    assert json.loads(told.stdout)["written"] == ["prometheus/alerts.yml"]
    assert [path.name for path in tmp_path.iterdir()] == ["prometheus"]


def test_an_operators_own_changes_are_kept(tmp_path: Path) -> None:
    run("write", str(tmp_path), "systemd")
    as_shipped = (tmp_path / UNIT).read_text()
    assert run("write", str(tmp_path), "systemd").exit_code == 0, "the same files are no reason to refuse"
    (tmp_path / UNIT).write_text("of the operator")
    refused = run("write", str(tmp_path))
    assert refused.exit_code == 4
    assert UNIT in refused.stderr
    assert (tmp_path / UNIT).read_text() == "of the operator"
    assert not (tmp_path / "helm").exists(), "nothing is written then"
    assert run("write", str(tmp_path), "--replace").exit_code == 0
    assert (tmp_path / UNIT).read_text() == as_shipped
    assert (tmp_path / "image" / "Dockerfile").is_file()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    told = run("write", str(tmp_path), "puppet")
    assert told.exit_code == 2
    assert "there is no puppet" in told.stderr


def test_what_python_compiled_is_not_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip compiles the wheel's files, and the result differs from one installation to the next."""
    home = tmp_path / "remote_wal"
    for name in (UNIT, "strimzi/agent.py", "strimzi/__pycache__/agent.cpython-312.pyc"):
        (home / "deploy" / name).parent.mkdir(parents=True, exist_ok=True)
        (home / "deploy" / name).write_text(name)
    monkeypatch.setattr(deploy, "__file__", str(home / "cli" / "fleet" / "deploy.py"))
    assert json.loads(run("write", str(tmp_path / "out"), "--json").stdout)["written"] == ["strimzi/agent.py", UNIT]


IMPORT_ALL = """
import importlib, sys, zipfile
zipped = sys.argv[1]
names = [name for name in zipfile.ZipFile(zipped).namelist() if name.endswith(".py")]
for name in names:
    module = importlib.import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    assert module.__file__.startswith(zipped), module.__file__
from plugin.prices import PriceTable
from retention_job.cost.scenarios import scenario_names
PriceTable.load()
assert scenario_names()
import remote_wal
assert remote_wal.RemoteWalDataSource.__module__ == "remote_wal"
print(len(names))
"""


def test_all_that_is_in_the_zip_for_spark_is_imported_from_it_alone(tmp_path: Path) -> None:
    zipped = tmp_path / "remote-wal.zip"
    assert run("spark-zip", str(zipped)).exit_code == 0
    # The zip comes first on the path, as spark-submit puts it there; what it lacks may come from nowhere.
    environment = {**os.environ, "PYTHONPATH": str(zipped)}
    command = [sys.executable, "-c", IMPORT_ALL, str(zipped)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 400
    assert (tmp_path / "spark_submit.py").read_text() == (ROOT / "cli" / "spark_submit.py").read_text()
