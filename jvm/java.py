"""Find a Java that runs Kafka, and tell it which certificates to trust."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MINIMUM_JAVA_MAJOR = 17
"""Kafka 4's brokers and Spark 4 need it."""

QUICK_JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For what lives for seconds or minutes on few cores: there the full compiler and a parallel collector would take more
of the machine than the work itself."""

SYSTEM_TRUST_STORES = (
    Path("/etc/ssl/certs/java/cacerts"),
    Path("/etc/pki/java/cacerts"),
    Path("/etc/pki/ca-trust/extracted/java/cacerts"),
)


class JavaNotFoundError(Exception):
    """No Java is new enough; the message says in one line what to install."""


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java and its version."""

    executable: Path
    major: int

    @property
    def home(self) -> Path:
        return self.executable.resolve().parent.parent


def parse_java_major(version_output: str) -> int | None:
    """Return the major version in the output of `java -version`; "1.8.0_392" is 8. None when there is none."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', version_output)
    if match is None:
        return None
    first, second = match.groups()
    return int(second) if first == "1" and second else int(first)


def find_java(environment: Mapping[str, str] | None = None, installed_under: Path = Path("/usr/lib/jvm")) -> Java:
    """Return the first Java of JAVA_HOME, PATH and the system's directory of JVMs that is new enough.

    Raises JavaNotFoundError.
    """
    environment = os.environ if environment is None else environment
    too_old: list[str] = []
    for executable in _candidates(environment, installed_under):
        major = _major_of(executable)
        if major is not None and major >= MINIMUM_JAVA_MAJOR:
            return Java(executable, major)
        if major is not None:
            too_old.append(f"{executable} is Java {major}")
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise JavaNotFoundError(
        f"Java {MINIMUM_JAVA_MAJOR} or newer is needed{found}: install openjdk-17-jre-headless, or set JAVA_HOME"
    )


def trust_store_options(java: Java, system_trust_stores: Sequence[Path] = SYSTEM_TRUST_STORES) -> tuple[str, ...]:
    """Return JVM options that make `java` trust the system's certificate authorities."""
    own = java.home / "lib" / "security" / "cacerts"
    for store in system_trust_stores:
        if not store.is_file() or store.stat().st_size == 0:
            continue
        if own.exists() and own.resolve() == store.resolve():
            return ()
        return (f"-Djavax.net.ssl.trustStore={store}",)
    return ()


def _candidates(environment: Mapping[str, str], installed_under: Path) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environment.get("PATH")):
        yield Path(on_path)
    if installed_under.is_dir():
        yield from sorted(installed_under.glob("*/bin/java"))


def _major_of(executable: Path) -> int | None:
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_major(answer.stderr + answer.stdout)
