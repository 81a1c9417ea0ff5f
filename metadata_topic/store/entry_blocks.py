"""Where segments' entry blocks are: in memory up to a bound, and beyond it on this host's disk.

Theory. What lies on disk is a copy of what the topic and snapshots tell, for as long as the process lives: files have
no names, so they end with it whatever happens, and nobody reads what another process left. A block is written once,
with its checksum. A file goes when its last block was given back; when less than half of it is left, what is left is
written anew, so that what one topic keeps for long does not hold what others have released. What the disk refuses
stays in memory, and is told. What it does not give back as it was is an error, and never an object without entries:
whoever asked fails, and the store is made anew from snapshot and topic.

Whoever reads many blocks for long holds them (`hold`): what is given back meanwhile stays readable until then.

Not thread-safe: the store calls it under its lock.
"""

import itertools
import os
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from kafka_log.crc32c import crc32c

log = structlog.get_logger(__name__)

FILE_BYTES: Final = 64 * 1024 * 1024
_OFFSET_BITS: Final = 26
"""As many as `FILE_BYTES` needs."""
_LENGTH_BITS: Final = 24
_CHECKSUM_BYTES: Final = 4

Place = bytes | int
"""The block itself, or where on disk it is: file, offset and length in one number, as there are a million of them."""


class BlockLostError(OSError):
    """The disk gave other bytes than it was given, or fewer."""


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """How much of what is known of entries may be in memory, and where the rest goes."""

    directory: Path
    block_bytes: int


class BlockOwner(Protocol):
    """Who has a block. It is told when its place changes."""

    place: Place


class _File:
    """One file, with the owners that its blocks had when they were written."""

    __slots__ = ("__weakref__", "descriptor", "end", "left_bytes", "number", "owners")

    def __init__(self, number: int, directory: Path) -> None:
        """Raises OSError."""
        self.number = number
        self.descriptor = unnamed_file(directory)
        weakref.finalize(self, os.close, self.descriptor)
        self.end = self.left_bytes = 0
        self.owners: list[BlockOwner] = []


class EntryBlocks:
    """The blocks of one store. See the module's theory."""

    def __init__(self, bound: MemoryBound | None = None, file_bytes: int = FILE_BYTES) -> None:
        """Without a bound all are in memory. `file_bytes` is at most `FILE_BYTES`."""
        self._bound = bound
        self._file_bytes = file_bytes
        self.memory_bytes = self.disk_bytes = 0
        """Of blocks that somebody has."""
        self._numbers = itertools.count(1)
        self._files: dict[int, _File] = {}
        self._current: _File | None = None
        self._holders = 0
        self._given_back: list[tuple[BlockOwner, int]] = []
        self._is_refused = False

    def keep(self, block: bytes, owner: BlockOwner) -> None:
        """Make it the owner's; the one that it had must have been given back."""
        owner.place = block
        if not self._is_beyond(block) or not self._written(block, owner):
            self.memory_bytes += len(block)

    def read(self, place: Place) -> bytes:
        """Raises BlockLostError, or another OSError of the disk."""
        if isinstance(place, bytes):
            return place
        number, offset, length = _parts(place)
        raw = os.pread(self._files[number].descriptor, length + _CHECKSUM_BYTES, offset)
        block = raw[_CHECKSUM_BYTES:]
        if len(block) != length or int.from_bytes(raw[:_CHECKSUM_BYTES], "little") != crc32c(block):
            raise BlockLostError(f"entries of the metadata topic cannot be read back: {length} bytes at {offset}")
        return block

    def give_back(self, owner: BlockOwner) -> None:
        """Its owner does not need it any more."""
        if isinstance(owner.place, bytes):
            self.memory_bytes -= len(owner.place)
        elif self._holders:
            self._given_back.append((owner, owner.place))
        else:
            self._tidy(self._gone(owner, owner.place))

    def hold(self) -> None:
        """No place goes until `let_go` was called as often."""
        self._holders += 1

    def let_go(self) -> None:
        """See `hold`."""
        self._holders -= 1
        if not self._holders:
            given_back, self._given_back = self._given_back, []
            files = [self._gone(owner, place) for owner, place in given_back]
            for file in {file.number: file for file in files}.values():  # none is written anew with what is gone
                self._tidy(file)

    def _is_beyond(self, block: bytes) -> bool:
        """Whether it is for the disk."""
        if self._bound is None or len(block) >= min(self._file_bytes, 1 << _LENGTH_BITS) - _CHECKSUM_BYTES:
            return False
        return self.memory_bytes + len(block) > self._bound.block_bytes

    def _written(self, block: bytes, owner: BlockOwner) -> bool:
        """False: not, as the disk refused."""
        assert self._bound is not None  # noqa: S101 - narrows what `_is_beyond` saw
        size = len(block) + _CHECKSUM_BYTES
        try:
            file = self._file_for(size, self._bound.directory)
            raw = crc32c(block).to_bytes(_CHECKSUM_BYTES, "little") + block
            if os.pwrite(file.descriptor, raw, file.end) != size:
                raise BlockLostError("the disk takes no more")
        except OSError as error:
            if not self._is_refused:
                log.warning("metadata_entries_kept_in_memory", directory=str(self._bound.directory), error=str(error))
            self._is_refused = True
            return False
        self._is_refused = False
        owner.place = (file.number << _OFFSET_BITS | file.end) << _LENGTH_BITS | len(block)
        file.owners.append(owner)
        file.end += size
        file.left_bytes += size
        self.disk_bytes += size
        return True

    def _file_for(self, size: int, directory: Path) -> _File:
        current = self._current
        if current is None or current.end + size > self._file_bytes:
            self._current = fresh = _File(next(self._numbers), directory)
            self._files[fresh.number] = fresh
            if current is not None:
                self._tidy(current)
            return self._current
        return current

    def _gone(self, owner: BlockOwner, place: int) -> _File:
        """The owner may have another place by now. Returns the file, which is to be tidied."""
        if owner.place == place:
            owner.place = b""
        number, _, length = _parts(place)
        file = self._files[number]
        file.left_bytes -= length + _CHECKSUM_BYTES
        self.disk_bytes -= length + _CHECKSUM_BYTES
        return file

    def _tidy(self, file: _File) -> None:
        """Write what is left of it anew, where that is less than half."""
        if file is self._current or self._holders or 2 * file.left_bytes >= file.end:
            return
        for owner in file.owners:
            if isinstance(owner.place, int) and _parts(owner.place)[0] == file.number:
                block = self.read(owner.place)
                self._gone(owner, owner.place)
                self.keep(block, owner)
        del self._files[file.number]


def _parts(place: int) -> tuple[int, int, int]:
    offset = place >> _LENGTH_BITS & (1 << _OFFSET_BITS) - 1
    return place >> _OFFSET_BITS + _LENGTH_BITS, offset, place & (1 << _LENGTH_BITS) - 1


def unnamed_file(directory: Path) -> int:
    """A descriptor of a new file in that directory, which goes when the descriptor does. Raises OSError."""
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.dup(file.fileno())
