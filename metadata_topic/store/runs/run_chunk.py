"""A sorted, immutable piece of the index of runs.

Rows are sorted by key (partition and epoch as one number) and first offset. A row is three flat numpy
values: first offset, last offset, and the slot of the segment that holds the run; keys are stored once, with
the rows' bounds. 20 bytes for a row, and no Python object.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Keys = NDArray[np.uint64]
Slots = NDArray[np.uint32]


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

    keys: Keys
    """Sorted, each once."""
    bounds: Int64s
    """Key i has the rows [bounds[i], bounds[i + 1])."""
    firsts: Int64s
    lasts: Int64s
    reach: Int64s
    """The same column as `lasts` where no run reaches beyond a later one of its key, as is usual."""
    slots: Slots

    @classmethod
    def build(cls, keys: Keys, firsts: Int64s, lasts: Int64s, slots: Slots) -> Self:
        """From rows in any order, at least one."""
        # A partition's runs mostly come in their order, as those of merged chunks do: then keys alone are to be sorted.
        order = keys.argsort(kind="stable")
        if _falls_within_a_key(keys[order], firsts[order]):
            order = np.lexsort((firsts, keys))
        return cls._of_rows(keys[order], firsts[order], lasts[order], slots[order])

    @classmethod
    def _of_rows(cls, keys: Keys, firsts: Int64s, lasts: Int64s, slots: Slots) -> Self:
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        bounds = np.append(starts, len(keys))
        return cls.of_sorted(keys[starts], bounds, firsts, lasts, slots)

    @classmethod
    def of_sorted(cls, keys: Keys, bounds: Int64s, firsts: Int64s, lasts: Int64s, slots: Slots) -> Self:
        """From rows in their order, and each key once."""
        return cls(keys, bounds, firsts, lasts, _running_max(lasts, bounds), slots)

    @classmethod
    def merge(cls, chunks: Sequence[Self], alive: NDArray[np.bool_]) -> Self | None:
        """One chunk of all rows whose slots are alive; None when there are none."""
        if not chunks:
            return None
        kept = [alive[chunk.slots] for chunk in chunks]
        keys = np.concatenate([chunk.row_keys()[keep] for chunk, keep in zip(chunks, kept, strict=True)])
        if not len(keys):
            return None
        return cls.build(
            keys,
            np.concatenate([chunk.firsts[keep] for chunk, keep in zip(chunks, kept, strict=True)]),
            np.concatenate([chunk.lasts[keep] for chunk, keep in zip(chunks, kept, strict=True)]),
            np.concatenate([chunk.slots[keep] for chunk, keep in zip(chunks, kept, strict=True)]),
        )

    def swept(self, alive: NDArray[np.bool_]) -> Self | None:
        """The rows whose slots are alive; None when there are none."""
        keep = alive[self.slots]
        if keep.all():
            return self
        if not keep.any():
            return None
        return self._of_rows(self.row_keys()[keep], self.firsts[keep], self.lasts[keep], self.slots[keep])

    def __len__(self) -> int:
        return len(self.firsts)

    def row_keys(self) -> Keys:
        """Each row's key."""
        return np.repeat(self.keys, np.diff(self.bounds))

    def rows(self, key: int) -> Rows | None:
        """None when the key has none."""
        at = int(self.keys.searchsorted(np.uint64(key)))
        if at == len(self.keys) or int(self.keys[at]) != key:
            return None
        own = slice(int(self.bounds[at]), int(self.bounds[at + 1]))
        return Rows(self.firsts[own], self.lasts[own], self.reach[own], self.slots[own])

    def keys_between(self, low: int, high: int) -> list[int]:
        """The keys in [low, high)."""
        start, end = self.keys.searchsorted(np.array([low, high], dtype=np.uint64))
        found: list[int] = self.keys[start:end].tolist()
        return found

    def living_keys(self, alive: NDArray[np.bool_]) -> Keys:
        """The keys that have rows whose slots are alive."""
        return self.keys[np.logical_or.reduceat(alive[self.slots], self.bounds[:-1])]


def _falls_within_a_key(keys: Keys, firsts: Int64s) -> bool:
    return bool(((firsts[1:] < firsts[:-1]) & (keys[1:] == keys[:-1])).any())


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
