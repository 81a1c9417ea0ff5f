"""Where the uploaded runs of offsets are, by partition, leader epoch and offset.

Theory. A segment is added as its block of entries, and its slot (a small number) stands for it. Blocks wait
until a search comes, or until many entries wait; then they are decoded together and become one sorted chunk
(`run_chunk`). When enough chunks of a size have come together they are merged into one, up to a size whose
merging takes a fraction of a second; so an entry is sorted a few times in its life, and a search looks into
some tens of chunks. Runs may overlap and come in any order. Large chunks may lie on disk
(`metadata_topic.store.runs.disk_chunks`), and are merged there (`metadata_topic.store.runs.disk_merge`).

Removing a segment only marks its slot. Its rows go when chunks are merged, or when a quarter of all rows is
dead: then all chunks are swept, and the slots are free for other segments.

A partition is known by a number that is never used again, so a key is (number, epoch) in 64 bits.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import structlog

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.store.runs.disk_chunks import ChunkOnDisk, DiskChunks
from metadata_topic.store.runs.disk_merge import DiskMerge
from metadata_topic.store.runs.partition_numbers import PartitionNumbers
from metadata_topic.store.runs.run_chunk import Chunk, Int64s, Rows
from metadata_topic.store.runs.segment_slots import SegmentSlots
from metadata_topic.store.segments.segment_table import NOT_INDEXED, Segment
from plugin.format import entry_columns
from plugin.format.entry_column_batches import decode_runs

WAITING_ROWS: Final = 1 << 16
_MERGED_CHUNKS: Final = 8
_MERGED_ROWS_MAX: Final = 1 << 21
ON_DISK_ROWS: Final = 1 << 18
SWEEP_FROM_ROWS: Final = 4096

log = structlog.get_logger(__name__)


class Run(NamedTuple):
    """One partition's run of offsets [first_offset, last_offset] in one object."""

    first_offset: int
    last_offset: int
    segment: Segment


