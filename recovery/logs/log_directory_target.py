"""One log directory that is being rebuilt: who may write it, where unfinished logs are, and how a broker gets it.

A directory is used only if nothing of value is in it: it is absent or empty, or was formatted for this node of this
cluster and holds no partition. While it is being written, two things keep a broker away:

- Kafka's own `.lock` is held, as the broker would hold it;
- it contains the directory `.remote-wal-recovery`, where logs are until all of them are made. A name without a
  partition number ends a broker's start (LogManager: "is not in the form of topic-partition"), so a broker started on
  an unfinished directory, after a crash of the recovery, does not run with half of its data.

`meta.properties`, without which a broker does not start either, is written at the end: the logs are moved to their
places, the checkpoints written, then meta.properties. Once all directories of the broker are so far, each one's
`.remote-wal-recovery` is removed: first what is left in it, then its owner file, then the directory itself.

An interrupted recovery is continued by running it again, whatever the step. Logs that are in their places are then
taken back first, and made again. A directory without an owner file may be one that this recovery had finished: the
owner file of another one names it, or its or another one's `.remote-wal-recovery` is there and empty. It is taken as
such only if it has nothing but what a recovery leaves, because a broker that ran on it has left more.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kafka_log.broker_files.cluster_metadata import DIRECTORY_NAME as CLUSTER_METADATA
from kafka_log.broker_files.meta_properties import FILE_NAME as META_PROPERTIES
from kafka_log.broker_files.meta_properties import MetaProperties, read_meta_properties
from kafka_log.errors import MalformedFileError
from kafka_log.log_directory import parse_partition_directory_name
from kafka_log.topic_partition import is_topic_name
from plugin.durable_files import sync_directory, write_durably
from recovery.errors import TargetRefusedError

STAGING: Final = ".remote-wal-recovery"
OWNER_FILE: Final = "owner.json"
LOCK_FILE: Final = ".lock"
FSTAB: Final = Path("/etc/fstab")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_NOT_MOUNTED: Final = {"none", "swap"}
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
"""What a usable directory may contain. The controllers' log is left unchanged."""
_LEFT_BY_RECOVERY: Final = _HARMLESS | {LOG_START_CHECKPOINT, f"{LOG_START_CHECKPOINT}.tmp"}


@dataclass(frozen=True, slots=True)
class LogDirectoryIdentity:
    """The cluster, node and directory id of a log directory to be made."""

    cluster_id: str
    node_id: int
    directory_id: str


class LogDirectoryTarget:
    """A log directory that is being rebuilt, locked from `__enter__` to `__exit__`. One thread at a time; raises
    OSError."""

    def __init__(self, path: Path, identity: LogDirectoryIdentity, together: Sequence[Path] = ()) -> None:
        """`together`: all directories that are rebuilt in one recovery, including this one."""
        self.path = path
        self.identity = identity
        self._together = together
        self.staging = path / STAGING
        self._lock: int | None = None

    def __enter__(self) -> Self:
        """Lock the directory, creating it if absent. Raises TargetRefusedError."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.path)
        try:
            self._require_ours()
            self.staging.mkdir(exist_ok=True)
            owner = {
                "cluster_id": self.identity.cluster_id,
                "node_id": self.identity.node_id,
                "log_dirs": [str(path) for path in self._together],
            }
            write_durably(self.staging / OWNER_FILE, json.dumps(owner))
            sync_directory(self.path)
            self._take_back()
        except BaseException:
            self._unlock()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unlock()

    def building_place(self, topic: str, partition: int) -> Path:
        """Return the directory where a log is written until `publish`. Raises TargetRefusedError for an invalid
        topic name."""
        return self.staging / _directory_name(topic, partition)

    def publish(self, log_starts: Mapping[tuple[str, int], int]) -> None:
        """Move all logs (the keys: topic and partition), which are complete, and the small files into their places."""
        for topic, partition in log_starts:
            self.building_place(topic, partition).rename(self.path / _directory_name(topic, partition))
        sync_directory(self.path)
        lines = [f"{topic} {partition} {start}" for (topic, partition), start in sorted(log_starts.items())]
        write_durably(self.path / LOG_START_CHECKPOINT, "\n".join(["0", str(len(lines)), *lines]) + "\n")
        if not (self.path / META_PROPERTIES).exists():
            write_durably(self.path / META_PROPERTIES, _meta_properties(self.identity))

    def release(self) -> None:
        """Give the directory to the broker, once all those of the broker are published."""
        for path in self.staging.iterdir():
            if path.name != OWNER_FILE:
                _remove(path)
        sync_directory(self.staging)
        (self.staging / OWNER_FILE).unlink()
        self.staging.rmdir()
        sync_directory(self.path)

    def _take_back(self) -> None:
        """Take logs back that an interrupted recovery had put into their places."""
        for place in list(self.path.iterdir()):
            if _is_log(place):
                unfinished = self.staging / place.name
                if unfinished.exists():
                    _remove(unfinished)
                place.rename(unfinished)
        sync_directory(self.path)

    def _require_ours(self) -> None:
        refusal = refusal_of(self.path, self.identity.cluster_id, self.identity.node_id, self._together)
        if refusal is not None:
            raise refusal

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def refusal_of(path: Path, cluster_id: str, node_id: int, together: Sequence[Path] = ()) -> TargetRefusedError | None:
    """Return the error that forbids writing to this directory; None when it may be written to, or does not exist.
    Changes nothing.

    `together`: the directories that are rebuilt in one recovery, including this one.
    """

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
    if owner is not None and (owner.cluster_id, owner.node_id) != (cluster_id, node_id):
        return refused(
            f"a recovery of node {owner.node_id} of cluster {owner.cluster_id} is unfinished in it",
            "finish or empty it",
        )
    others = sorted(item.name for item in path.iterdir() if item.name not in _HARMLESS)
    if others and owner is None and not _is_of_unfinished_recovery(path, together):
        return refused(f"it is not empty: {', '.join(others[:3])}", "recovery writes only where nothing can be lost")
    return None


def _is_of_unfinished_recovery(path: Path, together: Iterable[Path]) -> bool:
    """Whether a recovery that was not finished had given this directory to the broker, and no broker ran on it.

    A broker that starts writes its other checkpoints before it loads logs.
    """
    left = (path.name in _LEFT_BY_RECOVERY or _is_log(path) for path in path.iterdir())
    if identity_in(path) is None or not all(left):
        return False
    owners = (_owner(other) for other in together)
    return any(map(_has_empty_staging, (path, *together))) or any(
        owner is not None and str(path) in owner.log_dirs for owner in owners
    )


def _has_empty_staging(path: Path) -> bool:
    """Whether removing its `.remote-wal-recovery` is all that is left to do."""
    staging = path / STAGING
    return staging.is_dir() and not any(staging.iterdir())


def is_without_logs(path: Path) -> bool:
    """Whether a directory has nothing of a broker's except its format, or an unfinished recovery. Raises OSError."""
    names = {item.name for item in path.iterdir()} if path.is_dir() else set()
    return STAGING in names or names <= _HARMLESS


