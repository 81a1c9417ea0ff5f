"""The offsets of one partition and leader epoch that are archived, and in which objects.

An archive object is large, so a partition has few, and a sorted list is enough. Spans may overlap (archived twice).
"""

from bisect import bisect_left, bisect_right, insort
from itertools import accumulate

from plugin.format.archive_object_id import ArchiveObjectId

Span = tuple[int, int, ArchiveObjectId]
"""First and last offset, and the object that holds them."""


class EpochSpans:
    """Changes are cheap, the first question after one is not. Not thread-safe."""

    __slots__ = ("_reach", "_spans")

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._reach: list[int] | None = None

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, first: int, last: int, object_id: ArchiveObjectId) -> None:
        """Each span once."""
        insort(self._spans, (first, last, object_id))
        self._reach = None

    def remove(self, first: int, last: int, object_id: ArchiveObjectId) -> None:
        """What was added."""
        del self._spans[bisect_left(self._spans, (first, last, object_id))]
        self._reach = None

    def covering(self, offset: int) -> list[Span]:
        """Best first: reaching furthest, then the oldest id."""
        if self._reach is None:
            self._reach = list(accumulate((last for _, last, _ in self._spans), max))
        found = []
        at = bisect_right(self._spans, offset, key=lambda span: span[0]) - 1
        while at >= 0 and self._reach[at] >= offset:
            if self._spans[at][1] >= offset:
                found.append(self._spans[at])
            at -= 1
        return sorted(found, key=lambda span: (-span[1], span[0], span[2]))

    def end_from(self, offset: int) -> int:
        """The first offset from `offset` on that is not archived."""
        while best := self.covering(offset):
            offset = best[0][1] + 1
        return offset

    def first_from(self, offset: int) -> int | None:
        """The first archived offset that is not below `offset`."""
        if self.covering(offset):
            return offset
        at = bisect_left(self._spans, offset, key=lambda span: span[0])
        return self._spans[at][0] if at < len(self._spans) else None
