"""The uploaded runs of one partition in one leader epoch, found by offset.

Theory. An epoch has one leader, so one agent uploads its runs, in offset order, and they arrive nearly
sorted: adding one is an append. Runs may overlap (an agent that restarts uploads some again). Removing one
only marks its row, and rows are compacted when most are marked, so that deleting the oldest first costs no
shifting of millions of rows. A row is 36 bytes in five flat arrays, and no Python object.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

_GONE = 0xFFFFFFFF
_COMPACT_FROM_ROWS = 64


class Run(NamedTuple):
    """One partition's run of offsets [first_offset, last_offset] in one object."""

    first_offset: int
    last_offset: int
    writer: int
    """Which writer's object: an index that the store gives."""
    sequence: int
    """The object's number among that writer's."""


class EpochIndex:
    """Not thread-safe."""

    __slots__ = ("_firsts", "_gone", "_lasts", "_reach", "_sequences", "_writers")

    def __init__(self) -> None:
        # Parallel rows, sorted by _firsts. _reach[i] is an upper bound of _lasts[:i + 1]: where a search may
        # stop.
        self._firsts = array("q")
        self._lasts = array("q")
        self._reach = array("q")
        self._writers = array("I")
        self._sequences = array("Q")
        self._gone = 0

    def __len__(self) -> int:
        return len(self._firsts) - self._gone

    def add(self, run: Run) -> None:
        """Runs may come in any order; ascending first offsets are cheap."""
        if not self._firsts or run.first_offset >= self._firsts[-1]:
            self._reach.append(max(self._reach[-1], run.last_offset) if self._reach else run.last_offset)
            self._firsts.append(run.first_offset)
            self._lasts.append(run.last_offset)
            self._writers.append(run.writer)
            self._sequences.append(run.sequence)
            return
        at = bisect_right(self._firsts, run.first_offset)
        self._firsts.insert(at, run.first_offset)
        self._lasts.insert(at, run.last_offset)
        self._writers.insert(at, run.writer)
        self._sequences.insert(at, run.sequence)
        self._reach.insert(at, max(self._reach[at - 1], run.last_offset) if at else run.last_offset)
        for later in range(at + 1, len(self._reach)):
            if self._reach[later] >= run.last_offset:
                break
            self._reach[later] = run.last_offset

    def remove(self, run: Run) -> bool:
        """False when it is not there."""
        at = bisect_left(self._firsts, run.first_offset)
        while at < len(self._firsts) and self._firsts[at] == run.first_offset:
            if self._row(at) == run:
                self._writers[at] = _GONE
                self._gone += 1
                self._compact_when_worth_it()
                return True
            at += 1
        return False

    def covering(self, offset: int) -> Iterator[Run]:
        """The runs that hold `offset`, in no particular order."""
        at = bisect_right(self._firsts, offset) - 1
        while at >= 0 and self._reach[at] >= offset:
            if self._lasts[at] >= offset and self._writers[at] != _GONE:
                yield self._row(at)
            at -= 1

    def descending(self, before_offset: int | None) -> Iterator[tuple[Run, int]]:
        """Runs that start below `before_offset` (None: all), highest first.

        Each comes with an upper bound of the last offsets of it and all that follow, so that a search can
        stop.
        """
        at = len(self._firsts) if before_offset is None else bisect_left(self._firsts, before_offset)
        while at > 0:
            at -= 1
            if self._writers[at] != _GONE:
                yield self._row(at), self._reach[at]

    def reaching(self, offset: int) -> Iterator[Run]:
        """Runs that hold `offset` or begin above it, highest first."""
        for run, reach in self.descending(None):
            if reach < offset:
                return
            if run.last_offset >= offset:
                yield run

    def _row(self, at: int) -> Run:
        return Run(self._firsts[at], self._lasts[at], self._writers[at], self._sequences[at])

    def _compact_when_worth_it(self) -> None:
        rows = len(self._firsts)
        if self._gone == rows:
            kept: list[int] = []
        elif rows < _COMPACT_FROM_ROWS or self._gone * 2 < rows:
            return
        else:
            kept = [at for at in range(rows) if self._writers[at] != _GONE]
        self._firsts = array("q", [self._firsts[at] for at in kept])
        self._lasts = array("q", [self._lasts[at] for at in kept])
        self._writers = array("I", [self._writers[at] for at in kept])
        self._sequences = array("Q", [self._sequences[at] for at in kept])
        self._reach = array("q", accumulate(self._lasts, max))
        self._gone = 0
