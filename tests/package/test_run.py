"""The clone's `./run`: one set-up at a time, and what it leaves behind."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.package.bare_environment import ROOT


def set_up(clone: Path) -> None:
    """A clone that is set up already: its command prints its arguments."""
    for name in ("run", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, clone / name)
    command = clone / ".venv/bin/remote-wal"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\necho "$@"\n')
    command.chmod(0o755)
    wanted = b"".join((clone / name).read_bytes() for name in ("requirements.lock", "pyproject.toml"))
    told = hashlib.sha256(wanted + str(clone.resolve()).encode()).hexdigest()
    (clone / ".venv/installed").write_text(f"{told}  -\n")


def test_a_step_of_the_set_up_that_takes_long_says_so_again_and_again(tmp_path: Path) -> None:
    set_up(tmp_path)
    (tmp_path / ".venv/installed").unlink()
    run, python, goes_on = tmp_path / "run", tmp_path / "python3.13", tmp_path / "goes-on"
    run.write_text(run.read_text().replace("read -r -t 10", "read -r -t 0.1"))
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *--clear*) until [ -e {goes_on} ]; do sleep 0.05; done; echo no room; exit 1; esac\n'
    )
    python.chmod(0o755)
    found = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen([run, "--help"], stderr=subprocess.PIPE, text=True, env=found) as begun:
        assert begun.stderr is not None
        assert begun.stderr.readline().startswith("making .venv")
        assert [begun.stderr.readline()[:20] for _ in range(2)] == ["  still making .venv"] * 2
        goes_on.touch()
        assert begun.communicate(timeout=60)[1].endswith("no room\n")
    assert begun.returncode == 1


@pytest.mark.skipif(shutil.which("flock") is None, reason="not here: flock")
def test_a_second_start_during_set_up_says_what_it_waits_for(tmp_path: Path) -> None:
    set_up(tmp_path)
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    installed = tmp_path / ".venv/installed"
    installed.rename(tmp_path / "later")
    with subprocess.Popen(
        [tmp_path / "run", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as second:
        assert second.stderr is not None
        assert "waiting for it" in second.stderr.readline()
        (tmp_path / "later").rename(installed)
        os.close(held)
        out, _ = second.communicate(timeout=60)
    assert (out, second.returncode) == ("--help\n", 0)


def test_starts_of_a_clone_that_is_set_up_do_not_wait_for_each_other(tmp_path: Path) -> None:
    set_up(tmp_path)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        alone = subprocess.run([tmp_path / "run", "--help"], capture_output=True, text=True, check=True, timeout=60)
    finally:
        os.close(held)
    assert (alone.stdout, alone.stderr) == ("--help\n", "")


def test_the_directory_of_cluster_up_is_no_change_of_the_tree() -> None:
    ignored = ["git", "-C", str(ROOT), "check-ignore", "-q", ".remote-wal-cluster/cluster.json"]
    assert subprocess.run(ignored, check=False).returncode == 0
