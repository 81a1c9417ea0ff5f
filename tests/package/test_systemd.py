"""The units in deploy/systemd: they start what is there, and systemd takes them."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.process import CLOSING_S
from agent.settings.process_settings import ProcessSettings
from tests.command_lines import is_command
from tests.package.bare_environment import ROOT

UNITS = ROOT / "deploy" / "systemd"
FILES = sorted(path for path in UNITS.rglob("*") if path.is_file())
PROGRAM = "/opt/remote-wal/bin/remote-wal"
MOST_EXPOSURE = 3.0
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")


def _values(file: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", file.read_text(), re.MULTILINE)


def test_every_command_exists_with_its_options() -> None:
    commands = [one for file in FILES for key in ("ExecStart", "ExecStartPre") for one in _values(file, key)]
    assert {words.split()[1] for words in commands} == {"agent", "gateway", "reassign", "recover", "report", "verify"}
    assert all(words.split()[0] == PROGRAM and is_command("", words.split()[1:]) for words in commands)


def test_every_timer_has_its_service() -> None:
    timers = [file for file in FILES if file.suffix == ".timer"]
    assert len(timers) == 3
    assert all(file.with_suffix(".service") in FILES for file in timers)


def test_the_agents_own_time_outs_come_before_systemds() -> None:
    unit = UNITS / "remote-wal.service"
    defaults = ProcessSettings()
    assert int(*_values(unit, "WatchdogSec")) > defaults.watchdog_timeout_s
    assert int(*_values(unit, "TimeoutStopSec")) > 2 * defaults.shutdown_timeout_s + CLOSING_S
    assert Path("/var/lib", *_values(unit, "StateDirectory")) == defaults.state_directory


def test_nothing_but_the_own_state_can_be_written() -> None:
    for unit in (file for file in FILES if file.suffix == ".service"):
        assert _values(unit, "ProtectSystem") == ["strict"]
        assert _values(unit, "ReadWritePaths") == []
        assert _values(unit, "CapabilityBoundingSet") == [""]


@needs_systemd
def test_systemd_takes_them(tmp_path: Path) -> None:
    shutil.copytree(UNITS, tmp_path, dirs_exist_ok=True)
    here = str(Path(sys.executable).with_name("remote-wal"))
    for file in (tmp_path / path.relative_to(UNITS) for path in FILES):
        file.write_text(file.read_text().replace(PROGRAM, here))
    (tmp_path / "kafka.service").write_text("[Service]\nExecStart=/bin/true\n")
    units = sorted(path.name for path in tmp_path.iterdir() if path.suffix in (".service", ".socket", ".timer"))
    told = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert (told.returncode, told.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("unit", [file for file in FILES if file.suffix == ".service"], ids=lambda file: file.name)
def test_little_of_the_host_is_exposed(unit: Path) -> None:
    told = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert float(re.findall(r"exposure level for \S+: ([\d.]+)", told.stdout)[0]) < MOST_EXPOSURE
