"""The entry blocks of segments by their rows: who has which block stands in the row, and what is in memory here.

Not thread-safe: the store calls it under its lock.
"""

from metadata_topic.store.segments.entry_blocks import DiskPlace, EntryBlocks, MemoryBound, Place
from metadata_topic.store.segments.segment_rows import Row, SegmentRows


class RowBlocks:
    """See the module. A row that is changed has to be written by whoever changes it."""

    def __init__(self, rows: SegmentRows, bound: MemoryBound | None) -> None:
        self.blocks = EntryBlocks(self, bound)
        self._rows = rows
        self._in_memory: dict[int, bytes] = {}

    def keep(self, entry_block: bytes, row: int) -> Place:
        """For the row to have; what it had is to be given back."""
        place = self.blocks.keep(entry_block, row)
        self._remember(place, row)
        return place

    def forget(self, row: int) -> None:
        """It has none any more."""
        self._in_memory.pop(row, None)

    def place(self, row: int, fields: Row) -> Place:
        """As the row has it."""
        if fields.block_file:
            return DiskPlace(fields.block_file, fields.block_offset, fields.block_bytes)
        return self._in_memory.get(row, b"")

    def place_of(self, owner: int, /) -> Place | None:
        """For the blocks. Raises OSError of the disk."""
        fields = self._rows.read(owner)
        return self.place(owner, fields) if fields.state else None

    def moved(self, owner: int, place: Place, /) -> None:
        """From the blocks. Raises OSError of the disk."""
        file, offset, length = on_disk(place)
        moved = self._rows.read(owner)._replace(block_file=file, block_offset=offset, block_bytes=length)
        self._rows.write(owner, moved)
        self._remember(place, owner)

    def _remember(self, place: Place, row: int) -> None:
        if isinstance(place, bytes) and place:
            self._in_memory[row] = place
        else:
            self._in_memory.pop(row, None)


def on_disk(place: Place) -> DiskPlace:
    """As a row has it: in file 0 where it is in memory."""
    return DiskPlace(0, 0, len(place)) if isinstance(place, bytes) else place
