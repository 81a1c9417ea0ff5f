"""Notices appends as they happen, at no cost for partitions that are idle.

The kernel tells of every write to a watched directory's files (inotify). Events are hints: one that is lost delays an
upload until the partition's next regular processing and changes nothing else.
"""

from collections.abc import Callable
from pathlib import Path

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


class AppendWatcher:
    """Watches partition directories. `fileno` becomes readable when there are appends to be taken."""

    def __init__(self) -> None:
        self._inotify = inotify_simple.INotify(nonblocking=True)
        self._partitions: dict[int, TopicIdPartition] = {}
        self._watches: dict[TopicIdPartition, int] = {}
        self.unwatched = 0
        """Directories that the kernel would not watch (fs.inotify.max_user_watches): seen at the process interval."""

    def fileno(self) -> int:
        """The descriptor to wait on."""
        descriptor: int = self._inotify.fileno()
        return descriptor

    def watch(self, partition: TopicIdPartition, directory: Path) -> None:
        """Tell of appends in this directory from now on. A directory that is gone is not watched."""
        try:
            watch = self._inotify.add_watch(directory, _FLAGS)
        except FileNotFoundError:
            return
        except OSError as error:
            self.unwatched += 1
            log.warning("append_watch_refused", directory=str(directory), error=str(error))
            return
        self._partitions[watch] = partition
        self._watches[partition] = watch

    def unwatch(self, partition: TopicIdPartition) -> None:
        """The inverse of `watch`; unknown partitions are no error."""
        watch = self._watches.pop(partition, None)
        if watch is None:
            return
        self._partitions.pop(watch, None)
        try:
            self._inotify.rm_watch(watch)
        except OSError:  # the directory was deleted, and the kernel has removed the watch
            return

    def take(self, appended: Callable[[TopicIdPartition], None]) -> None:
        """Call `appended` once for every partition with events since the last call; all of them if events were lost."""
        seen: set[TopicIdPartition] = set()
        for event in self._inotify.read(timeout=0):
            if event.mask & inotify_simple.flags.Q_OVERFLOW:
                seen.update(self._watches)
            elif event.mask & inotify_simple.flags.IGNORED:
                self._partitions.pop(event.wd, None)
            elif (partition := self._partitions.get(event.wd)) is not None:
                seen.add(partition)
        for partition in seen:
            appended(partition)

    def close(self) -> None:
        """Stop watching."""
        self._inotify.close()
