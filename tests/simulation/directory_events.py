"""Stands for inotify: tells what `LogWriter` did to directories, by comparing what is in them before and after."""

import errno
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import inotify_simple

from tests.simulation.virtual_time import VirtualTimeLoop

_CREATE, _MODIFY = int(inotify_simple.flags.CREATE), int(inotify_simple.flags.MODIFY)
_MOVED_FROM = int(inotify_simple.flags.MOVED_FROM)
_OVERFLOW, _IGNORED = int(inotify_simple.flags.Q_OVERFLOW), int(inotify_simple.flags.IGNORED)
_FILENOS = count(1_000_000)

Contents = dict[str, tuple[int, int]]
"""Name to inode and size."""


@dataclass(frozen=True, slots=True)
class SeenEvent:
    wd: int
    mask: int


def contents(directory: str) -> Contents | None:
    """None: there is no such directory."""
    try:
        with os.scandir(directory) as entries:
            return {entry.name: ((status := entry.stat()).st_ino, status.st_size) for entry in entries}
    except FileNotFoundError:
        return None


class SimulatedDirectoryEvents:
    """`rlm.write_path.reading.append_watcher.DirectoryEvents` without a kernel."""

    def __init__(self, loop: VirtualTimeLoop | None, may_watch: Callable[[], bool] = lambda: True) -> None:
        """Without a loop nobody is told that there is something to read."""
        self.closed = False
        self._loop = loop
        self._may_watch = may_watch
        self._fileno = next(_FILENOS)
        self._next_wd = 1
        self._watched: dict[int, tuple[str, Contents]] = {}
        self._events: deque[SeenEvent] = deque()

    def fileno(self) -> int:
        return self._fileno

    def add_watch(self, path: Path, mask: int) -> int:
        name = str(path)
        found = contents(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such directory", name)
        if not self._may_watch():
            raise OSError(errno.ENOSPC, "no watches are left")
        wd, self._next_wd = self._next_wd, self._next_wd + 1
        self._watched[wd] = (name, found)
        return wd

    def rm_watch(self, wd: int) -> None:
        if self._watched.pop(wd, None) is None:
            raise OSError(errno.EINVAL, "no such watch")

    def read(self, timeout: int) -> list[SeenEvent]:
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        self.closed = True
        self._watched.clear()

    def changed(self, directory: Path) -> None:
        name = str(directory)
        for wd, before in [(wd, before) for wd, (path, before) in self._watched.items() if path == name]:
            after = contents(name)
            if after is None:
                del self._watched[wd]
                self._tell([SeenEvent(wd, _IGNORED)])
                continue
            self._watched[wd] = (name, after)
            self._tell([SeenEvent(wd, mask) for mask in _events_between(before, after)])

    def overflow(self) -> None:
        """The kernel had no room for events, and says so."""
        self._events.clear()
        self._tell([SeenEvent(-1, _OVERFLOW)])

    def _tell(self, events: list[SeenEvent]) -> None:
        self._events += events
        if events and self._loop is not None:
            self._loop.readable(self._fileno, lambda: bool(self._events))


def _events_between(before: Contents, after: Contents) -> list[int]:
    events = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if new is None:
            events.append(_MOVED_FROM)
        elif old is None or old[0] != new[0]:  # made anew, or moved here from a name that was made before
            events += [_CREATE, _MODIFY]
        elif old[1] != new[1]:
            events.append(_MODIFY)
    return events
