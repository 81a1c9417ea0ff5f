"""Where segments' entry blocks are: in memory up to a bound, and beyond it on this host's disk.

Theory. What lies on disk is a copy of what the topic and snapshots tell, for as long as the process lives: files have
no names, so they end with it whatever happens, and nobody reads what another process left. A block is written once,
with its owner's number and a checksum of both. A file goes when its last block was given back; when less than a quarter
of it is left, what is left is written anew, so that what one topic keeps for long does not hold what others have
released. Whose block it is stands in the file alone, as there are a million of them. What the disk refuses stays in
memory, and is told. What it does not give back as it was is an error, and never an object without entries: whoever
asked fails, and the store is made anew from snapshot and topic.

Not thread-safe: the store calls it under its lock.
"""

import itertools
import os
import struct
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog

from kafka_log.crc32c import crc32c
from metadata_topic.store.disk_writes import BlockLostError, DiskWrites, unnamed_file, write_at

log = structlog.get_logger(__name__)

PAGES_IN_MEMORY: Final = 1024
"""Ten megabytes: each writer needs the page of its newest objects, and that of those that go."""
FILE_BYTES: Final = 64 * 1024 * 1024
_HEAD: Final = struct.Struct("<III")
"""CRC32C of all that follows, the owner, and the block's length."""
_READ_BYTES: Final = 1024 * 1024


class DiskPlace(NamedTuple):
    """Where on disk a block is."""

    file: int
    """From 1 on."""
    offset: int
    length: int
    """Of the block itself."""


Place = bytes | DiskPlace
"""The block itself, or where it is."""


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """How much of what is known may be in memory, and where the rest goes."""

    directory: Path
    block_bytes: int
    """Of entries."""
    pages: int = PAGES_IN_MEMORY
    """Of segments' rows (`metadata_topic.store.segments.segment_rows`)."""


class BlockOwners(Protocol):
    """Who has which block, by number below 2**32."""

    def place_of(self, owner: int, /) -> Place | None:
        """None: it has none. Raises OSError where that cannot be read."""

    def moved(self, owner: int, place: Place, /) -> None:
        """Its block is there now."""


class _File:
    """One file, of blocks one behind the other."""

    __slots__ = ("__weakref__", "descriptor", "end", "left_bytes", "number")

    def __init__(self, number: int, directory: Path) -> None:
        """Raises OSError."""
        self.number = number
        self.descriptor = unnamed_file(directory)
        weakref.finalize(self, os.close, self.descriptor)
        self.end = self.left_bytes = 0

    def blocks(self) -> Iterator[tuple[int, DiskPlace]]:
        """Owners and places of all that was written. Raises OSError."""
        start, read = 0, b""
        at = 0
        while at < self.end:
            if at + _HEAD.size > start + len(read):
                start, read = at, os.pread(self.descriptor, _READ_BYTES, at)
            if len(read) - (at - start) < _HEAD.size:
                raise BlockLostError(f"entries of the metadata topic cannot be read back: {at} of {self.end} bytes")
            _, owner, length = _HEAD.unpack_from(read, at - start)
            yield owner, DiskPlace(self.number, at, length)
            at += _HEAD.size + length


class EntryBlocks:
    """The blocks of one store. See the module's theory."""

    def __init__(self, owners: BlockOwners, bound: MemoryBound | None = None, file_bytes: int = FILE_BYTES) -> None:
        """Without a bound all are in memory. `file_bytes` is at most `FILE_BYTES`."""
        self._owners = owners
        self._bound = bound
        self._file_bytes = file_bytes
        self.memory_bytes = self.disk_bytes = 0
        """Of blocks that somebody has."""
        self._numbers = itertools.count(1)
        self._files: dict[int, _File] = {}
        self._current: _File | None = None
        self._full: dict[int, _File] = {}
        """Those that may be tidied. It waits for `give_back`, as who keeps a block has not told its owner of it yet."""
        self._writes = DiskWrites("metadata_entries_kept_in_memory")

    def keep(self, block: bytes, owner: int) -> Place:
        """Where it is from now on. The owner is to know at once."""
        place = self._written(block, owner, self._bound.directory) if self._bound and self._is_beyond(block) else None
        if place is None:
            self.memory_bytes += len(block)
            return block
        return place

    def read(self, place: Place) -> bytes:
        """Raises BlockLostError, or another OSError of the disk."""
        if isinstance(place, bytes):
            return place
        raw = os.pread(self._files[place.file].descriptor, place.length + _HEAD.size, place.offset)
        if len(raw) == place.length + _HEAD.size:
            checksum, _, length = _HEAD.unpack_from(raw)
            if length == place.length and checksum == crc32c(memoryview(raw)[4:]):
                return raw[_HEAD.size :]
        raise BlockLostError(f"entries of the metadata topic cannot be read back: {place.length} at {place.offset}")

    def give_back(self, place: Place) -> None:
        """Its owner does not need it any more, and says so where it is asked. Others may be moved: whoever has looked
        up a place before is to look it up again.
        """
        if isinstance(place, bytes):
            self.memory_bytes -= len(place)
            return
        self._full[place.file] = self._gone(place)
        full, self._full = self._full, {}
        for file in full.values():
            self._tidy(file)

    def _is_beyond(self, block: bytes) -> bool:
        """Whether it is for the disk."""
        if self._bound is None or not block or len(block) + _HEAD.size >= min(self._file_bytes, FILE_BYTES):
            return False
        return self.memory_bytes + len(block) > self._bound.block_bytes

    def _written(self, block: bytes, owner: int, directory: Path) -> DiskPlace | None:
        """None: not, as the disk refused."""
        return self._writes.tried(directory, lambda: self._write(block, owner, directory))

    def _write(self, block: bytes, owner: int, directory: Path) -> DiskPlace:
        """Raises OSError."""
        size = len(block) + _HEAD.size
        file = self._file_for(size, directory)
        checked = _HEAD.pack(0, owner, len(block))[4:] + block
        write_at(file.descriptor, crc32c(checked).to_bytes(4, "little") + checked, file.end)
        place = DiskPlace(file.number, file.end, len(block))
        file.end += size
        file.left_bytes += size
        self.disk_bytes += size
        return place

    def _file_for(self, size: int, directory: Path) -> _File:
        current = self._current
        if current is None or current.end + size > self._file_bytes:
            self._current = fresh = _File(next(self._numbers), directory)
            self._files[fresh.number] = fresh
            if current is not None:
                self._full[current.number] = current
            return self._current
        return current

    def _gone(self, place: DiskPlace) -> _File:
        """Returns the file, which is to be tidied."""
        file = self._files[place.file]
        file.left_bytes -= place.length + _HEAD.size
        self.disk_bytes -= place.length + _HEAD.size
        return file

    def _tidy(self, file: _File) -> None:
        """Write what is left of it anew, where that is less than a quarter."""
        if file is self._current or 4 * file.left_bytes >= file.end:
            return
        try:
            for owner, place in file.blocks() if file.left_bytes else ():
                if self._owners.place_of(owner) == place:
                    self._owners.moved(owner, self.keep(self.read(place), owner))
                    self._gone(place)
        except OSError as error:
            log.warning("metadata_entries_not_moved", error=str(error), consequence="they stay where they are")
        if not file.left_bytes:
            del self._files[file.number]
