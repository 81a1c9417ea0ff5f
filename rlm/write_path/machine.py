"""What the write path takes from the machine that it runs on: time, threads, and the kernel's word of changed files.

They are handed in, so that a simulation can put seeded ones in their place (`tests/simulation`).
"""

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from rlm.write_path.clocks import Clocks
from rlm.write_path.reading.append_watcher import DirectoryEvents, inotify


def thread_pool(threads: int, name: str) -> Executor:
    """So many threads of that name."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name)


@dataclass(frozen=True, slots=True)
class Machine:
    """The seams of the write path."""

    clocks: Clocks
    pool: Callable[[int, str], Executor] = thread_pool
    """Makes a pool of so many threads, of that name."""
    directory_events: Callable[[], DirectoryEvents] = inotify
