"""Large pieces of the index of runs, on this host's disk.

Of each piece, rows lie one behind the other by key and first offset, and so do its keys, each with the number of its
first row; one key in 64 is in memory. So a search is two reads for a piece: the keys from there to the next, and the
rows of its own. What was read last is kept, as who asks about a partition asks several things. The slots of a piece are
in memory, each once: objects go about in the order in which they came, so most pieces have to be read neither to know
that all of their rows are wanted, nor that none is.

Each row and each key carries a checksum of itself and its place: what the disk does not give back as it was is an
error. Reads fail as reads do, and take no page of this process: nothing is mapped. Not thread-safe.
"""

import os
import weakref
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from metadata_topic.store.disk_writes import BlockLostError, unnamed_file
from metadata_topic.store.runs.run_chunk import Chunk, Keys, Rows

_STRIDE: Final = 64
_KEPT: Final = 64
_EPOCH_BITS: Final = 32
"""A key is a partition's number, and below it an epoch: who asks for one epoch asks for others."""
_ROW: Final = np.dtype([("first", "<i8"), ("last", "<i8"), ("slot", "<u4"), ("check", "<u4")])
_KEY: Final = np.dtype([("key", "<u8"), ("start", "<i8"), ("check", "<u8")])
_MIX: Final = np.array(
    [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93], dtype=np.uint64
)
"""Odd, so that any bit that changes changes the product."""


def _check(place: int, *columns: NDArray[Any]) -> NDArray[np.uint64]:
    """A checksum for each item; `place` is the number of the first. The upper of its 64 bits depend on all."""
    found: NDArray[np.uint64] = np.arange(place + 1, place + 1 + len(columns[0]), dtype=np.uint64) * _MIX[3]
    for column, factor in zip(columns, _MIX, strict=False):
        found ^= column.astype(np.uint64) * factor
    return found


def _row_check(place: int, rows: NDArray[np.void]) -> NDArray[np.uint32]:
    found = _check(place, rows["first"], rows["last"], rows["slot"])
    return (found >> np.uint64(32)).astype(np.uint32)


def _checked(place: int, keys: NDArray[np.void]) -> NDArray[np.void]:
    if not np.array_equal(keys["check"], _check(place, keys["key"], keys["start"])):
        raise BlockLostError(f"the index of the metadata topic cannot be read back: keys at {place}")
    return keys


class _File:
    """Without a name. It goes with whoever has it."""

    __slots__ = ("__weakref__", "_descriptor", "_end")

    def __init__(self, directory: Path) -> None:
        """Raises OSError."""
        self._descriptor = unnamed_file(directory)
        self._end = 0
        weakref.finalize(self, os.close, self._descriptor)

    def append(self, raw: bytes) -> None:
        """Raises OSError."""
        at = 0
        while at < len(raw):
            written = os.pwrite(self._descriptor, memoryview(raw)[at:], self._end)
            at, self._end = at + written, self._end + written

    def read(self, start: int, size: int) -> bytes:
        """Raises OSError."""
        raw = os.pread(self._descriptor, size, start)
        if len(raw) != size:
            raise BlockLostError(f"the index of the metadata topic cannot be read back: {size} bytes at {start}")
        return raw


class ChunkWriter:
    """Writes a piece from its first key to its last."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError."""
        self._file = _File(directory)
        self._rows = 0
        self._keys: list[NDArray[np.void]] = []
        self._slots: list[NDArray[np.uint32]] = []

    def add(self, chunk: Chunk) -> None:
        """All of its keys are above those that were there. Raises OSError."""
        rows, keys = np.empty(len(chunk), dtype=_ROW), np.empty(len(chunk.keys), dtype=_KEY)
        rows["first"], rows["last"], rows["slot"] = chunk.firsts, chunk.lasts, chunk.slots
        rows["check"] = _row_check(self._rows, rows)
        keys["key"], keys["start"] = chunk.keys, chunk.bounds[:-1] + self._rows
        self._file.append(rows.tobytes())
        self._rows += len(chunk)
        self._keys.append(keys)
        self._slots.append(np.unique(chunk.slots))

    def finished(self) -> "ChunkOnDisk | None":
        """None: nothing was added. Raises OSError."""
        if not self._rows:
            return None
        keys = np.concatenate([*self._keys, np.array([(0, self._rows, 0)], dtype=_KEY)])
        keys["check"] = _check(0, keys["key"], keys["start"])
        self._file.append(keys.tobytes())
        return ChunkOnDisk(self._file, self._rows, keys["key"][:-1], np.unique(np.concatenate(self._slots)))


