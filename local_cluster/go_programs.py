"""Programs in Go, compiled once into the directory where Kafka's jars are."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from jvm.ivy import IvyError, exclusive
from local_cluster.kafka_distribution import downloads_directory

_COMPILE_TIMEOUT_S: Final = 1800.0


class GoProgramMissingError(Exception):
    """The program is missing and cannot be compiled here; the message says what is needed."""


def go_program(module: str, version: str, environment: Mapping[str, str] | None = None) -> Path:
    """Return the path of a Go module's program, which is compiled first if it is missing. Raises
    GoProgramMissingError."""
    environment = os.environ if environment is None else environment
    name = module.rpartition("/")[2]
    try:
        home = downloads_directory(environment) / f"{name}-{version}"
    except IvyError as error:
        raise GoProgramMissingError(str(error)) from error
    program = home / name
    if program.is_file():
        return program
    go = shutil.which("go", path=environment.get("PATH"))
    if go is None:
        raise GoProgramMissingError(f"{name} needs Go, to compile {module}@{version}: there is no `go`")
    home.mkdir(parents=True, exist_ok=True)
    with exclusive(home / "compile.lock"):
        if not program.is_file():
            _compile(go, f"{module}@{version}", program, environment)
    return program


def _compile(go: str, module: str, program: Path, environment: Mapping[str, str]) -> None:
    """Install the program atomically."""
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        told = {**environment, "GOBIN": scratch, "GOFLAGS": "-buildvcs=false"}
        try:
            done = subprocess.run(
                (go, "install", module),
                env=told,
                capture_output=True,
                text=True,
                timeout=_COMPILE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GoProgramMissingError(f"cannot compile {program.name}: {error}") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["go said nothing"])[-1]
            raise GoProgramMissingError(f"cannot compile {program.name}: {last}")
        (Path(scratch) / program.name).replace(program)
