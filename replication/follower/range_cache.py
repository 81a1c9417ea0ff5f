"""Knows which ranges of stored objects are cached, which are being read, and who waits for them. Sans-IO.

A range that is cached or being read is not read again (single flight). A caller's range may span several ranges that
were read, because links end where responses do, and reads end where the leader's agent found the end of a run.

Eviction removes ranges, first those of the object that was read from the store the longest ago. A hit does not make an
object younger: everything is read for one broker, which seldom asks twice. An archive object is as large as many
combined segments, and one follower reads it from end to end. A caller that waits for a range keeps its bytes even after
eviction.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from plugin.format.archive_object_id import StoredObjectId


@dataclass(slots=True, eq=False)
class CachedRange:
    """Bytes [start, end) of an object, cached or being read."""

    object_id: StoredObjectId
    start: int
    end: int
    data: bytes | None = None
    waiting: list["RangeWait"] = field(default_factory=list)
    custom_metadata: bytes = b""
    """The object's custom metadata, by which its storage manager finds it."""
    neighbour: int | None = None
    """The broker whose agent gives the range, or gave it; None: it is read from the store."""


@dataclass(slots=True, eq=False)
class RangeWait:
    """A caller that wants bytes [start, end) of an object, which these ranges hold together, in order."""

    start: int
    end: int
    ranges: list[CachedRange]

    def __post_init__(self) -> None:
        for one in self.ranges:
            if one.data is None:
                one.waiting.append(self)

    @property
    def is_over(self) -> bool:
        return all(one.data is not None for one in self.ranges)

    def data(self) -> memoryview:
        """Return the bytes, once all have arrived."""
        position, pieces = self.start, []
        for one in self.ranges:
            if one.data is not None:
                pieces.append(memoryview(one.data)[position - one.start : self.end - one.start])
            position = one.end
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


class RangeCache:
    """Recently read ranges of combined segments and archive objects."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` bounds the cached bytes; the range that was read last stays whatever its size."""
        self._max_bytes = max_bytes
        self._objects: OrderedDict[StoredObjectId, list[CachedRange]] = OrderedDict()
        self.size_bytes = 0
        """Size of the cached bytes."""

    def find_missing(self, object_id: StoredObjectId, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [start, end) that are neither cached nor being read, in order."""
        parts: list[tuple[int, int]] = []
        for known in sorted(self._objects.get(object_id, ()), key=lambda known: known.start):
            if known.start >= end:
                break
            if known.start > start:
                parts.append((start, known.start))
            start = max(start, known.end)
        return [*parts, (start, end)] if start < end else parts

    def reading(self, object_id: StoredObjectId, start: int, end: int, custom_metadata: bytes = b"") -> CachedRange:
        """Add a range whose read begins now; `arrived` or `failed` must follow."""
        wanted = CachedRange(object_id, start, end, custom_metadata=custom_metadata)
        self._objects.setdefault(object_id, []).append(wanted)
        return wanted

    def covering(self, object_id: StoredObjectId, start: int, end: int) -> list[CachedRange]:
        """Return the fewest ranges that together hold these bytes, in order; an empty list when bytes are missing."""
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
        """Store the bytes of a range that was read. Returns the waits that they complete."""
        wanted.data = data
        waiting, wanted.waiting = wanted.waiting, []
        if wanted in self._objects.get(wanted.object_id, ()):
            self.size_bytes += len(data)
            self._objects.move_to_end(wanted.object_id)
            self._evict(wanted)
        return [wait for wait in waiting if wait.is_over]

    def failed(self, wanted: CachedRange) -> list[RangeWait]:
        """Drop a range that could not be read. Returns the waits that cannot be completed."""
        if wanted in self._objects.get(wanted.object_id, ()):
            self._drop(wanted)
        return wanted.waiting

    def discard(self, object_id: StoredObjectId) -> None:
        """Forget an object's ranges, so that they are read again when needed."""
        for each in self._objects.pop(object_id, ()):
            self.size_bytes -= len(each.data or b"")

    def _evict(self, newest: CachedRange) -> None:
        """Drop the ranges read longest ago until the rest fits. `newest` stays, because it will be requested soon."""
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
