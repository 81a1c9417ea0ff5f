"""Jars with all that they depend on, resolved once into a directory with the Ivy that PySpark brings along.

The directory of jars appears whole or not at all: Ivy fills a temporary one, which is then renamed. Processes
that want the jars at the same time wait for one another on a lock file.
"""

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from jvm.java import Java, find_java, trust_store_options

RESOLVE_ATTEMPTS = 3
RESOLVE_TIMEOUT_S = 1200.0

Progress = Callable[[str], None]
"""Takes one short line that says what is under way."""


class IvyError(Exception):
    """Ivy could not resolve the jars; the message names the cause and the log."""


def user_path(path: str) -> Path:
    """Return the path, with the user's home directory for `~`. Raises IvyError for a user without any."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # no HOME, and no entry in passwd, as of many containers' users
        raise IvyError(f"this user has no home directory for {path}: set HOME") from error


@dataclass(frozen=True, slots=True)
class JarSet:
    """A set of jars to fetch: one configuration of an Ivy module file."""

    name: str
    """For people, with the version."""
    module: Path
    configuration: str
    properties: Mapping[str, str] = field(default_factory=dict)
    """For the placeholders of the module file."""


def fetch_jars(jars: JarSet, home: Path, java: Java | None, tell: Progress) -> Path:
    """Return the directory `home/<configuration>`, filled first if it is not there.

    Java is needed only to fetch them. Raises IvyError, JavaNotFoundError.
    """
    target = home / jars.configuration
    if target.is_dir():
        return target
    home.mkdir(parents=True, exist_ok=True)
    with exclusive(home / "resolve.lock"):
        if not target.is_dir():
            tell(f"fetching {jars.name} ({jars.configuration})")
            _resolve(jars, java or find_java(), home, tell)
    return target


def _resolve(jars: JarSet, java: Java, home: Path, tell: Progress) -> None:
    # The cache outlives a failed attempt, so that the next one goes on where this one stopped.
    cache = home / "ivy-cache"
    log_path = home / f"resolve-{jars.configuration}.log"
    with tempfile.TemporaryDirectory(dir=home, prefix="resolving-") as scratch:
        command = _ivy_command(jars, java, cache, Path(scratch) / "jars")
        for attempt in range(1, RESOLVE_ATTEMPTS + 1):
            if _run_ivy(command, log_path, tell):
                break
            if attempt < RESOLVE_ATTEMPTS:
                tell("fetching failed, trying again")
        else:
            raise IvyError(f"could not fetch {jars.name} with Ivy: {_cause(log_path)} (see {log_path})")
        (Path(scratch) / "jars").rename(home / jars.configuration)
    shutil.rmtree(cache, ignore_errors=True)


def _ivy_command(jars: JarSet, java: Java, cache: Path, target: Path) -> list[str]:
    return [
        str(java.executable), *trust_store_options(java), *proxy_options(os.environ),
        *(f"-D{name}={value}" for name, value in jars.properties.items()),
        "-jar", str(_ivy_jar()), "-cache", str(cache), "-ivy", str(jars.module), "-confs", jars.configuration,
        "-retrieve", f"{target}/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        for jar in sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar")):
            return jar
    raise IvyError("PySpark, whose Ivy fetches jars, is not installed: this needs remote-wal[demo]")


def proxy_options(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield JVM options from the proxy variables of the environment, which Java itself does not read."""
    for scheme in ("http", "https"):
        proxy = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY")
        if not proxy:
            continue
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        if parts.hostname:
            yield f"-D{scheme}.proxyHost={parts.hostname}"
            yield f"-D{scheme}.proxyPort={parts.port or 80}"


def _run_ivy(command: list[str], log_path: Path, tell: Progress) -> bool:
    """Run Ivy, its output into the log; true when it resolved and fetched everything."""
    with (
        log_path.open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
    ):
        limit = threading.Timer(RESOLVE_TIMEOUT_S, process.kill)
        limit.start()
        try:
            assert process.stdout is not None  # noqa: S101 - PIPE was asked for
            for line in process.stdout:
                log.write(line)
                words = line.split()
                if len(words) >= 2 and words[0] in ("found", "downloading"):
                    tell(f"{words[0]} {words[1].rsplit('/', 1)[-1]}")
        finally:
            limit.cancel()
    return process.returncode == 0


def _cause(log_path: Path) -> str:
    markers = ("SERVER ERROR", "module not found", "Exception", "ERROR", "FAILED")
    lines = [line.strip(" \t:") for line in log_path.read_text(errors="replace").splitlines()]
    return next((line for line in lines if any(marker in line for marker in markers)), "Ivy gave no reason")


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock on this file while the context lasts, so that one process at a time runs the block."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
