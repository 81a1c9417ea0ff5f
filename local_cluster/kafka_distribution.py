"""Kafka's jars, resolved once into a cache directory by `jvm.ivy`."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jvm.ivy import IvyError, JarSet, Progress, fetch_jars, user_path
from jvm.java import Java, JavaNotFoundError

KAFKA_VERSIONS = ("3.9.2", "4.0.2", "4.1.2", "4.2.2", "4.3.1", "4.4.0")
"""One version of each line, ascending: those that `./run test --kafka all` uses."""
VERSION_VARIABLE = "REMOTE_WAL_KAFKA_VERSION"
KAFKA_VERSION = os.environ.get(VERSION_VARIABLE) or KAFKA_VERSIONS[-1]
TIERED_KAFKA_VERSION = os.environ.get(VERSION_VARIABLE) or "4.3.1"
"""The usual version with tiered storage: the newest whose test jars, with LocalTieredStorage, can be fetched."""
LOG4J_VERSION = "2.25.4"
"""The version that Kafka's own artifacts ask for, so that binding and core agree."""

KAFKA_HOME_VARIABLE = "REMOTE_WAL_KAFKA_HOME"
"""Names the directory that has, or will have, Kafka's jars under `libs`; an unpacked Kafka release will do."""


class KafkaDistributionError(Exception):
    """Kafka's jars could not be resolved; the message names the cause and the log."""


@dataclass(frozen=True, slots=True)
class KafkaDistribution:
    """Directories of jars that together are one version of Kafka."""

    libs: Path
    tiered_libs: Path | None = None
    """The test jars with LocalTieredStorage, if they were requested."""
    class_archive: Path | None = None
    """The archive of `node_processes`, if there is one."""

    @property
    def class_path(self) -> str:
        directories = [self.libs] + ([self.tiered_libs] if self.tiered_libs else [])
        return os.pathsep.join(f"{directory}/*" for directory in directories)

    @property
    def class_options(self) -> tuple[str, ...]:
        """The options by which a JVM finds Kafka's classes."""
        archive: tuple[str, ...] = ()
        if self.class_archive is not None:
            # A JVM that cannot use it would report that on standard output, and continues without.
            archive = (f"-XX:SharedArchiveFile={self.class_archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")
        return (*archive, "-cp", self.class_path)


def kafka_home(environment: Mapping[str, str] | None = None, version: str = KAFKA_VERSION) -> Path:
    """Return the directory of the jars: the environment variable's, the checkout's `.kafka`, or the user's cache.

    The variable names the directory of the usual version; other versions have directories of their own.
    """
    environment = os.environ if environment is None else environment
    if version == KAFKA_VERSION and (chosen := environment.get(KAFKA_HOME_VARIABLE)):
        return user_path(chosen).absolute()
    return downloads_directory(environment) / version


def downloads_directory(environment: Mapping[str, str]) -> Path:
    """Return the directory for downloads of local clusters: the checkout's `.kafka`, or one in the user's cache.

    Raises IvyError.
    """
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".kafka"
    return user_path(environment.get("XDG_CACHE_HOME") or "~/.cache") / "remote-wal" / "kafka"


def resolve_kafka(
    java: Java | None = None,
    *,
    tiered_storage: bool = False,
    home: Path | None = None,
    progress: Progress | None = None,
    version: str = KAFKA_VERSION,
) -> KafkaDistribution:
    """Return Kafka's jars of a version, fetching them first if they are missing. Takes about a minute the first time.

    Java is needed only to fetch them. Raises KafkaDistributionError, JavaNotFoundError.
    """
    module = Path(str(resources.files("local_cluster") / "kafka-ivy.xml"))
    versions = {"kafka.version": version, "log4j.version": LOG4J_VERSION}

    def fetched(configuration: str) -> Path:
        jars = JarSet(f"Kafka {version}", module, configuration, versions)
        try:
            target = fetch_jars(jars, home or kafka_home(version=version), java, progress or (lambda _line: None))
        except IvyError as error:
            own = f"or set {KAFKA_HOME_VARIABLE} to the directory of a Kafka that is there"
            raise KafkaDistributionError(f"{error}; {own}") from error
        if not any(target.glob("kafka-clients-*.jar")):
            raise KafkaDistributionError(f"{target} holds no Kafka jars: remove it, or correct {KAFKA_HOME_VARIABLE}")
        return target

    return KafkaDistribution(fetched("libs"), fetched("tiered") if tiered_storage else None)


def main() -> int:
    """Fetch Kafka's jars now, for the script that sets everything up; progress on standard error."""

    def show(line: str) -> None:
        """Show each line for a moment on a terminal; elsewhere only lines that differ from the one before."""
        is_passing = line.startswith(("found", "downloading"))
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{line}" if is_passing else f"\r\033[K{line}\n")
        elif not is_passing:
            sys.stderr.write(f"{line}\n")

    try:
        resolve_kafka(progress=show)
    except (KafkaDistributionError, JavaNotFoundError) as error:
        sys.stderr.write(f"\n{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
