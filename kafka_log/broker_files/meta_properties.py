"""Reads `meta.properties`, the identity of a log directory."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kafka_log.broker_files.java_properties import parse_properties
from kafka_log.errors import MalformedFileError

FILE_NAME = "meta.properties"


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The identity of one log directory."""

    version: int
    """1 in every KRaft cluster; 0 under ZooKeeper, with broker.id instead of node.id."""
    cluster_id: str
    node_id: int
    directory_id: str | None
    """Base64 as Kafka writes it; absent before Kafka 3.7."""


def parse_meta_properties(raw: bytes, path: Path) -> MetaProperties:
    """Parse a meta.properties file. Raises MalformedFileError that names the key."""
    try:
        properties = parse_properties(raw)
    except ValueError as error:
        raise MalformedFileError(path, 0, str(error)) from error
    version = _integer(properties, "version", path)
    node_key = "node.id" if version > 0 else "broker.id"
    cluster_id = properties.get("cluster.id", "")
    if not cluster_id:
        raise MalformedFileError(path, 0, "cluster.id is missing")
    return MetaProperties(
        version, cluster_id, _integer(properties, node_key, path), properties.get("directory.id") or None
    )


def _integer(properties: Mapping[str, str], key: str, path: Path) -> int:
    text = properties.get(key, "")
    if not text.isascii() or not text.isdigit():
        raise MalformedFileError(path, 0, f"{key} is {text!r}, expected a number")
    return int(text)


def read_meta_properties(log_dir: Path) -> MetaProperties:
    """Read the identity of `log_dir`. Raises MalformedFileError, and OSError if the directory is not formatted."""
    path = log_dir / FILE_NAME
    return parse_meta_properties(path.read_bytes(), path)


def formatted_directory(log_dirs: Iterable[Path]) -> MetaProperties | None:
    """Return the identity in the first formatted directory; None if none is formatted yet.

    Raises MalformedFileError, and OSError when no directory can be read and none may come.
    """
    unreadable: OSError | None = None
    waits = False
    for directory in log_dirs:
        try:
            return read_meta_properties(directory)
        except FileNotFoundError:
            waits = True
        except OSError as error:  # a failed disk: like the broker, we use its other directories
            unreadable = error
    if unreadable is not None and not waits:
        raise unreadable
    return None


def cluster_id_of(log_dirs: Iterable[Path]) -> str:
    """Return the cluster id of these log directories, some of which may be lost. Raises like `formatted_directory`."""
    if (found := formatted_directory(log_dirs)) is None:
        raise FileNotFoundError(f"no log directory has a {FILE_NAME}")
    return found.cluster_id


def directory_ids(log_dirs: Iterable[Path]) -> dict[str, str]:
    """Return the ids of those directories that have one, by path."""
    found = {}
    for path in log_dirs:
        with suppress(OSError, MalformedFileError):
            if (directory_id := read_meta_properties(path).directory_id) is not None:
                found[str(path)] = directory_id
    return found
