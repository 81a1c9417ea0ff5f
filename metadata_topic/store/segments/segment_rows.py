"""A row of fixed size for each segment, in pages: those used last in memory, all others on this host's disk.

Theory. As with entry blocks (`metadata_topic.store.segments.entry_blocks`), what lies on disk is a copy of what topic
and snapshots tell: the file has no name, and ends with the process. A page is written when others push it out of
memory; its checksum stays there. What the disk refuses stays in memory, and is told; what it does not give back as it
was is an error, and never a segment that is not there.

A row's number is its page's, times `PAGE_ROWS`, and its place in it. Pages that were freed are made again.

Not thread-safe: the store calls it under its lock.
"""

import os
import struct
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kafka_log.crc32c import crc32c
from metadata_topic.store.disk_writes import BlockLostError, DiskWrites, unnamed_file, write_at
from metadata_topic.store.segments.entry_blocks import MemoryBound

PAGE_BITS: Final = 8
PAGE_ROWS: Final = 1 << PAGE_BITS
_ROW: Final = struct.Struct("<BxxxIqqIIII")
FIELDS: Final = np.dtype(
    {
        "names": ["state", "custom_metadata", "event_timestamp_ms", "size_bytes"],
        "formats": ["u1", "<u4", "<i8", "<i8"],
        "offsets": [0, 4, 8, 16],
        "itemsize": _ROW.size,
    }
)
"""What is looked at in all rows of a page at once."""
PAGE_BYTES: Final = PAGE_ROWS * _ROW.size


class Row(NamedTuple):
    """What a row holds; all zero where there is no segment."""

    state: int
    custom_metadata: int
    """The number of its value."""
    event_timestamp_ms: int
    size_bytes: int
    block_file: int
    block_offset: int
    block_bytes: int
    slot: int


class SegmentRows:
    """See the module's theory."""

    def __init__(self, bound: MemoryBound | None = None) -> None:
        """Without a bound all pages are in memory."""
        self._bound = bound
        self._cached: OrderedDict[int, bytearray] = OrderedDict()
        self._changed: set[int] = set()
        self._checksums = np.zeros(64, dtype=np.uint32)
        self._pages = 0
        self._free: list[int] = []
        self._descriptor: int | None = None
        self._writes = DiskWrites("metadata_segments_kept_in_memory")

    @property
    def disk_bytes(self) -> int:
        """Of the file, with pages that are in memory too."""
        return 0 if self._descriptor is None else os.fstat(self._descriptor).st_size

    def make_page(self) -> int:
        """A number; all of its rows are zero."""
        page = self._free.pop() if self._free else self._pages
        if page == self._pages:
            self._pages += 1
            if page == len(self._checksums):
                self._checksums = np.concatenate((self._checksums, np.zeros_like(self._checksums)))
        self._cached[page] = bytearray(PAGE_BYTES)
        self._changed.add(page)
        self._push_out()
        return page

    def free_page(self, page: int) -> None:
        """None of its rows is needed any more."""
        self._cached.pop(page, None)
        self._changed.discard(page)
        self._free.append(page)

    def read(self, row: int) -> Row:
        """Raises BlockLostError, or another OSError of the disk."""
        return Row._make(_ROW.unpack_from(self._page(row >> PAGE_BITS), (row & PAGE_ROWS - 1) * _ROW.size))

    def write(self, row: int, fields: Row) -> None:
        """Raises as `read` does, and never right after it for the same row."""
        page = row >> PAGE_BITS
        _ROW.pack_into(self._page(page), (row & PAGE_ROWS - 1) * _ROW.size, *fields)
        self._changed.add(page)

    def page(self, page: int) -> NDArray[np.void]:
        """`FIELDS` of its rows as they are now; no other page is pushed out for it. Raises as `read` does."""
        cached = self._cached.get(page)
        return np.frombuffer(self._loaded(page) if cached is None else bytes(cached), dtype=FIELDS)

    def _page(self, page: int) -> bytearray:
        cached = self._cached.get(page)
        if cached is None:
            cached = self._cached[page] = bytearray(self._loaded(page))
            self._push_out()
        else:
            self._cached.move_to_end(page)
        return cached

    def _loaded(self, page: int) -> bytes:
        if self._descriptor is None:
            raise LookupError(f"page {page} was never made")
        raw = os.pread(self._descriptor, PAGE_BYTES, page * PAGE_BYTES)
        if len(raw) != PAGE_BYTES or crc32c(raw) != int(self._checksums[page]):
            raise BlockLostError(f"segments of the metadata topic cannot be read back: page {page}")
        return raw

    def _push_out(self) -> None:
        """Those used longest ago; the newest stays."""
        if self._bound is None:
            return
        while len(self._cached) > max(1, self._bound.pages):
            page, content = next(iter(self._cached.items()))
            if page in self._changed and not self._written(page, content, self._bound.directory):
                return
            del self._cached[page]

    def _written(self, page: int, content: bytearray, directory: Path) -> bool:
        """False: not, as the disk refused."""
        if self._writes.tried(directory, lambda: self._write_page(page, content, directory)) is None:
            return False
        self._checksums[page] = crc32c(content)
        self._changed.discard(page)
        return True

    def _write_page(self, page: int, content: bytearray, directory: Path) -> bool:
        """Raises OSError."""
        if self._descriptor is None:
            self._descriptor = unnamed_file(directory)
            weakref.finalize(self, os.close, self._descriptor)
        write_at(self._descriptor, content, page * PAGE_BYTES)
        return True
