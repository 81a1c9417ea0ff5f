"""A set of integers that are mostly dense, kept as intervals.

The store must remember which objects are deleted for ever, or a late record would bring one back. An agent
numbers its objects from 0 and they are deleted roughly in that order, so millions of them are a few
intervals.
"""

from bisect import bisect_right
from collections.abc import Iterable

from metadata_topic.records.offset_ranges import joined_ranges


class SequenceSet:
    """A set of integers that only grows. Not thread-safe."""

    __slots__ = ("_ends", "_size", "_starts")

    def __init__(self) -> None:
        # Interval i is [_starts[i], _ends[i]); sorted, disjoint, never touching.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._size = 0

    def add(self, number: int) -> bool:
        """Add a number; True when it was not there."""
        after = bisect_right(self._starts, number)
        if after and number < self._ends[after - 1]:
            return False
        touches_left = after > 0 and self._ends[after - 1] == number
        touches_right = after < len(self._starts) and self._starts[after] == number + 1
        if touches_left and touches_right:
            self._ends[after - 1] = self._ends.pop(after)
            del self._starts[after]
        elif touches_left:
            self._ends[after - 1] = number + 1
        elif touches_right:
            self._starts[after] = number
        else:
            self._starts.insert(after, number)
            self._ends.insert(after, number + 1)
        self._size += 1
        return True

    def add_intervals(self, intervals: Iterable[tuple[int, int]]) -> None:
        """Fill an empty set with half-open intervals that ascend and never touch.

        Raises ValueError when they do not, or the set is not empty.
        """
        starts: list[int] = []
        ends: list[int] = []
        if self._starts:
            raise ValueError("intervals can only be added to an empty set")
        for start, end in intervals:
            if start >= end or (ends and start <= ends[-1]):
                raise ValueError(f"[{start}, {end}) does not follow the interval before it")
            starts.append(start)
            ends.append(end)
        self._starts, self._ends = starts, ends
        self._size = sum(ends) - sum(starts)

    def join(self, intervals: Iterable[tuple[int, int]]) -> None:
        """Add half-open intervals in any order; they may overlap the set's."""
        known = joined_ranges([*self.intervals, *intervals])
        self._starts, self._ends = [start for start, _ in known], [end for _, end in known]
        self._size = sum(self._ends) - sum(self._starts)

    def __contains__(self, number: int) -> bool:
        after = bisect_right(self._starts, number)
        return after > 0 and number < self._ends[after - 1]

    def __len__(self) -> int:
        return self._size

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """The intervals, half open and ascending."""
        return list(zip(self._starts, self._ends, strict=True))
