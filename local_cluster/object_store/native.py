"""A native S3 server of this machine: versitygw, a gateway in Go from S3 to files of a directory.

The look-alike in Python uses more of two cores for a request than agents do, so it would distort measurements over S3.
This one is compiled by Go, once, into the directory where Kafka's jars are.
"""

import contextlib
import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from jvm.ivy import IvyError, exclusive
from local_cluster.kafka_distribution import downloads_directory
from local_cluster.layout import free_port_block
from local_cluster.object_store.store_spec import S3Store
from local_cluster.processes import ManagedProcess, ProcessSpec
from local_cluster.security.authority import Authority

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


LOOPBACK: Final = "127.0.0.1"
VERSION: Final = "v1.8.0"
_ACCESS, _SECRET = "local", "local-secret"
_START_TIMEOUT_S: Final = 30.0


def native_server() -> Path:
    """Return the program of the S3 server versitygw, compiled first if it is missing. Raises GoProgramMissingError."""
    return go_program("github.com/versity/versitygw/cmd/versitygw", VERSION)


def start_native_store(
    directory: Path, bucket: str, *, tls: bool = True, host: str = LOOPBACK, prefix: Sequence[str] = ()
) -> tuple[ManagedProcess, S3Store]:
    """Start the S3 server of `directory`, which must allow extended attributes, with this bucket; the caller ends it.

    It listens at `host`, which its certificate names. `prefix` begins its command line, for example to run it in
    another network namespace. Raises GoProgramMissingError, ProcessStartError, WaitTimeoutError.
    """
    program = native_server()
    (directory / "objects" / bucket).mkdir(parents=True)
    (port,) = free_port_block(1, random.SystemRandom())
    files = Authority(directory).tls_for("localhost", dict.fromkeys((LOOPBACK, host)))
    command = (
        *prefix, str(program), "--port", f"{host}:{port}", "--keep-alive", "--quiet",
        *(("--cert", str(files.certificate_file), "--key", str(files.key_file)) if tls else ()),
        "posix", str(directory / "objects"),
    )  # fmt: skip
    credentials = {"ROOT_ACCESS_KEY": _ACCESS, "ROOT_SECRET_KEY": _SECRET}
    server = ManagedProcess(
        ProcessSpec("versitygw", command, directory / "server.log", directory / "pid", directory, credentials)
    )
    more = {"tls.ca.file": str(files.ca_file)} if tls else {}
    url = f"{'https' if tls else 'http'}://{host}:{port}"
    store = S3Store(url, bucket, access_key_id=_ACCESS, secret_access_key=_SECRET, more_settings=more)
    server.start_until(lambda: _listens(host, port), "listens", _START_TIMEOUT_S)
    return server, store


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False
