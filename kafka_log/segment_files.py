"""The segment files of a partition directory: names, sparse index, and walks over batch headers."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kafka_log.record_batch import (
    BATCH_OVERHEAD_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchSpan,
    header_fault,
    verify_batches,
)

WALK_CHUNK_BYTES = 64 * 1024
_HEADER = struct.Struct(">qiibI2xi")
_INDEX_ENTRY = struct.Struct(">II")
_NO_OFFSET = 2**63
"""No log reaches it."""


def log_file_name(base_offset: int) -> str:
    """Return the name of the segment that begins with `base_offset`."""
    return f"{base_offset:020d}.log"


def list_segments(partition_dir: Path) -> list[int]:
    """Return the base offsets of the live segments, ascending.

    Files ending in .deleted, .cleaned and .swap are not (or no longer) part of the log. Raises OSError.
    """
    bases = []
    for name in os.listdir(partition_dir):
        stem, dot, suffix = name.partition(".")
        if dot and suffix == "log" and len(stem) == 20 and stem.isascii() and stem.isdigit():
            bases.append(int(stem))
    bases.sort()
    return bases


class WalkedBatch(NamedTuple):
    """A batch as its header describes it; its checksum was not checked."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    position: int
    end_position: int


def walk_batches(fd: int, position: int, next_offset: int = 0) -> Iterator[WalkedBatch]:
    """Yield the batches from `position` on, reading only their headers, in bounded reads.

    Ends at the file's end, at an incomplete batch, and at bytes that are not a batch.
    """
    size = os.fstat(fd).st_size
    chunk_start, chunk = position, b""
    while position + BATCH_OVERHEAD_BYTES <= size:
        within = position - chunk_start
        if within + BATCH_OVERHEAD_BYTES > len(chunk):
            chunk_start, within = position, 0
            chunk = os.pread(fd, WALK_CHUNK_BYTES, position)
            if len(chunk) < BATCH_OVERHEAD_BYTES:
                return
        base_offset, length, leader_epoch, magic, crc, delta = _HEADER.unpack_from(chunk, within)
        end_position = position + LOG_OVERHEAD_BYTES + length
        if header_fault(length, magic, base_offset, delta, next_offset) or end_position > size:
            return
        yield WalkedBatch(base_offset, base_offset + delta, leader_epoch, crc, position, end_position)
        next_offset = base_offset + delta + 1
        position = end_position


def is_intact(fd: int, batch: WalkedBatch) -> bool:
    """Whether the batch has the checksum in its header."""
    raw = os.pread(fd, batch.end_position - batch.position, batch.position)
    span = BatchSpan(
        batch.base_offset,
        batch.last_offset,
        batch.leader_epoch,
        batch.crc,
        0,
        batch.end_position - batch.position,
    )
    return len(raw) == span.end and verify_batches(raw, [span]) == 1


def indexed_position(fd: int, log_path: Path, base_offset: int, target_offset: int) -> int:
    """Return a position where a batch begins, at or before the batch that holds `target_offset`; or 0.

    It comes from the sparse offset index: pairs of 4 bytes each, an offset relative to the segment's and the position
    of a batch that begins at or before it. An active segment's index is preallocated, with zeros behind the last entry.
    A position counts only if an intact batch is there.
    """
    try:
        index_fd = os.open(log_path.with_suffix(".index"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        low, high = 0, os.fstat(index_fd).st_size // _INDEX_ENTRY.size
        position = 0
        while low < high:
            middle = (low + high) // 2
            raw = os.pread(index_fd, _INDEX_ENTRY.size, middle * _INDEX_ENTRY.size)
            if len(raw) < _INDEX_ENTRY.size:
                high = middle
                continue
            relative_offset, candidate = _INDEX_ENTRY.unpack(raw)
            if relative_offset and base_offset + relative_offset <= target_offset:
                position, low = candidate, middle + 1
            else:
                high = middle
    finally:
        os.close(index_fd)
    batch = next(walk_batches(fd, position, base_offset), None)
    if batch is None or batch.base_offset > target_offset or not is_intact(fd, batch):
        return 0
    return position


class Located(NamedTuple):
    """Where an offset is in a segment: at the first batch that reaches it, or at the end of the complete batches."""

    position: int
    batch: WalkedBatch | None
    end_offset: int
    """Offset after the last batch before `position`; the segment's base offset without any."""

    def resume_offset(self, wanted: int, is_last: bool) -> int:
        """Return the offset where reading continues: `wanted`, the base offset of the batch that holds it, or the log's
        end if that is lower.

        A closed segment (not `is_last`) that ends below `wanted` has a hole there, made by compaction.
        """
        if self.batch is not None:
            return min(wanted, self.batch.base_offset)
        return min(wanted, self.end_offset) if is_last else wanted


def locate(fd: int, log_path: Path, base_offset: int, target_offset: int) -> Located:
    """Find the segment's first batch whose last offset is at least `target_offset`, with the help of the index."""
    if target_offset > base_offset:
        position = indexed_position(fd, log_path, base_offset, target_offset)
        if position:
            located = _locate_from(fd, position, base_offset, target_offset)
            if located.batch is not None or located.position > position:
                return located
    return _locate_from(fd, 0, base_offset, target_offset)


def log_end(partition_dir: Path) -> int:
    """Return the offset after the log's last complete batch; 0 without any segment. Raises OSError."""
    segments = list_segments(partition_dir)
    if not segments:
        return 0
    path = partition_dir / log_file_name(segments[-1])
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return locate(fd, path, segments[-1], _NO_OFFSET).end_offset
    finally:
        os.close(fd)


def _locate_from(fd: int, position: int, base_offset: int, target_offset: int) -> Located:
    end_offset = base_offset
    for batch in walk_batches(fd, position, base_offset):
        if batch.last_offset >= target_offset:
            return Located(batch.position, batch, end_offset)
        position, end_offset = batch.end_position, batch.last_offset + 1
    return Located(position, None, end_offset)