class ChunkOnDisk:
    """One piece. It never changes."""

    __slots__ = ("_file", "_keys", "_marks", "_rows", "_slots")

    def __init__(self, file: _File, rows: int, keys: Keys, slots: NDArray[np.uint32]) -> None:
        self._file = file
        self._rows, self._keys = rows, len(keys)
        self._marks = array("Q", keys[::_STRIDE].tolist())
        """One of 64 keys, the first among them."""
        self._slots = slots

    @classmethod
    def of(cls, chunk: Chunk, directory: Path) -> "ChunkOnDisk":
        """That one's rows, of which there are some. Raises OSError."""
        writer = ChunkWriter(directory)
        writer.add(chunk)
        made = writer.finished()
        assert made is not None  # noqa: S101 - a chunk has rows
        return made

    def __len__(self) -> int:
        return self._rows

    def swept(self, alive: NDArray[np.bool_]) -> "ChunkOnDisk | Chunk | None":
        """Itself where all of its rows are alive, else what is left of it, which is None where nothing is. Raises
        OSError.
        """
        is_alive = alive[self._slots]
        if is_alive.all():
            return self
        return self.loaded().swept(alive) if is_alive.any() else None

    def living_keys(self, alive: NDArray[np.bool_]) -> Keys:
        """The keys that have rows whose slots are alive. Raises OSError."""
        left = self.swept(alive)
        if left is None:
            return np.empty(0, dtype=np.uint64)
        return left.keys() if isinstance(left, ChunkOnDisk) else left.keys

    def loaded(self) -> Chunk:
        """All of it. Raises OSError, as all that follow do."""
        rows, keys = np.frombuffer(self.rows(0, self._rows), _ROW), self._all_keys()
        return Chunk.of_sorted(keys["key"][:-1], keys["start"], rows["first"], rows["last"], rows["slot"])

    def places(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """The keys in [low, high), each with the rows [begin, end) that it has."""
        begin = max(0, bisect_right(self._marks, low) - 1) * _STRIDE
        end = min(self._keys, bisect_left(self._marks, high) * _STRIDE)
        raw = self._file.read(self._rows * _ROW.itemsize + begin * _KEY.itemsize, (end + 1 - begin) * _KEY.itemsize)
        _checked(begin, np.frombuffer(raw, _KEY))
        numbers = memoryview(raw).cast("Q")
        keys, starts = numbers[:-3:3], numbers[1::3]
        found = range(bisect_left(keys, low), bisect_left(keys, high))
        return [(keys[at], starts[at], starts[at + 1]) for at in found]

    def between(self, low: int, high: int) -> Chunk | None:
        """What it has of the keys in [low, high). Raises OSError."""
        places = self.places(low, high)
        if not places:
            return None
        keys = np.array([key for key, _, _ in places], dtype=np.uint64)
        first, end = places[0][1], places[-1][2]
        bounds = np.array([*(begin for _, begin, _ in places), end], dtype=np.int64) - first
        rows = np.frombuffer(self.rows(first, end), _ROW)
        return Chunk.of_sorted(keys, bounds, rows["first"], rows["last"], rows["slot"])

    def rows(self, begin: int, end: int) -> bytes:
        """As they lie there. Raises OSError."""
        raw = self._file.read(begin * _ROW.itemsize, (end - begin) * _ROW.itemsize)
        rows = np.frombuffer(raw, _ROW)
        if not np.array_equal(rows["check"], _row_check(begin, rows)):
            raise BlockLostError(f"the index of the metadata topic cannot be read back: rows at {begin}")
        return raw

    def keys(self) -> Keys:
        """All of them."""
        return np.ascontiguousarray(self._all_keys()["key"][:-1])

    def row_numbers(self) -> tuple[Keys, NDArray[np.int64]]:
        """All keys, and how many rows each has. Raises OSError."""
        keys = self._all_keys()
        return np.ascontiguousarray(keys["key"][:-1]), np.diff(keys["start"])

    def _all_keys(self) -> NDArray[np.void]:
        raw = self._file.read(self._rows * _ROW.itemsize, (self._keys + 1) * _KEY.itemsize)
        return _checked(0, np.frombuffer(raw, _KEY))


class DiskChunks:
    """All pieces of one index, with what was read last."""

    def __init__(self, chunks: Iterable[ChunkOnDisk] = ()) -> None:
        self._chunks = list(chunks)
        self._asked: dict[tuple[int, int], dict[int, list[tuple[ChunkOnDisk, int, int]]]] = {}
        """By bounds, the keys within them, and where their rows are."""
        self._rows: dict[int, list[Rows]] = {}

    def __iter__(self) -> Iterator[ChunkOnDisk]:
        return iter(self._chunks)

    def add(self, chunk: ChunkOnDisk) -> None:
        """One more."""
        self.replace((), chunk)

    def replace(self, gone: Sequence[ChunkOnDisk], chunk: ChunkOnDisk | None) -> None:
        """By one that holds all of theirs that is still wanted; None where nothing is."""
        self._chunks = [one for one in self._chunks if all(one is not other for other in gone)]
        if chunk is not None:
            self._chunks.append(chunk)
        self._rows.clear()
        self._asked.clear()

    def keys_between(self, low: int, high: int) -> list[int]:
        """The keys in [low, high). Raises OSError."""
        return list(self._places(low, high))

    def rows(self, key: int) -> list[Rows]:
        """All of the key's, together. Raises OSError."""
        known = self._rows.get(key)
        if known is None:
            partition = key >> _EPOCH_BITS << _EPOCH_BITS
            places = self._places(partition, partition + (1 << _EPOCH_BITS)).get(key, [])
            known = [_together([chunk.rows(begin, end) for chunk, begin, end in places])] if places else []
            if len(self._rows) >= _KEPT:
                self._rows.clear()
            self._rows[key] = known
        return known

    def _places(self, low: int, high: int) -> dict[int, list[tuple[ChunkOnDisk, int, int]]]:
        found = self._asked.get((low, high))
        if found is None:
            found = {}
            for chunk in self._chunks:
                for key, begin, end in chunk.places(low, high):
                    found.setdefault(key, []).append((chunk, begin, end))
            if len(self._asked) >= _KEPT:
                self._asked.clear()
            self._asked[low, high] = found
        return found


def _together(parts: Sequence[bytes]) -> Rows:
    rows = np.frombuffer(b"".join(parts), _ROW)
    rows = rows[np.argsort(rows["first"], kind="stable")]
    firsts, lasts, slots = (np.ascontiguousarray(rows[name]) for name in ("first", "last", "slot"))
    return Rows(firsts, lasts, np.maximum.accumulate(lasts), slots)
