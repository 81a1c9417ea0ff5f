"""Which ranges of stored objects are there, which are being read, and who waits for them. Sans-IO.

A range that is there, or on its way, is not to be read again (single flight). A caller's range may be spread over
several that were read, as links end where responses do, and reads where the leader's agent found the end of a run.

What is evicted is ranges, first those of the object that was read from the store the longest ago: a range that is found
here makes its object no younger, as the one broker that all is read for seldom asks twice. An archive object is as
large as many combined segments, and one follower reads it from end to end. Whoever waits for a range keeps its bytes,
whatever becomes of it here.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from plugin.format.archive_object_id import StoredObjectId


@dataclass(slots=True, eq=False)
class CachedRange:
    """Bytes [start, end) of an object, which are there or being read."""

    object_id: StoredObjectId
    start: int
    end: int
    data: bytes | None = None
    waiting: list["RangeWait"] = field(default_factory=list)
    custom_metadata: bytes = b""
    """The object's, by which its storage manager finds it."""
    copy: bytes = b""
    """The custom metadata of that copy of the object alone which is being read."""
    neighbour: int | None = None
    """The broker whose agent gives it, or gave it; None: it is read from the store."""


@dataclass(slots=True, eq=False)
class RangeWait:
    """Somebody who wants bytes [start, end) of an object, which these ranges hold between them, in order."""

    start: int
    end: int
    ranges: list[CachedRange]

    def __post_init__(self) -> None:
        for one in self.ranges:
            if one.data is None:
                one.waiting.append(self)

    @property
    def is_over(self) -> bool:
        """Whether all is there."""
        return all(one.data is not None for one in self.ranges)

    def data(self) -> memoryview:
        """The bytes, once all is there."""
        position, pieces = self.start, []
        for one in self.ranges:
            if one.data is not None:
                pieces.append(memoryview(one.data)[position - one.start : self.end - one.start])
            position = one.end
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


class RangeCache:
    """Ranges of combined segments and archive objects that were read last."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` bounds what is there; the range that was read last stays whatever its size."""
        self._max_bytes = max_bytes
        self._objects: OrderedDict[StoredObjectId, list[CachedRange]] = OrderedDict()
        self.size_bytes = 0
        """Of what is there."""

    def missing(self, object_id: StoredObjectId, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are neither there nor being read, in order."""
        parts: list[tuple[int, int]] = []
        for known in sorted(self._objects.get(object_id, ()), key=lambda known: known.start):
            if known.start >= end:
                break
            if known.start > start:
                parts.append((start, known.start))
            start = max(start, known.end)
        return [*parts, (start, end)] if start < end else parts

    def reading(
        self, object_id: StoredObjectId, start: int, end: int, custom_metadata: bytes = b"", copy: bytes = b""
    ) -> CachedRange:
        """The range is being read from now on; `arrived` or `failed` must follow."""
        wanted = CachedRange(object_id, start, end, custom_metadata=custom_metadata, copy=copy)
        self._objects.setdefault(object_id, []).append(wanted)
        return wanted

    def covering(self, object_id: StoredObjectId, start: int, end: int) -> list[CachedRange]:
        """The fewest ranges that hold these bytes between them, in order; none when some of the bytes are missing."""
        ranges = self._objects.get(object_id, ())
        found: list[CachedRange] = []
        while start < end:
            here = (each for each in ranges if each.start <= start < each.end)
            furthest = max(here, key=lambda each: min(each.end, end), default=None)
            if furthest is None:
                return []
            found.append(furthest)
            start = furthest.end
        return found

    def arrived(self, wanted: CachedRange, data: bytes) -> list[RangeWait]:
        """The range was read; whose wait is over."""
        wanted.data = data
        waiting, wanted.waiting = wanted.waiting, []
        if wanted in self._objects.get(wanted.object_id, ()):
            self.size_bytes += len(data)
            self._objects.move_to_end(wanted.object_id)
            self._evict(wanted)
        return [wait for wait in waiting if wait.is_over]

    def failed(self, wanted: CachedRange) -> list[RangeWait]:
        """The range could not be read, and is not remembered; who waits in vain."""
        if wanted in self._objects.get(wanted.object_id, ()):
            self._drop(wanted)
        return wanted.waiting

    def discard(self, object_id: StoredObjectId) -> None:
        """Forget an object, so that what is wanted of it next is read anew."""
        for each in self._objects.pop(object_id, ()):
            self.size_bytes -= len(each.data or b"")

    def _evict(self, newest: CachedRange) -> None:
        """Forget what was read longest ago, until the rest fits; `newest` stays: it is about to be asked for."""
        if self.size_bytes <= self._max_bytes:
            return
        for oldest in [each for ranges in self._objects.values() for each in ranges]:
            if oldest.data is not None and oldest is not newest:
                self._drop(oldest)
                if self.size_bytes <= self._max_bytes:
                    return

    def _drop(self, one: CachedRange) -> None:
        ranges = self._objects[one.object_id]
        ranges.remove(one)
        self.size_bytes -= len(one.data or b"")
        if not ranges:
            del self._objects[one.object_id]