class RunIndex:
    """Not thread-safe; searches change it too."""

    def __init__(
        self, segment_at: Callable[[int], Segment], waiting_rows: int | None = None, directory: Path | None = None
    ) -> None:
        """`segment_at` gives a segment by its row. `waiting_rows` is how many entries may wait to be sorted; large
        chunks lie in `directory`, if given.
        """
        self._segment_at = segment_at
        self._directory = directory
        self._waiting_rows_max = WAITING_ROWS if waiting_rows is None else waiting_rows
        self._waiting: dict[int, bytes] = {}
        self._waiting_rows = 0
        self._chunks: list[Chunk] = []
        self._on_disk = DiskChunks()
        self._disk_merge = None if directory is None else DiskMerge(self._on_disk, directory)
        self._dead_rows = 0
        self._slots = SegmentSlots()
        self._numbers = PartitionNumbers()

    def add(self, segment: Segment, entry_block: bytes) -> None:
        """Index the segment's entries as they are now, and tell it its slot."""
        if not entry_block:
            return
        segment.slot = self._slots.take(segment.row)
        self._waiting[segment.slot] = entry_block
        self._waiting_rows += entry_columns.entry_count(entry_block)
        if self._waiting_rows >= self._waiting_rows_max:
            self._sort_waiting()
            if self._disk_merge is not None:
                self._dead_rows -= self._disk_merge.advance(self._slots.alive)

    def remove(self, segment: Segment, entry_count: int) -> None:
        """Forget the segment, which had so many entries when it was added."""
        slot = segment.slot
        if slot == NOT_INDEXED:
            return
        segment.slot = NOT_INDEXED
        is_waiting = self._waiting.pop(slot, None) is not None
        self._slots.give_back(slot, is_in_the_index=not is_waiting)
        if is_waiting:
            self._waiting_rows -= entry_count
            return
        self._dead_rows += entry_count
        all_rows = sum(map(len, (*self._chunks, *self._on_disk)))
        if (
            self._dead_rows == all_rows
            or self._dead_rows > max(SWEEP_FROM_ROWS, all_rows // 4)
            or self._slots.too_many_are_dead(SWEEP_FROM_ROWS)
        ):
            self._sweep()

    # Searches

    def partitions(self) -> list[TopicIdPartition]:
        """Those that have runs."""
        self._sort_waiting()
        alive = self._slots.alive
        chunks = (*self._chunks, *self._on_disk)
        numbers = {key >> 32 for chunk in chunks for key in chunk.living_keys(alive).tolist()}
        return self._numbers.partitions_of(sorted(numbers))

    def epochs(self, topic_id_partition: TopicIdPartition) -> list[int]:
        """The epochs in which it may have runs, ascending."""
        self._sort_waiting()
        number = self._numbers.number_of(topic_id_partition)
        if number is None:
            return []
        low = number << 32
        bounds = (low, low + (1 << 32))
        in_memory = [key for chunk in self._chunks for key in chunk.keys_between(*bounds)]
        return sorted({key - low - 1 for key in (*in_memory, *self._on_disk.keys_between(*bounds))})

    def covering(self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int) -> Iterator[Run]:
        """The runs that hold `offset`, in no particular order."""
        for rows in self._rows_of(topic_id_partition, leader_epoch):
            end = int(rows.firsts.searchsorted(offset, side="right"))
            yield from self._reaching(rows, offset, end)

    def reaching(self, topic_id_partition: TopicIdPartition, leader_epoch: int, offset: int) -> Iterator[Run]:
        """Runs that hold `offset` or begin above it, in no particular order."""
        for rows in self._rows_of(topic_id_partition, leader_epoch):
            yield from self._reaching(rows, offset, len(rows.firsts))

    def ranges(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epoch: int,
        bounds: tuple[int, int],
        dead_from: Mapping[int, int],
    ) -> list[tuple[int, int]]:
        """The offsets within `bounds` that any run holds, as ranges [from, to): ascending, none touches the next.

        `dead_from` is by slot the offset from which on that segment's records of this key are dead.
        """
        begin, end = bounds
        firsts, lasts = [], []
        for rows in self._rows_of(topic_id_partition, leader_epoch):
            within = slice(int(rows.reach.searchsorted(begin)), int(rows.firsts.searchsorted(end)))
            slots, own_firsts, own_lasts = rows.slots[within], rows.firsts[within], rows.lasts[within]
            is_living = self._slots.alive[slots]
            if dead_from:
                own_lasts = own_lasts.copy()
                for at in np.flatnonzero(np.isin(slots, list(dead_from))).tolist():
                    own_lasts[at] = min(int(own_lasts[at]), dead_from[int(slots[at])] - 1)
            is_living &= (own_lasts >= own_firsts) & (own_lasts >= begin)
            firsts.append(own_firsts[is_living])
            lasts.append(own_lasts[is_living])
        return _joined(np.concatenate(firsts), np.concatenate(lasts), bounds) if firsts else []

    def _reaching(self, rows: Rows, offset: int, end: int) -> Iterator[Run]:
        start = int(rows.reach[:end].searchsorted(offset))
        wanted = (rows.lasts[start:end] >= offset) & self._slots.alive[rows.slots[start:end]]
        for at in np.flatnonzero(wanted).tolist():
            yield self._run(rows, start + at)

    def _run(self, rows: Rows, at: int) -> Run:
        segment = self._segment_at(int(self._slots.rows[rows.slots[at]]))
        return Run(int(rows.firsts[at]), int(rows.lasts[at]), segment)

    def _rows_of(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> list[Rows]:
        self._sort_waiting()
        number = self._numbers.number_of(topic_id_partition)
        if number is None:
            return []
        key = number << 32 | leader_epoch + 1
        in_memory = [rows for chunk in self._chunks if (rows := chunk.rows(key)) is not None]
        return in_memory + self._on_disk.rows(key)

    # Chunks

    def _sort_waiting(self) -> None:
        if not self._waiting:
            return
        runs = decode_runs(list(self._waiting.values()))
        slots = np.array(list(self._waiting), dtype=np.uint32)
        self._waiting, self._waiting_rows = {}, 0
        numbers = self._numbers.made_for(runs.topic_ids, runs.topic, runs.partition)
        keys = numbers << np.uint64(32) | (runs.leader_epoch + 1).astype(np.uint64)
        self._chunks.append(Chunk.build(keys, runs.first_offset, runs.last_offset, slots[runs.block]))
        self._merge_chunks()

    def _merge_chunks(self) -> None:
        while True:
            together = self._chunks_to_merge()
            if together < _MERGED_CHUNKS:
                return
            before = self._chunks[-together:]
            merged = Chunk.merge(before, self._slots.alive)
            del self._chunks[-together:]
            self._dead_rows -= sum(map(len, before)) - (len(merged) if merged is not None else 0)
            kept = None if merged is None else self._kept(merged)
            if isinstance(kept, ChunkOnDisk):
                self._on_disk.add(kept)
            elif kept is not None:
                self._chunks.append(kept)

    def _kept(self, chunk: Chunk | ChunkOnDisk) -> Chunk | ChunkOnDisk:
        """On disk where it is large, and the disk takes it."""
        if self._directory is None or len(chunk) < ON_DISK_ROWS or isinstance(chunk, ChunkOnDisk):
            return chunk
        try:
            return ChunkOnDisk.of(chunk, self._directory)
        except OSError as error:
            log.warning("metadata_index_kept_in_memory", directory=str(self._directory), error=str(error))
            return chunk

    def _chunks_to_merge(self) -> int:
        """How many of the last chunks are no larger than the last one's size class."""
        rows, largest = 0, len(self._chunks[-1]).bit_length() // 3 if self._chunks else 0
        for count, chunk in enumerate(reversed(self._chunks)):
            rows += len(chunk)
            if len(chunk).bit_length() // 3 > largest or rows > _MERGED_ROWS_MAX:
                return count
        return len(self._chunks)

    def _sweep(self) -> None:
        """Free all that the removed segments still hold."""
        try:
            swept = (chunk.swept(self._slots.alive) for chunk in (*self._chunks, *self._on_disk))
            chunks = [self._kept(chunk) for chunk in swept if chunk is not None]
            keys = [chunk.keys() if isinstance(chunk, ChunkOnDisk) else chunk.keys for chunk in chunks]
        except OSError as error:
            log.warning("metadata_index_not_swept", error=str(error), consequence="it takes more memory and disk")
            return
        self._chunks = [chunk for chunk in chunks if isinstance(chunk, Chunk)]
        self._on_disk = DiskChunks(chunk for chunk in chunks if isinstance(chunk, ChunkOnDisk))
        self._disk_merge = None if self._directory is None else DiskMerge(self._on_disk, self._directory)
        self._slots.swept()
        self._dead_rows = 0
        self._numbers.keep({key >> 32 for own in keys for key in own.tolist()})


def _joined(firsts: Int64s, lasts: Int64s, bounds: tuple[int, int]) -> list[tuple[int, int]]:
    """What the runs hold together within the bounds, as ranges [from, to)."""
    if not len(firsts):
        return []
    order = np.argsort(firsts, kind="stable")
    firsts, reach = firsts[order], np.maximum.accumulate(lasts[order])
    begins = np.flatnonzero(np.concatenate(([True], firsts[1:] > reach[:-1] + 1)))
    ends = np.append(begins[1:], len(firsts)) - 1
    froms = np.maximum(firsts[begins], bounds[0])
    tos = np.minimum(reach[ends] + 1, bounds[1])
    return list(zip(froms.tolist(), tos.tolist(), strict=True))
