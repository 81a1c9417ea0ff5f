"""Make the object store go away for a while, and come back with all that it held.

A directory is swapped, in one step, with a plain file: every request then fails with the error that a lost mount
of a shared directory gives. A server is paused: requests reach its host and are not answered, as if the network
swallowed them.
"""

import ctypes
import os
from pathlib import Path
from typing import Protocol

from local_cluster.processes import ManagedProcess

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
"""renameat2(2), Linux; a rename in two steps would give an agent time to make the directory anew."""


class StoreOutageError(Exception):
    """The outage could not be made or ended."""


class StoreOutage(Protocol):
    """Between `begin` and `end` the store fails every request."""

    description: str

    def begin(self) -> None: ...

    def end(self) -> None: ...


class DirectoryOutage:
    """An outage of a store that is a directory."""

    description = "requests fail, as on a lost mount"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stand_in = directory.with_name(directory.name + ".away")
        self._swap = False

    def begin(self) -> None:
        """Raises StoreOutageError."""
        self._stand_in.touch()
        _exchange(self._directory, self._stand_in)
        self._swap = True

    def end(self) -> None:
        """Nothing happens when there is no outage. Raises StoreOutageError."""
        if self._swap:
            _exchange(self._directory, self._stand_in)
            self._swap = False
            self._stand_in.unlink()


class PausedOutage:
    """An outage of a server that is a process of this machine."""

    description = "requests are never answered"

    def __init__(self, server: ManagedProcess) -> None:
        self._server = server

    def begin(self) -> None:
        """Raises StoreOutageError."""
        if not self._server.pause():
            raise StoreOutageError(f"{self._server.spec.name} does not run")

    def end(self) -> None:
        self._server.resume()


def _exchange(left: Path, right: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(left), _AT_FDCWD, os.fsencode(right), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise StoreOutageError(f"cannot swap {left} and {right}: {os.strerror(number)}")
