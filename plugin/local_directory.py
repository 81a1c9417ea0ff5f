"""The backend on a directory: the KIP's LocalWalStorageManager, for tests and demos on one host.

A write goes to a temporary name in the final directory and is then linked to its key, which the file system does at
once and only if the key is free. A process that is killed between the two leaves the temporary file, at most one per
upload under way; its name starts with a dot, so no listing takes it for an object.
"""

import asyncio
import errno
import itertools
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from pydantic import Field

from kafka_log.crc32c import crc32c
from plugin.clients.backend_settings import ObjectBackendSettings
from plugin.clients.object_store import ListedObject, ListPage, ObjectHead, ObjectStore
from plugin.errors import (
    ObjectExistsError,
    RemoteResourceNotFoundError,
    RemoteStorageAccessError,
    RemoteStorageConfigError,
    RemoteStorageError,
)
from plugin.object_wal_storage_manager import ObjectWalStorageManager

T = TypeVar("T")

_THREADS: Final = 32
"""Requests at once; with the latencies of an object store many wait (guessed)."""
_CHUNKS_PER_WRITE: Final = 1000
"""Below IOV_MAX, which is 1024 on Linux."""
_BLOCK_BYTES: Final = 1024 * 1024
_ACCESS_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_LABELS: Final = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EMFILE: "file_descriptors",
    errno.ENFILE: "file_descriptors",
}

_MOUNTS: Final = Path("/proc/self/mountinfo")
_NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "fuse.glusterfs", "lustre", "afs"})
"""Types of mounts, as /proc/self/mountinfo names them; EFS is nfs4."""


def mount_type(directory: Path, mounts: str) -> str:
    """Return the file system type of a resolved directory, by the content of /proc/self/mountinfo."""
    found = {}
    for fields in (line.split() for line in mounts.splitlines()):
        at = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4]))
        if directory.is_relative_to(at):
            found[at] = fields[fields.index("-") + 1]
    return found[max(found, key=lambda at: len(at.parts))] if found else ""


class LocalDirectorySettings(ObjectBackendSettings):
    directory: Path = Field(description="Where the objects are stored; the agent makes it if it is not there.")
    put_latency_ms: float = Field(
        default=0.0, ge=0, description="A write takes so long at least, to stand for an object store's latency."
    )
    get_latency_ms: float = Field(default=0.0, ge=0, description="A read takes so long at least.")


class LocalWalStorageManager(ObjectWalStorageManager):
    """Stores combined segments as files in a directory."""

    settings_model = LocalDirectorySettings
    bucket_key = "directory"

    def open_store(self, settings: ObjectBackendSettings) -> ObjectStore:
        assert isinstance(settings, LocalDirectorySettings)  # noqa: S101 - narrows what settings_model made
        if not (self._context.makes_missing or settings.directory.is_dir()):
            raise RemoteStorageConfigError(
                "configure", "directory", f"there is no directory {settings.directory.absolute()}",
                "is it misspelt, or not mounted? An agent would make it at its start, empty; commands do not",
            )  # fmt: skip
        try:
            settings.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RemoteStorageConfigError(
                "configure", "directory", f"cannot make {settings.directory}: {error.strerror}"
            ) from error
        directory = settings.directory.resolve()
        kind = mount_type(directory, _MOUNTS.read_text() if _MOUNTS.exists() else "")
        if kind in _NETWORK_FILE_SYSTEMS:
            raise RemoteStorageConfigError(
                "configure", "directory",
                f"{directory} is on a network file system ({kind}), where it is not proven that of two writers of one "
                "key only one succeeds: use an object store, or a disk of this host",
            )  # fmt: skip
        return DirectoryStore(
            directory,
            settings.put_latency_ms / 1000,
            settings.get_latency_ms / 1000,
            self._sleep,
            self._clock,
        )


