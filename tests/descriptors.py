"""A process that has no file descriptors left, for a while."""

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_TAKEN = 16


@contextmanager
def none_left(but: int = 0) -> Iterator[None]:
    """Every descriptor is taken, `but` so many; opening one more fails with EMFILE."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    gc.collect()  # else what tests before this one left gives its descriptors back meanwhile
    try:
        lowest_free = os.open(os.devnull, os.O_RDONLY)
        taken.append(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + _TAKEN, before[1]))
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
