"""Kafka's jars: resolved once into a cache directory with the Ivy that PySpark brings along.

The directory of jars appears whole or not at all: Ivy fills a temporary one, which is then renamed. Processes
that want the jars at the same time wait for one another on a lock file.
"""

import contextlib
import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

from local_cluster.java import Java, JavaNotFoundError, find_java, trust_store_options

KAFKA_VERSION = "4.3.0"
LOG4J_VERSION = "2.25.4"
"""The version that Kafka's own artifacts ask for, so that binding and core agree."""

KAFKA_HOME_VARIABLE = "REMOTE_WAL_KAFKA_HOME"
"""Names the directory with Kafka's jars under `libs` (now or later); an unpacked Kafka release will do."""

RESOLVE_ATTEMPTS = 3
RESOLVE_TIMEOUT_S = 1200.0

Progress = Callable[[str], None]
"""Takes one short line that says what is under way."""


class KafkaDistributionError(Exception):
    """Kafka's jars could not be resolved; the message names the cause and the log."""


@dataclass(frozen=True, slots=True)
class KafkaDistribution:
    """Directories of jars that together are Kafka."""

    libs: Path
    tiered_libs: Path | None = None
    """The test jars with LocalTieredStorage, if they were asked for."""

    @property
    def class_path(self) -> str:
        directories = [self.libs] + ([self.tiered_libs] if self.tiered_libs else [])
        return os.pathsep.join(f"{directory}/*" for directory in directories)


def kafka_home(environment: Mapping[str, str] | None = None) -> Path:
    """Where the jars are kept: the variable's directory, the checkout's `.kafka`, or the user's cache."""
    environment = os.environ if environment is None else environment
    if chosen := environment.get(KAFKA_HOME_VARIABLE):
        return Path(chosen).expanduser().absolute()
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".kafka" / KAFKA_VERSION
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "remote-wal" / "kafka" / KAFKA_VERSION


def resolve_kafka(
    java: Java | None = None,
    *,
    tiered_storage: bool = False,
    home: Path | None = None,
    progress: Progress | None = None,
) -> KafkaDistribution:
    """Kafka's jars, fetched first if they are not there. Takes about a minute the first time, then no time.

    Java is looked for only if there is something to fetch. Raises KafkaDistributionError, JavaNotFoundError.
    """
    home = home or kafka_home()
    tell = progress or (lambda _line: None)
    libs = _resolved(java, home, "libs", tell)
    tiered = _resolved(java, home, "tiered", tell) if tiered_storage else None
    return KafkaDistribution(libs, tiered)


def _resolved(java: Java | None, home: Path, configuration: str, tell: Progress) -> Path:
    target = home / configuration
    if target.is_dir():
        if not any(target.glob("kafka-clients-*.jar")):
            raise KafkaDistributionError(f"{target} holds no Kafka jars: remove it, or correct {KAFKA_HOME_VARIABLE}")
        return target
    home.mkdir(parents=True, exist_ok=True)
    with _exclusive(home / "resolve.lock"):
        if not target.is_dir():
            tell(f"fetching Kafka {KAFKA_VERSION} ({configuration})")
            _resolve(java or find_java(), home, configuration, tell)
    return target


def _resolve(java: Java, home: Path, configuration: str, tell: Progress) -> None:
    # The cache outlives a failed attempt, so that the next one goes on where this one stopped.
    cache = home / "ivy-cache"
    log_path = home / f"resolve-{configuration}.log"
    with tempfile.TemporaryDirectory(dir=home, prefix="resolving-") as scratch:
        command = _ivy_command(java, cache, Path(scratch) / "jars", configuration)
        for attempt in range(1, RESOLVE_ATTEMPTS + 1):
            if _run_ivy(command, log_path, tell):
                break
            if attempt < RESOLVE_ATTEMPTS:
                tell("fetching failed, trying again")
        else:
            raise KafkaDistributionError(
                f"could not fetch Kafka {KAFKA_VERSION} with Ivy: {_cause(log_path)} (see {log_path})"
            )
        (Path(scratch) / "jars").rename(home / configuration)
    shutil.rmtree(cache, ignore_errors=True)


def _ivy_command(java: Java, cache: Path, jars: Path, configuration: str) -> list[str]:
    module = Path(str(resources.files("local_cluster") / "kafka-ivy.xml"))
    return [
        str(java.executable), *trust_store_options(java), *_proxy_options(os.environ),
        f"-Dkafka.version={KAFKA_VERSION}", f"-Dlog4j.version={LOG4J_VERSION}",
        "-jar", str(_ivy_jar()), "-cache", str(cache), "-ivy", str(module), "-confs", configuration,
        "-retrieve", f"{jars}/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        for jar in sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar")):
            return jar
    raise KafkaDistributionError("PySpark, whose Ivy fetches Kafka, is not installed: run ./run once")


def _proxy_options(environment: Mapping[str, str]) -> Iterator[str]:
    """Java does not read the proxy variables that other programs honour."""
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
def _exclusive(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Fetch Kafka now, for the script that sets everything up; progress on standard error."""
    try:
        resolve_kafka(progress=_show)
    except (KafkaDistributionError, JavaNotFoundError) as error:
        sys.stderr.write(f"\n{error}\n")
        return 1
    return 0


def _show(line: str) -> None:
    """Fleeting lines on a terminal; elsewhere only those that say something new."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{line}" if line.startswith(("found", "downloading")) else f"\r\033[K{line}\n")
    elif not line.startswith(("found", "downloading")):
        sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
