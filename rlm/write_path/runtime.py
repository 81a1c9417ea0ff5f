"""The write path's interface to its machine: time, threads, and the kernel's events of changed files.

They are handed in, so that a simulation can replace them by seeded ones (`tests/simulation`).
"""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from plugin.wall_clock import Clocks
from rlm.write_path.reading.append_watcher import DirectoryEvents, inotify


def thread_pool(threads: int, name: str) -> Executor:
    """Return a pool of threads whose names begin with `name`."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the write path gets from its host: clocks, thread pools and file events. Tests replace them."""

    clocks: Clocks
    pool: Callable[[int, str], Executor] = thread_pool
    """Makes a pool of so many threads with that name."""
    directory_events: Callable[[], DirectoryEvents] = inotify