class DirectoryStore:
    """An ObjectStore whose keys are paths below one directory. A write survives the process, not a power cut."""

    def __init__(
        self,
        directory: Path,
        put_latency: float,
        get_latency: float,
        sleep: Callable[[float], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = str(directory)
        self._put_latency = put_latency
        self._get_latency = get_latency
        self._sleep = sleep
        self._clock = clock
        self._temporary_numbers = itertools.count()
        self._threads = ThreadPoolExecutor(_THREADS, "store")

    async def put_if_absent(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        await self._in_thread("put", key, partial(self._put, key, chunks), self._put_latency)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._in_thread("get", key, partial(self._get_range, key, start, end), self._get_latency)

    async def head(self, key: str) -> ObjectHead:
        return await self._in_thread("head", key, partial(self._head, key))

    async def delete(self, key: str) -> None:
        await self._in_thread("delete", key, partial(self._delete, key))

    async def list_page(self, prefix: str, page: str | None) -> ListPage:
        return await self._in_thread("list", prefix, lambda: ListPage(list(self._walk(prefix)), None))

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    async def _in_thread(self, operation: str, key: str, call: Callable[[], T], latency_s: float = 0.0) -> T:
        """Call it; it takes as long as a request to an object store would, including the disk's time."""
        began_s = self._clock()
        with _as_storage_errors(operation, key):
            found = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        left_s = began_s + latency_s - self._clock()
        if left_s > 0:
            await self._sleep(left_s)
        return found

    def _put(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        path = self._path_of(key)
        directory = os.path.dirname(path)  # noqa: PTH120 - Path objects would double the cost of a put
        temporary = f"{directory}/.{os.getpid()}-{threading.get_ident()}-{next(self._temporary_numbers)}"
        file = _create(temporary, directory)
        try:
            try:
                _write_all(file, chunks)
            finally:
                os.close(file)
            os.link(temporary, path)
        finally:
            os.unlink(temporary)  # noqa: PTH108

    def _get_range(self, key: str, start: int, end: int) -> bytes:
        file = os.open(self._path_of(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return os.pread(file, end - start, start)
        finally:
            os.close(file)

    def _head(self, key: str) -> ObjectHead:
        with open(self._path_of(key), "rb") as file:
            size = checksum = 0
            while block := file.read(_BLOCK_BYTES):
                size += len(block)
                checksum = crc32c(block, checksum)
            return ObjectHead(size, checksum)

    def _delete(self, key: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self._path_of(key))  # noqa: PTH108

    def _path_of(self, key: str) -> str:
        """Return the path. Raises RemoteStorageError for a key that would leave the directory."""
        if "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
            raise RemoteStorageAccessError("open", repr(key), "the key would leave the directory")
        return f"{self._directory}/{key}"

    def _walk(self, prefix: str) -> Iterator[ListedObject]:
        pending = [prefix if not prefix or prefix.endswith("/") else f"{prefix}/"]
        while pending:
            parent = pending.pop()
            try:
                scan = os.scandir(self._path_of(parent[:-1]) if parent else self._directory)
            except (FileNotFoundError, NotADirectoryError):
                continue
            with scan:
                for item in scan:
                    key = f"{parent}{item.name}"
                    if item.is_dir(follow_symlinks=False):
                        pending.append(f"{key}/")
                    elif item.is_file(follow_symlinks=False) and not item.name.startswith("."):
                        try:
                            found = item.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue  # deleted meanwhile
                        yield ListedObject(key, found.st_size, found.st_mtime_ns // 1_000_000)


def _create(path: str, directory: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o640)
    except FileNotFoundError:
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103
        return os.open(path, flags, 0o640)


def _write_all(file: int, chunks: Sequence[bytes | memoryview]) -> None:
    for first in range(0, len(chunks), _CHUNKS_PER_WRITE):
        pending = chunks[first : first + _CHUNKS_PER_WRITE]
        left = sum(map(len, pending)) - os.writev(file, pending)
        while left:  # a write may stop anywhere; that is rare, so copying the rest is fine
            rest = b"".join(pending)[-left:]
            left -= os.write(file, rest)


@contextmanager
def _as_storage_errors(operation: str, key: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise ObjectExistsError(operation, key, "the key is taken") from error
    except FileNotFoundError as error:
        raise RemoteResourceNotFoundError(operation, key, "there is no such object") from error
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _ACCESS_ERRNOS:
            raise RemoteStorageAccessError(operation, key, reason, "see the directory's permissions") from error
        raise RemoteStorageError(operation, key, reason, label=_LABELS.get(error.errno or 0, "input_output")) from error