def identity_in(path: Path) -> MetaProperties | None:
    """Return a formatted directory's identity; None when it is not formatted, or damaged."""
    try:
        return read_meta_properties(path)
    except (OSError, MalformedFileError):
        return None


@dataclass(frozen=True, slots=True)
class _Owner:
    """The owner of an unfinished recovery."""

    cluster_id: str
    node_id: int
    log_dirs: tuple[str, ...]
    """All directories that it rebuilds."""


def _owner(path: Path) -> _Owner | None:
    """Return the owner of an unfinished recovery in the directory."""
    try:
        owner = json.loads((path / STAGING / OWNER_FILE).read_text("ascii"))
        return _Owner(str(owner["cluster_id"]), int(owner["node_id"]), tuple(map(str, owner.get("log_dirs", ()))))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_log(path: Path) -> bool:
    named = parse_partition_directory_name(path.name)
    return named is not None and path.name != CLUSTER_METADATA and path.is_dir() and not path.is_symlink()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _locked(path: Path) -> int:
    """Lock the directory as Kafka does: a POSIX lock on `.lock`."""
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


def emptied_log_dirs(
    log_dirs: Sequence[Path],
    *,
    must_be_mounted: bool = False,
    fstab: Path = FSTAB,
    is_mounted: Callable[[Path], bool] | None = None,
) -> list[Path]:
    """Return the directories without a log, which must be restored; none if all have a broker's data.

    Asks only this host. An empty directory alone does not show whether its disk was erased or is not mounted. Data
    written into the mount point of an unmounted disk is in the way once the disk is back. So these rules apply:

    - A missing directory is not an erased one: after replacing a disk, one creates its mount point, or the directory.
    - What /etc/fstab has at the directory, or above it, must be mounted. (`/` is.)
    - If each log directory is known to be on its own disk, or is mounted by other means than fstab, `must_be_mounted`
      requires a mount below `/` in any case.

    Raises TargetRefusedError if a disk may be unmounted, OSError.
    """
    empty = [
        path
        for path in log_dirs
        if not path.exists() or is_without_logs(path) or _is_of_unfinished_recovery(path, log_dirs)
    ]
    is_mounted = is_mounted or is_mount
    configured = _mount_points(fstab) if empty else []
    for path in empty:
        if not path.is_dir():
            raise _refused(path, "it is not there", "make it, if its disk was erased; else mount the disk")
        above = [place for place in (path.resolve(), *path.resolve().parents) if place != Path("/")]
        away = [place for place in above if place in configured and not is_mounted(place)]
        if away:
            raise _refused(path, f"{fstab} has {away[0]}, which is not mounted", f"mount {away[0]}")
        if must_be_mounted and not any(is_mounted(place) for place in above):
            raise _refused(path, "it is on no file system that is mounted below /", "mount its disk")
    return empty


def is_mount(path: Path) -> bool:
    """Whether a file system is mounted at this path now."""
    return os.path.ismount(path)


def _refused(path: Path, reason: str, hint: str) -> TargetRefusedError:
    return TargetRefusedError("recover into", str(path), reason, hint)


def _mount_points(fstab: Path) -> set[Path]:
    """Return the mount points of all lines; those not mounted at boot are a reason to check as well."""
    try:
        lines = fstab.read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return set()
    fields = (line.split() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    places = (_ESCAPED.sub(lambda found: chr(int(found[1], 8)), one[1]) for one in fields if len(one) > 1)
    return {Path(os.path.realpath(place)) for place in places if place not in _NOT_MOUNTED}
