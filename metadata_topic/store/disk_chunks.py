"""Large pieces of the index of runs, on this host's disk.

Of each piece, rows lie one behind the other by key and first offset, and so do its keys, each with the number of its
first row; one key in 64 is in memory. So a search is two reads for a piece: the keys from there to the next, and the
rows of its own. What was read last is kept, as who asks about a partition asks several things. The slots of a piece are
in memory, each once: objects go about in the order in which they came, so most pieces have to be read neither to know
that all of their rows are wanted, nor that none is.

Reads fail as reads do, and take no page of this process: nothing is mapped. Not thread-safe.
"""

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from metadata_topic.store.entry_blocks import BlockLostError, unnamed_file
from metadata_topic.store.run_chunk import Chunk, Keys, Rows

_STRIDE: Final = 64
_KEPT: Final = 64
_ROW: Final = np.dtype([("first", "<i8"), ("last", "<i8"), ("slot", "<u4")])
_KEY: Final = np.dtype([("key", "<u8"), ("start", "<i8")])
Found = TypeVar("Found")


class ChunkOnDisk:
    """One piece, in a file without a name that goes with it. It never changes."""

    __slots__ = ("__weakref__", "_descriptor", "_keys", "_marks", "_rows", "_slots")

    def __init__(self, chunk: Chunk, directory: Path) -> None:
        """Raises OSError."""
        self._descriptor = unnamed_file(directory)
        weakref.finalize(self, os.close, self._descriptor)
        self._rows, self._keys = len(chunk), len(chunk.keys)
        self._marks = chunk.keys[::_STRIDE].copy()
        self._slots = np.unique(chunk.slots)
        rows, keys = np.empty(self._rows, dtype=_ROW), np.empty(self._keys + 1, dtype=_KEY)
        rows["first"], rows["last"], rows["slot"] = chunk.firsts, chunk.lasts, chunk.slots
        keys["key"], keys["start"] = np.append(chunk.keys, np.uint64(0)), chunk.bounds  # the last start is the end
        self._write(rows.tobytes() + keys.tobytes())

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
        rows, keys = self._read_rows(0, self._rows), self._read_keys(0, self._keys + 1)
        return Chunk.of_sorted(keys["key"][:-1], keys["start"], rows["first"], rows["last"], rows["slot"])

    def rows(self, key: int) -> Rows | None:
        """None when the key has none."""
        found = self._find(key, key + 1)
        if len(found) < 2:
            return None
        rows = self._read_rows(int(found["start"][0]), int(found["start"][1]))
        firsts, lasts, slots = (np.ascontiguousarray(rows[name]) for name in ("first", "last", "slot"))
        return Rows(firsts, lasts, np.maximum.accumulate(lasts), slots)

    def keys_between(self, low: int, high: int) -> list[int]:
        """The keys in [low, high)."""
        found: list[int] = self._find(low, high)["key"][:-1].tolist()
        return found

    def keys(self) -> Keys:
        """All of them."""
        return np.ascontiguousarray(self._read_keys(0, self._keys)["key"])

    def _find(self, low: int, high: int) -> NDArray[np.void]:
        """The keys in [low, high), and what stands behind the last one, for its start."""
        bounds = np.array([low, high], dtype=np.uint64)
        begin = max(0, int(self._marks.searchsorted(bounds[0], side="right")) - 1) * _STRIDE
        end = min(self._keys, int(self._marks.searchsorted(bounds[1])) * _STRIDE)
        keys = self._read_keys(begin, end + 1)
        start, stop = np.ascontiguousarray(keys["key"][:-1]).searchsorted(bounds).tolist()
        return keys[start : stop + 1]

    def _read_rows(self, begin: int, end: int) -> NDArray[np.void]:
        return self._read(begin * _ROW.itemsize, end - begin, _ROW)

    def _read_keys(self, begin: int, end: int) -> NDArray[np.void]:
        return self._read(self._rows * _ROW.itemsize + begin * _KEY.itemsize, end - begin, _KEY)

    def _read(self, start: int, count: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
        size = count * dtype.itemsize
        raw = os.pread(self._descriptor, size, start)
        if len(raw) != size:
            raise BlockLostError(f"the index of the metadata topic cannot be read back: {size} bytes at {start}")
        return np.frombuffer(raw, dtype)

    def _write(self, raw: bytes) -> None:
        at = 0
        while at < len(raw):
            at += os.pwrite(self._descriptor, memoryview(raw)[at:], at)


class DiskChunks:
    """All pieces of one index, with what was read last."""

    def __init__(self, chunks: Iterable[ChunkOnDisk] = ()) -> None:
        self._chunks = list(chunks)
        self._rows: dict[int, list[Rows]] = {}
        self._keys: dict[tuple[int, int], list[int]] = {}

    def __iter__(self) -> Iterator[ChunkOnDisk]:
        return iter(self._chunks)

    def add(self, chunk: ChunkOnDisk) -> None:
        """One more."""
        self._chunks.append(chunk)
        self._rows.clear()
        self._keys.clear()

    def rows(self, key: int) -> list[Rows]:
        """The key's rows of each piece that has any. Raises OSError."""
        return _kept(self._rows, key, lambda: [own for chunk in self._chunks if (own := chunk.rows(key)) is not None])

    def keys_between(self, low: int, high: int) -> list[int]:
        """The keys in [low, high), in no particular order, some of them more than once. Raises OSError."""
        bounds = (low, high)
        return _kept(self._keys, bounds, lambda: [key for chunk in self._chunks for key in chunk.keys_between(*bounds)])


Asked = TypeVar("Asked", int, tuple[int, int])


def _kept(known: dict[Asked, Found], asked: Asked, find: Callable[[], Found]) -> Found:
    found = known.get(asked)
    if found is None:
        if len(known) >= _KEPT:
            known.clear()
        found = known[asked] = find()
    return found
