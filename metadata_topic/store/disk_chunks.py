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
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from metadata_topic.store.entry_blocks import BlockLostError, unnamed_file
from metadata_topic.store.run_chunk import Chunk, Keys, Rows

_STRIDE: Final = 64
_KEPT: Final = 64
_EPOCH_BITS: Final = 32
"""A key is a partition's number, and below it an epoch: who asks for one epoch asks for others."""
_ROW: Final = np.dtype([("first", "<i8"), ("last", "<i8"), ("slot", "<u4")])
_KEY: Final = np.dtype([("key", "<u8"), ("start", "<i8")])


class ChunkOnDisk:
    """One piece, in a file without a name that goes with it. It never changes."""

    __slots__ = ("__weakref__", "_descriptor", "_keys", "_marks", "_rows", "_slots")

    def __init__(self, chunk: Chunk, directory: Path) -> None:
        """Raises OSError."""
        self._descriptor = unnamed_file(directory)
        weakref.finalize(self, os.close, self._descriptor)
        self._rows, self._keys = len(chunk), len(chunk.keys)
        self._marks = array("Q", chunk.keys[::_STRIDE].tolist())
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
        rows, keys = np.frombuffer(self.rows(0, self._rows), _ROW), self._all_keys()
        return Chunk.of_sorted(keys["key"][:-1], keys["start"], rows["first"], rows["last"], rows["slot"])

    def places(self, low: int, high: int) -> list[tuple[int, int, int]]:
        """The keys in [low, high), each with the rows [begin, end) that it has."""
        begin = max(0, bisect_right(self._marks, low) - 1) * _STRIDE
        end = min(self._keys, bisect_left(self._marks, high) * _STRIDE)
        both = memoryview(
            self._read(self._rows * _ROW.itemsize + begin * _KEY.itemsize, (end + 1 - begin) * _KEY.itemsize)
        )
        numbers = both.cast("Q")
        keys, starts = numbers[:-2:2], numbers[1::2]
        found = range(bisect_left(keys, low), bisect_left(keys, high))
        return [(keys[at], starts[at], starts[at + 1]) for at in found]

    def rows(self, begin: int, end: int) -> bytes:
        """As they lie there."""
        return self._read(begin * _ROW.itemsize, (end - begin) * _ROW.itemsize)

    def keys(self) -> Keys:
        """All of them."""
        return np.ascontiguousarray(self._all_keys()["key"][:-1])

    def _all_keys(self) -> NDArray[np.void]:
        return np.frombuffer(self._read(self._rows * _ROW.itemsize, (self._keys + 1) * _KEY.itemsize), _KEY)

    def _read(self, start: int, size: int) -> bytes:
        raw = os.pread(self._descriptor, size, start)
        if len(raw) != size:
            raise BlockLostError(f"the index of the metadata topic cannot be read back: {size} bytes at {start}")
        return raw

    def _write(self, raw: bytes) -> None:
        at = 0
        while at < len(raw):
            at += os.pwrite(self._descriptor, memoryview(raw)[at:], at)


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
