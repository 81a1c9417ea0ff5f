"""Makes one large piece of the index of runs out of several on disk, a little at a time.

Theory. Pieces of about one size are merged once there are eight of them, so a search looks into some twenty however
much there is. A step takes the rows of a range of keys from each piece, sorts them, and writes those whose slots are
alive: some ten thousands of rows, in some milliseconds and megabytes. Searches use the pieces until the last step is
done. Steps are made as entries come, three for as many entries as one takes, as each entry is merged twice.

A slot that was dead at its step may be given away anew only where the merge is begun anew as well: whoever frees slots
makes other `DiskChunks`, and another merge with them.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from metadata_topic.store.runs.disk_chunks import ChunkOnDisk, ChunkWriter, DiskChunks
from metadata_topic.store.runs.run_chunk import Chunk

log = structlog.get_logger(__name__)

STEP_ROWS: Final = 1 << 16
_STEPS: Final = 3
TOGETHER: Final = 8
_ROWS_MAX: Final = 1 << 26
_ROWS_OF_A_KEY: Final = 4
"""Steps' worth at most; a partition with more of them is as well searched in pieces."""
_END_OF_KEYS: Final = 2**63


class DiskMerge:
    """Of one index's pieces. Not thread-safe."""

    def __init__(self, chunks: DiskChunks, directory: Path) -> None:
        self._chunks = chunks
        self._directory = directory
        self._merged: Sequence[ChunkOnDisk] = ()
        self._writer: ChunkWriter | None = None
        self._ranges: list[tuple[int, int]] = []
        """Of keys, those that come next at the end."""

    def advance(self, alive: NDArray[np.bool_]) -> int:
        """Do what is due for some more entries; returns how many rows of dead slots went."""
        try:
            return sum(self._step(alive) for _ in range(_STEPS))
        except OSError as error:
            self._writer = None
            log.warning("metadata_index_not_merged", error=str(error), consequence="searches take longer")
            return 0

    def _step(self, alive: NDArray[np.bool_]) -> int:
        if self._writer is None and not self._begun():
            return 0
        assert self._writer is not None  # noqa: S101 - `_begun` made it
        if self._ranges:
            low, high = self._ranges.pop()
            merged = Chunk.merge([part for one in self._merged if (part := one.between(low, high)) is not None], alive)
            if merged is not None:
                self._writer.add(merged)
            return 0
        made, self._writer = self._writer.finished(), None
        self._chunks.replace(self._merged, made)
        return sum(map(len, self._merged)) - (0 if made is None else len(made))

    def _begun(self) -> bool:
        of_sizes: dict[int, list[ChunkOnDisk]] = {}
        for chunk in self._chunks:
            of_sizes.setdefault(len(chunk).bit_length() // 3, []).append(chunk)
        for size in sorted(of_sizes):
            merged = of_sizes[size][:TOGETHER]
            if len(merged) == TOGETHER and sum(map(len, merged)) <= _ROWS_MAX and (ranges := _ranges(merged)):
                self._writer, self._merged, self._ranges = ChunkWriter(self._directory), merged, ranges[::-1]
                return True
        return False


def _ranges(chunks: Sequence[ChunkOnDisk]) -> list[tuple[int, int]]:
    """Ranges of keys [from, to), ascending, with as many rows as a step takes; none where one key has far too many."""
    numbered = [chunk.row_numbers() for chunk in chunks]
    keys, which = np.unique(np.concatenate([own for own, _ in numbered]), return_inverse=True)
    rows = np.bincount(which, weights=np.concatenate([counts for _, counts in numbered])).astype(np.int64)
    if int(rows.max()) > _ROWS_OF_A_KEY * STEP_ROWS:
        return []
    begins = np.flatnonzero(np.diff((np.cumsum(rows) - rows) // STEP_ROWS, prepend=-1))
    return list(pairwise([*keys[begins].tolist(), _END_OF_KEYS]))
