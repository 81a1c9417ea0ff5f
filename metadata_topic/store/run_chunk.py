"""A sorted, immutable piece of the index of runs.

Rows are sorted by key (partition and epoch as one number) and first offset. A row is three flat numpy
values: first offset, last offset, and the slot of the segment that holds the run; keys are stored once, with
the rows' bounds. 20 bytes for a row, and no Python object. All of it may lie on disk but for one key in 64: a search
reads the keys from there to the next, and the rows of its own.
"""

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from metadata_topic.store.entry_blocks import BlockLostError, unnamed_file

Int64s = NDArray[np.int64]
Keys = NDArray[np.uint64]
Slots = NDArray[np.uint32]
Value = TypeVar("Value", bound=np.generic)

_STRIDE: Final = 64
"""Of the keys of a chunk on disk, one of so many is in memory."""


class _RowFile:
    """Columns one behind the other. Reads fail as reads do, and take no page of this process: nothing is mapped."""

    __slots__ = ("__weakref__", "_descriptor", "_end")

    def __init__(self, directory: Path) -> None:
        """Raises OSError."""
        self._descriptor = unnamed_file(directory)
        self._end = 0
        weakref.finalize(self, os.close, self._descriptor)

    def append(self, array: NDArray[Value]) -> "_FileColumn[Value]":
        """Raises OSError."""
        start, raw = self._end, array.tobytes()
        while raw:
            written = os.pwrite(self._descriptor, raw, self._end)
            self._end, raw = self._end + written, raw[written:]
        return _FileColumn(self, array.dtype, start, len(array))

    def read(self, start: int, size: int) -> bytes:
        """Raises OSError."""
        raw = os.pread(self._descriptor, size, start)
        if len(raw) != size:
            raise BlockLostError(f"the index of the metadata topic cannot be read back: {size} bytes at {start}")
        return raw


class _FileColumn(Generic[Value]):
    """A column of such a file; slices of it are read when they are asked for."""

    __slots__ = ("_dtype", "_file", "_length", "_start")

    def __init__(self, file: _RowFile, dtype: np.dtype[Value], start: int, length: int) -> None:
        self._file, self._dtype, self._start, self._length = file, dtype, start, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, rows: slice) -> NDArray[Value]:
        begin, end, _ = rows.indices(self._length)
        width = self._dtype.itemsize
        return np.frombuffer(self._file.read(self._start + begin * width, (end - begin) * width), self._dtype)


Column = NDArray[Value] | _FileColumn[Value]
"""In memory or on disk; a slice of it is an array."""


@dataclass(frozen=True, slots=True)
class Rows:
    """One key's rows of a chunk, sorted by first offset."""

    firsts: Int64s
    lasts: Int64s
    reach: Int64s
    """The highest of the last offsets up to this row: where a search may stop. Never falls."""
    slots: Slots


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of many keys. See the module."""

    keys: Column[np.uint64]
    """Sorted, each once."""
    bounds: Column[np.int64]
    """Key i has the rows [bounds[i], bounds[i + 1])."""
    marks: Keys
    """One of `_STRIDE` keys, the first among them."""
    firsts: Column[np.int64]
    lasts: Column[np.int64]
    reach: Column[np.int64]
    """The same column as `lasts` where no run reaches beyond a later one of its key, as is usual."""
    slots: Column[np.uint32]

    @classmethod
    def build(cls, keys: Keys, firsts: Int64s, lasts: Int64s, slots: Slots) -> Self:
        """From rows in any order, at least one."""
        order = np.lexsort((firsts, keys))
        keys, firsts, lasts, slots = keys[order], firsts[order], lasts[order], slots[order]
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        bounds = np.append(starts, len(keys))
        marks = keys[starts[::_STRIDE]]
        return cls(keys[starts], bounds, marks, firsts, lasts, _running_max(lasts, bounds), slots)

    @classmethod
    def merge(cls, chunks: Sequence[Self], alive: NDArray[np.bool_]) -> Self | None:
        """One chunk of all rows whose slots are alive; None when there are none."""
        slots = [chunk.slots[:] for chunk in chunks]
        kept = [alive[own] for own in slots]
        keys = np.concatenate([chunk.row_keys()[keep] for chunk, keep in zip(chunks, kept, strict=True)])
        if not len(keys):
            return None
        return cls.build(
            keys,
            np.concatenate([chunk.firsts[:][keep] for chunk, keep in zip(chunks, kept, strict=True)]),
            np.concatenate([chunk.lasts[:][keep] for chunk, keep in zip(chunks, kept, strict=True)]),
            np.concatenate([own[keep] for own, keep in zip(slots, kept, strict=True)]),
        )

    def on_disk(self, directory: Path) -> Self:
        """The same, in a file without a name but for the marks. Raises OSError."""
        file = _RowFile(directory)
        keys, bounds, lasts = file.append(self.keys[:]), file.append(self.bounds[:]), file.append(self.lasts[:])
        reach = lasts if self.reach is self.lasts else file.append(self.reach[:])
        firsts, slots = file.append(self.firsts[:]), file.append(self.slots[:])
        return type(self)(keys, bounds, self.marks, firsts, lasts, reach, slots)

    def __len__(self) -> int:
        return len(self.firsts)

    def row_keys(self) -> Keys:
        """Each row's key."""
        return np.repeat(self.keys[:], np.diff(self.bounds[:]))

    def rows(self, key: int) -> Rows | None:
        """None when the key has none."""
        at, found = self._keys_from(key, key + 1)
        if not len(found):
            return None
        begin, end = self.bounds[at : at + 2].tolist()
        own = slice(begin, end)
        return Rows(self.firsts[own], self.lasts[own], self.reach[own], self.slots[own])

    def keys_between(self, low: int, high: int) -> list[int]:
        """The keys in [low, high)."""
        found: list[int] = self._keys_from(low, high)[1].tolist()
        return found

    def _keys_from(self, low: int, high: int) -> tuple[int, Keys]:
        """The keys in [low, high), and the number of the first."""
        bounds = np.array([low, high], dtype=np.uint64)
        begin = max(0, int(self.marks.searchsorted(bounds[0], side="right")) - 1) * _STRIDE
        end = int(self.marks.searchsorted(bounds[1])) * _STRIDE
        keys = self.keys[begin:end]
        start, stop = keys.searchsorted(bounds).tolist()
        return begin + start, keys[start:stop]

    def living_keys(self, alive: NDArray[np.bool_]) -> Keys:
        """The keys that have rows whose slots are alive."""
        return self.keys[:][np.logical_or.reduceat(alive[self.slots[:]], self.bounds[:-1])]


def _running_max(lasts: Int64s, bounds: Int64s) -> Int64s:
    """Each key's highest last offset so far, for all keys at once."""
    rises = lasts[1:] >= lasts[:-1]
    rises[bounds[1:-1] - 1] = True
    if rises.all():
        return lasts
    reach = lasts.copy()
    rows_of_key = np.diff(bounds)
    place = np.arange(len(lasts)) - np.repeat(bounds[:-1], rows_of_key)
    step, longest = 1, int(rows_of_key.max())
    while step < longest:
        # After this pass, reach covers the 2 * step rows up to each row, as far as they are of its key.
        reach[step:] = np.where(place[step:] >= step, np.maximum(reach[step:], reach[:-step]), reach[step:])
        step *= 2
    return reach
