"""A process that has no file descriptors left, for a while."""

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Python reads this module from disk when a name is first resolved, and that would need a descriptor.
"localhost".encode("idna")

STANDARD_STREAMS = 3


@contextmanager
def _limit() -> Iterator[int]:
    """Gives the hard limit, and restores the soft one."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # else what tests before this one left gives its descriptors back meanwhile
    try:
        yield before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def none_left() -> Iterator[None]:
    """Let no descriptor be opened: it fails with EMFILE.

    The limit is below all that may become free, as threads that earlier tests left behind close theirs at any time.
    """
    with _limit() as hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (STANDARD_STREAMS, hard))
        yield


@contextmanager
def few_left(count: int) -> Iterator[None]:
    """Let `count` more descriptors be opened, and again what the process closes meanwhile."""
    taken = list[int]()
    with _limit() as hard:
        highest_used = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest_used + 1, hard))
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            for _ in range(count):
                os.close(taken.pop())
            yield
        finally:
            for descriptor in taken:
                os.close(descriptor)
