"""A bounded number of open file descriptors for any number of files that are read repeatedly.

An OpenFiles may be shared by threads. A file is pinned while it is read, or the lock is held, so that nobody closes its
descriptor in the middle of a read and the number is reused for another file. Each LogFile belongs to one reader, which
uses it from one thread at a time. While all files are pinned, the limit is exceeded. Nothing that may wait for a disk
is done under the lock, for instance the last close of a deleted file.
"""

import errno
import os
from collections import OrderedDict
from io import BytesIO
from pathlib import Path
from threading import Lock

DEFAULT_LIMIT = 1024


class FileReplacedError(Exception):
    """The path leads to another file than when it was first opened."""


class LogFile:
    """A file known by its path and, once it was opened, by its identity (device and inode)."""

    __slots__ = ("fd", "identity", "path", "pins")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1
        self.identity: tuple[int, int] | None = None
        self.pins = 0


class OpenFiles:
    """Opens files on demand, and closes those not used for longest when there are more than `limit`."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._lock = Lock()
        self._open: OrderedDict[LogFile, None] = OrderedDict()
        self._without_nowait: set[int] = set()
        """Devices whose file system does not support reads without waiting."""

    @property
    def open_count(self) -> int:
        with self._lock:  # a new file may be open beside one that is about to be closed for it
            return len(self._open)

    def pin(self, file: LogFile) -> int:
        """Open the file if it is closed, and return its descriptor, which stays open until `unpin`.

        Raises FileReplacedError when the path leads to another file now, and OSError.
        """
        with self._lock:
            if file.fd >= 0:
                file.pins += 1
                self._open.move_to_end(file)
                return file.fd
        fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        if file.identity is not None and file.identity != identity:
            os.close(fd)
            raise FileReplacedError(str(file.path))
        file.identity = identity
        with self._lock:
            file.fd = fd
            file.pins = 1
            self._open[file] = None
            surplus = self._take_surplus()
        _close_all(surplus)
        return fd

    def unpin(self, file: LogFile) -> None:
        """Let the file be closed again, after `pin`."""
        with self._lock:
            file.pins -= 1
            surplus = self._take_surplus()
        _close_all(surplus)

    def status(self, file: LogFile) -> os.stat_result:
        """Return the file's status, without opening it when it is closed.

        Raises FileReplacedError when the path leads to another file now, and OSError.
        """
        with self._lock:
            if file.fd >= 0:
                return os.fstat(file.fd)
        status = file.path.stat()
        if file.identity is not None and file.identity != (status.st_dev, status.st_ino):
            raise FileReplacedError(str(file.path))
        return status

    def read_cached(self, file: LogFile, position: int, max_bytes: int) -> bytes:
        """Return everything from `position` to the end of an open file, if the kernel has it in memory; else nothing.

        Returns nothing as well when there are more than `max_bytes`. Waits for no disk (preadv(2), RWF_NOWAIT). Raises
        OSError.
        """
        with self._lock:
            if file.identity is None or file.fd < 0 or file.identity[0] in self._without_nowait:
                return b""
            self._open.move_to_end(file)
            size = os.fstat(file.fd).st_size - position
            if not 0 < size <= max_bytes:
                return b""
            data = BytesIO(bytes(size))  # the only way to read into future bytes without a copy
            try:
                with data.getbuffer() as buffer:
                    read = os.preadv(file.fd, [buffer], position, os.RWF_NOWAIT)
            except BlockingIOError:
                return b""
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                self._without_nowait.add(file.identity[0])
                return b""
        return data.getvalue() if read == size else b""

    def close(self, file: LogFile) -> None:
        """Close the file's descriptor. Idempotent."""
        with self._lock:
            fd, file.fd, file.pins = file.fd, -1, 0
            self._open.pop(file, None)
        if fd >= 0:
            os.close(fd)

    def close_unread(self) -> None:
        """Close all files that are not being read, when descriptors are lacking.

        They are opened again when needed.
        """
        with self._lock:
            unread = self._take(len(self._open))
        _close_all(unread)

    def _take_surplus(self) -> list[int]:
        """Take the surplus descriptors, to be closed; under the lock."""
        return self._take(max(len(self._open) - self._limit, 0))

    def _take(self, count: int) -> list[int]:
        """Take those unused for longest, without the pinned ones."""
        if not count:
            return []
        taken = []
        for file in [file for file in self._open if not file.pins][:count]:
            del self._open[file]
            taken.append(file.fd)
            file.fd = -1
        return taken


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
