"""Notices appends as they happen, at no cost for partitions that are idle.

The kernel reports every write to a watched directory's files (inotify). Events are hints: a lost one delays an upload
until the partition's next regular processing and changes nothing else.
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import inotify_simple
import structlog

from kafka_log.topic_partition import TopicIdPartition

log = structlog.get_logger(__name__)

_FLAGS = (
    inotify_simple.flags.MODIFY
    | inotify_simple.flags.CREATE
    | inotify_simple.flags.MOVED_FROM
    | inotify_simple.flags.ONLYDIR
)

_OVERFLOW = int(inotify_simple.flags.Q_OVERFLOW)
"""A plain number: an enum's arithmetic takes longer than the rest of the work for an event."""
_IGNORED = int(inotify_simple.flags.IGNORED)
_MODIFY = int(inotify_simple.flags.MODIFY)


class DirectoryEvent(Protocol):
    """A change in a watched directory, as the kernel reports it."""

    @property
    def wd(self) -> int:
        """The number of the watch that reports it, from `DirectoryEvents.add_watch`."""

    @property
    def mask(self) -> int:
        """The kind of change: flags of inotify(7)."""


class DirectoryEvents(Protocol):
    """A source of events in watched directories: inotify, or its replacement in a simulation."""

    @property
    def closed(self) -> bool: ...

    def fileno(self) -> int:
        """Return a descriptor that is readable for the event loop while there are events to `read`."""

    def add_watch(self, path: Path, mask: int) -> int:
        """Start to report these events in a directory; returns the watch's number. Raises OSError."""

    def rm_watch(self, wd: int) -> None:
        """Stop the watch with this number. Raises OSError."""

    def read(self, timeout: int) -> Iterable[DirectoryEvent]:
        """Return the events since the last call, in order; without any, wait for up to `timeout` ms."""

    def close(self) -> None: ...


def inotify() -> DirectoryEvents:
    """Return a source of the kernel's events (inotify)."""
    events: DirectoryEvents = inotify_simple.INotify(nonblocking=True)
    return events


class AppendWatcher:
    """Watches partition directories for appends. Between `listen` and `ignore` the event loop reports every append."""

    def __init__(self, events: DirectoryEvents | None = None) -> None:
        """`events` is closed with the watcher; None: inotify's."""
        self._inotify = inotify() if events is None else events
        self._partitions: dict[int, TopicIdPartition] = {}
        self._watches: dict[TopicIdPartition, int] = {}
        self._changed: set[TopicIdPartition] = set()
        """Partitions whose directory may have seen more than appends since its log was last read to the end."""

    def listen(self, appended: Callable[[TopicIdPartition], None]) -> None:
        """Call `appended` with the partition of each append from now on."""
        asyncio.get_running_loop().add_reader(self._inotify.fileno(), self.take, appended)

    def ignore(self) -> None:
        """Stop calling what `listen` was given."""
        asyncio.get_running_loop().remove_reader(self._inotify.fileno())

    def watch(self, partition: TopicIdPartition, directory: Path) -> None:
        """Report appends in this directory from now on. A missing directory is not watched."""
        if self._inotify.closed:
            return
        try:
            watch = self._inotify.add_watch(directory, _FLAGS)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("append_watch_refused", directory=str(directory), error=str(error))
            return
        self._partitions[watch] = partition
        self._watches[partition] = watch
        self._changed.add(partition)

    def unwatch(self, partition: TopicIdPartition) -> None:
        """Stop watching the partition's directory; an unknown partition is no error."""
        watch = self._watches.pop(partition, None)
        self._changed.discard(partition)
        if watch is None or self._inotify.closed:
            return
        self._partitions.pop(watch, None)
        try:
            self._inotify.rm_watch(watch)
        except OSError:  # the directory was deleted, and the kernel has removed the watch
            return

    def only_appends(self, partition: TopicIdPartition) -> bool:
        """Whether events show no file created or removed since the log was last read to its end."""
        return partition not in self._changed and self._watches.get(partition) in self._partitions

    def reading_begins(self, partition: TopicIdPartition) -> None:
        """Record that the log and its directory are about to be read: `only_appends` then judges by later events."""
        self._changed.discard(partition)

    def reading_fell_short(self, partition: TopicIdPartition) -> None:
        """Record that the reading failed, or did not reach the log's end."""
        if partition in self._watches:
            self._changed.add(partition)

    def take(self, appended: Callable[[TopicIdPartition], None]) -> None:
        """Call `appended` once for every partition with events since the last call; for all of them if events were
        lost.
        """
        seen: dict[TopicIdPartition, None] = {}  # in the order of the events, so that a run can be repeated
        for event in self._inotify.read(timeout=0):
            if event.mask & _OVERFLOW:
                seen.update(dict.fromkeys(self._watches))
                self._changed.update(self._watches)
            elif event.mask & _IGNORED:
                self._partitions.pop(event.wd, None)
            elif (partition := self._partitions.get(event.wd)) is not None:
                seen[partition] = None
                if event.mask != _MODIFY:
                    self._changed.add(partition)
        for partition in seen:
            appended(partition)

    def close(self) -> None:
        """Stop watching all directories, for good."""
        self._inotify.close()
