"""Builds wheel and sdist: all packages, and the files of `deploy`, lie below `remote_wal`; so does the commit."""

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
PACKAGES = tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]


def source_of(package: str) -> str:
    """Return the folder of a package: in an unpacked sdist it is below `remote_wal` already."""
    below = f"{PACKAGE}/{package}"
    return below if (HERE / below).is_dir() else package


def packages() -> list[str]:
    """Return all packages and their sub-packages, by the names that they have in the wheel."""
    inner = [(package, find_packages(str(HERE / source_of(package)))) for package in PACKAGES]
    found = [name for package, names in inner for name in (package, *(f"{package}.{name}" for name in names))]
    return [PACKAGE, *(f"{PACKAGE}.{name}" for name in found)]


def commit() -> str:
    """Return the commit that is built, by git or as the sdist says; empty if neither knows."""
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
    """Copy the parts of `deploy` that `remote-wal deploy` writes for operators."""
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
        for package in PACKAGES:
            if (Path(base_dir) / package).is_dir():
                shutil.move(f"{base_dir}/{package}", f"{base_dir}/{PACKAGE}/{package}")
        tell_commit(base_dir)
        put_deploy(base_dir)


setup(
    packages=packages(),
    package_dir={f"{PACKAGE}.{package}": source_of(package) for package in PACKAGES},
    cmdclass={"build_py": BuildPackages, "sdist": SourceDistribution},
)
