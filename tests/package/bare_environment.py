"""A virtual environment with the wheel and what the bare package needs, and nothing else of this machine."""

import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60


def build(kind: str, scratch: Path, source: Path = ROOT) -> Path:
    """The wheel (`bdist_wheel`) or the sdist, made without a network and without a trace in the source."""
    made = scratch / "dist"
    command = [sys.executable, "setup.py", "-q", "egg_info", "-e", str(scratch), "build", "-b", str(scratch / "build")]
    scratch.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*command, kind, "-d", str(made)], cwd=source, check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    (file,) = made.iterdir()
    return file


def bare_distributions() -> list[Distribution]:
    """What `pip install remote-wal` brings along, in the versions that are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, Distribution] = {}
    left = [Requirement(text) for text in project["dependencies"]]
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker is not None and not wanted.marker.evaluate({"extra": ""})):
            continue
        found[name] = distribution(name)
        left += [Requirement(text) for text in found[name].requires or ()]
    return list(found.values())


def installed_bytes(distributions: list[Distribution]) -> int:
    files = (Path(str(file.locate())) for one in distributions for file in one.files or ())
    return sum(file.stat().st_size for file in files if file.is_file())


@dataclass(frozen=True, slots=True)
class BareEnvironment:
    """Where the wheel is installed as on a broker's host."""

    directory: Path

    @classmethod
    def with_wheel(cls, directory: Path, wheel: Path) -> "BareEnvironment":
        site = directory / "site"
        site.mkdir(parents=True)
        for one in bare_distributions():
            for top in {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}:
                (site / top).symlink_to(Path(str(one.locate_file(top))))
        made = [sys.executable, "-m", "venv", "--without-pip", str(directory / "venv")]
        subprocess.run(made, check=True, timeout=PATIENCE_S)
        python = directory / "venv" / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (directory / "venv" / "lib" / version / "site-packages" / "bare.pth").write_text(f"{site}\n")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "-q",
            "--python",
            str(python),
            "install",
            "--no-deps",
            "--no-index",
            str(wheel),
        ]
        subprocess.run(pip, check=True, timeout=PATIENCE_S)
        return cls(directory)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A program of the environment, outside of the checkout."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [str(self.directory / "venv" / "bin" / program), *arguments]
        return subprocess.run(
            command,
            cwd=self.directory,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
