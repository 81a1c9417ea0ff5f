"""One log directory that is being rebuilt: who may write it, where half-made logs stand, and how it becomes a broker's.

Theory. A directory is taken only if nothing of value is in it: it is absent or empty, or was formatted for this very
node of this very cluster and holds no partition. While it is being written, two things keep a broker away:

- Kafka's own `.lock` is held, as the broker would hold it;
- the directory `.remote-wal-recovery` is in it, where logs stand until all of them are made. A name without a
  partition number ends a broker's start (LogManager: "is not in the form of topic-partition"), so that one started on
  a half-made directory, after a crash of the recovery, does not come up with half of its data.

`meta.properties`, without which a broker does not start either, is written when all else is done: the logs are moved
to their places, the checkpoints written, then meta.properties, and last of all `.remote-wal-recovery` goes. Every step
may be done twice, so an interrupted recovery is continued by running it again.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kafka_log.cluster_metadata import DIRECTORY_NAME as CLUSTER_METADATA
from kafka_log.errors import MalformedFileError
from kafka_log.log_directory import is_topic_name
from kafka_log.meta_properties import FILE_NAME as META_PROPERTIES
from kafka_log.meta_properties import MetaProperties, read_meta_properties
from plugin.durable_files import sync_directory, write_durably
from recovery.errors import TargetRefusedError

STAGING: Final = ".remote-wal-recovery"
OWNER_FILE: Final = "owner.json"
LOCK_FILE: Final = ".lock"
LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"

_HARMLESS: Final = frozenset(
    {
        LOCK_FILE,
        STAGING,
        META_PROPERTIES,
        f"{META_PROPERTIES}.tmp",
        "lost+found",
        "bootstrap.checkpoint",
        CLUSTER_METADATA,
    }
)
"""What may be in a directory that is taken. The controllers' log is left as it is."""


@dataclass(frozen=True, slots=True)
class LogDirectoryIdentity:
    """Whose directory it is to be."""

    cluster_id: str
    node_id: int
    directory_id: str


class LogDirectoryTarget:
    """Holds the directory from `__enter__` to `__exit__`. One thread at a time. Every method raises OSError."""

    def __init__(self, path: Path, identity: LogDirectoryIdentity) -> None:
        self.path = path
        self.identity = identity
        self.staging = path / STAGING
        self._lock: int | None = None

    def __enter__(self) -> Self:
        """Take the directory, making it where it is absent. Raises TargetRefusedError."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.path)
        try:
            self._require_ours()
            self.staging.mkdir(exist_ok=True)
            owner = {"cluster_id": self.identity.cluster_id, "node_id": self.identity.node_id}
            write_durably(self.staging / OWNER_FILE, json.dumps(owner))
            sync_directory(self.path)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def building_place(self, topic: str, partition: int) -> Path:
        """Where a log is made until `publish`. Raises TargetRefusedError for what is no topic's name."""
        return self.staging / _directory_name(topic, partition)

    def publish(self, log_starts: Mapping[tuple[str, int], int]) -> None:
        """All logs (the keys: topic and partition) are made: give the directory to the broker."""
        for topic, partition in log_starts:
            built = self.building_place(topic, partition)
            place = self.path / _directory_name(topic, partition)
            if built.is_dir():
                built.rename(place)
        sync_directory(self.path)
        lines = [f"{topic} {partition} {start}" for (topic, partition), start in sorted(log_starts.items())]
        write_durably(self.path / LOG_START_CHECKPOINT, "\n".join(["0", str(len(lines)), *lines]) + "\n")
        if not (self.path / META_PROPERTIES).exists():
            write_durably(self.path / META_PROPERTIES, _meta_properties(self.identity))
        shutil.rmtree(self.staging)
        sync_directory(self.path)

    def _require_ours(self) -> None:
        refusal = refusal_of(self.path, self.identity.cluster_id, self.identity.node_id)
        if refusal is not None:
            raise refusal

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def refusal_of(path: Path, cluster_id: str, node_id: int) -> TargetRefusedError | None:
    """Why this directory may not be written to; None when it may, or is not there. Looks only."""

    def refused(reason: str, hint: str) -> TargetRefusedError:
        return TargetRefusedError("recover into", str(path), reason, hint)

    if not path.exists():
        return None
    if not path.is_dir():
        return refused("it is no directory", "see log.dirs")
    try:
        known = read_meta_properties(path)
    except FileNotFoundError:
        known = None
    except MalformedFileError as error:
        return refused(
            f"its meta.properties cannot be understood: {error.reason}", "empty the directory, if it is lost"
        )
    if known is not None and (known.cluster_id, known.node_id) != (cluster_id, node_id):
        return refused(
            f"it belongs to node {known.node_id} of cluster {known.cluster_id}, not to node {node_id} of {cluster_id}",
            "name another directory, or empty this one",
        )
    owner = _owner(path)
    if owner is not None and owner != (cluster_id, node_id):
        return refused(f"a recovery of node {owner[1]} of cluster {owner[0]} is unfinished in it", "finish or empty it")
    others = sorted(item.name for item in path.iterdir() if item.name not in _HARMLESS)
    if others and owner is None:
        return refused(f"it is not empty: {', '.join(others[:3])}", "recovery writes only where nothing can be lost")
    return None


def is_without_logs(path: Path) -> bool:
    """Whether a directory has nothing of a broker's but its format, or an unfinished recovery. Raises OSError."""
    names = {item.name for item in path.iterdir()} if path.is_dir() else set()
    return STAGING in names or names <= _HARMLESS


def identity_in(path: Path) -> MetaProperties | None:
    """What a formatted directory says of itself; None when it is not formatted, or damaged."""
    try:
        return read_meta_properties(path)
    except (OSError, MalformedFileError):
        return None


def _owner(path: Path) -> tuple[str, int] | None:
    """Whose unfinished recovery is in the directory."""
    try:
        owner = json.loads((path / STAGING / OWNER_FILE).read_text("ascii"))
        return str(owner["cluster_id"]), int(owner["node_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _locked(path: Path) -> int:
    """The directory's lock, as Kafka takes it: a POSIX lock on `.lock`."""
    descriptor = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise TargetRefusedError(
            "recover into", str(path), "a broker, or another recovery, has locked it", "stop it first"
        ) from error
    return descriptor


def _directory_name(topic: str, partition: int) -> str:
    if not is_topic_name(topic) or partition < 0:
        raise TargetRefusedError("recover", f"{topic!r}-{partition}", "this is no name of a partition")
    return f"{topic}-{partition}"


def _meta_properties(identity: LogDirectoryIdentity) -> str:
    return (
        f"cluster.id={identity.cluster_id}\n"
        f"directory.id={identity.directory_id}\n"
        f"node.id={identity.node_id}\n"
        "version=1\n"
    )
