"""A process that has no file descriptors left, for a while."""

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Python reads this module from disk when a name is first resolved, and that would need a descriptor.
"localhost".encode("idna")


@contextmanager
def none_left(but: int = 0) -> Iterator[None]:
    """Take every descriptor, except for `but` so many; opening one more fails with EMFILE.

    The limit is set above the highest descriptor in use: what the process closes meanwhile can be opened again.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = list[int]()
    gc.collect()  # else what tests before this one left gives its descriptors back meanwhile
    try:
        highest_used = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest_used + 1, before[1]))
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(but):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
