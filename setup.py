"""Puts the rooms, and what `deploy` has, below `remote_wal` in what is built, and the commit beside them."""

import shutil
import subprocess
import tomllib
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
PACKAGE = "remote_wal"
COMMIT = f"{PACKAGE}/commit.txt"
ROOMS = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]


def source_of(room: str) -> str:
    """Where it lies: in an unpacked sdist below the package already."""
    below = f"{PACKAGE}/{room}"
    return below if (HERE / below).is_dir() else room


def packages() -> list[str]:
    """The rooms and all that is in them, by the names that they have in what is built."""
    inner = [(room, find_packages(str(HERE / source_of(room)))) for room in ROOMS]
    rooms = [name for room, names in inner for name in (room, *(f"{room}.{name}" for name in names))]
    return [PACKAGE, *(f"{PACKAGE}.{name}" for name in rooms)]


def commit() -> str:
    """What is built: by git, or as the sdist says; nothing where neither knows."""
    told = HERE / COMMIT
    if told.is_file():
        return told.read_text().strip()
    if not (HERE / ".git").exists() or shutil.which("git") is None:
        return ""
    asked = ["git", "-C", str(HERE), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=-changed"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def tell_commit(directory: str) -> None:
    if known := commit():
        (Path(directory) / COMMIT).write_text(f"{known}\n")


def put_deploy(directory: str) -> None:
    """Copy what an operator installs, as `remote-wal deploy` knows it."""
    parts = ("ansible", "aws", "grafana", "helm", "image", "prometheus", "spark", "strimzi", "systemd", "terraform")
    for part in parts:
        shutil.copytree(HERE / source_of("deploy") / part, f"{directory}/{PACKAGE}/deploy/{part}", dirs_exist_ok=True)


class BuildPackages(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            tell_commit(self.build_lib)
            put_deploy(self.build_lib)


class SourceDistribution(sdist):
    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for room in ROOMS:
            if (Path(base_dir) / room).is_dir():
                shutil.move(f"{base_dir}/{room}", f"{base_dir}/{PACKAGE}/{room}")
        tell_commit(base_dir)
        put_deploy(base_dir)


setup(
    packages=packages(),
    package_dir={f"{PACKAGE}.{room}": source_of(room) for room in ROOMS},
    cmdclass={"build_py": BuildPackages, "sdist": SourceDistribution},
)
