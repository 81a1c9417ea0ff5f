"""What is installed is what was reviewed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.package.bare_environment import ROOT, bare_distributions

LOCK = ROOT / "requirements.lock"
HOST_LOCK = ROOT / "deploy" / "packages" / "host_lock.py"
GLIBC_MINOR = 34
"""Of 2.34, which Amazon Linux 2023 and RHEL 9 have; Debian's and Ubuntu's are newer."""


@pytest.fixture(scope="module")
def host_lock() -> str:
    return subprocess.run([sys.executable, HOST_LOCK], check=True, capture_output=True, text=True).stdout


def test_every_package_is_locked_with_its_hashes() -> None:
    """Without a hash for each, pip would look at none of them."""
    text = re.sub(r"^\s*#.*$", "", LOCK.read_text(), flags=re.MULTILINE)
    packages = re.findall(r"^(\S+)(?:[ ;].*)?((?: \\\n|\n    --hash.*)*)", text, re.MULTILINE)
    assert len(packages) > 20
    assert not [name for name, _ in packages if not re.fullmatch(r"[\w.-]+(\[[\w,-]+\])?==[\w.!+]+", name)]
    assert not [name for name, hashes in packages if "--hash=sha256:" not in hashes]


def test_a_host_gets_what_the_bare_package_brings_along(host_lock: str) -> None:
    locked = [Requirement(line) for line in re.findall(r"^([a-z].*) \\$", host_lock, re.MULTILINE)]
    here = {canonicalize_name(one.name) for one in locked if one.marker is None or one.marker.evaluate()}
    wanted = {canonicalize_name(one.metadata["Name"]) for one in bare_distributions()}
    assert wanted <= here
    assert here - wanted <= {"colorama"}, "of Windows, which the lock does not say"


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_a_host_of_aarch64_installs_it_from_wheels(host_lock: str, tmp_path: Path, python: str) -> None:
    """pip takes no file whose hash the lock has not."""
    (tmp_path / "host.lock").write_text(host_lock)
    into = ["--dest", str(tmp_path / "wheels"), "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    platforms = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, GLIBC_MINOR + 1)))
    for_host = ["--python-version", python, *(f"--platform={one}_aarch64" for one in platforms)]
    command = [sys.executable, "-m", "pip", "download", "--retries", "1", *into, *for_host, "-r", "host.lock"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True, timeout=590)
    if done.returncode != 0 and "after connection broken by" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr
    wheels = [path.name for path in (tmp_path / "wheels").iterdir()]
    assert len([name for name in wheels if name.endswith("_aarch64.whl")]) > 5
    assert all(name.endswith(("_aarch64.whl", "-none-any.whl")) for name in wheels)
