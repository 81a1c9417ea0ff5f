"""Writes a partition directory as a Kafka broker does, and knows what is in it."""

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.kafka_log.batches import batch


class BatchKey(NamedTuple):
    """No two different batches of a partition have the same."""

    leader_epoch: int
    base_offset: int


@dataclass
class WrittenBatch:
    base_offset: int
    last_offset: int
    leader_epoch: int
    raw: bytes
    key: BatchKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = BatchKey(self.leader_epoch, self.base_offset)


@dataclass
class WrittenSegment:
    base_offset: int
    batches: list[WrittenBatch] = field(default_factory=list)
    size: int = 0
    """Of its batches, in bytes."""

    def append(self, written: WrittenBatch) -> None:
        self.batches.append(written)
        self.size += len(written.raw)

    def keep(self, batches: list[WrittenBatch]) -> None:
        """These of its own, and no others."""
        self.batches, self.size = batches, sum(len(kept.raw) for kept in batches)


class LogWriter:
    """One partition's log: appends, rolls, truncates, removes, tears and repairs its tail."""

    def __init__(self, path: Path, base_offset: int = 0, *, preallocate_bytes: int = 0) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.epochs: list[tuple[int, int]] = []
        self.segments: list[WrittenSegment] = []
        self.present: dict[BatchKey, WrittenBatch] = {}
        """What is in the log, in its order."""
        self.ever_written: set[bytes] = set()
        self._preallocate_bytes = preallocate_bytes
        self._torn = False
        self._time_ns = 1_700_000_000_000_000_000
        self._create(base_offset)

    @property
    def log_end_offset(self) -> int:
        active = self.segments[-1]
        return active.batches[-1].last_offset + 1 if active.batches else active.base_offset

    @property
    def log_start_offset(self) -> int:
        return self.segments[0].base_offset

    @property
    def batches(self) -> list[WrittenBatch]:
        return [b for segment in self.segments for b in segment.batches]

    def file(self, segment: WrittenSegment, suffix: str = "log") -> Path:
        return Path(self._name(segment, suffix))

    def _name(self, segment: WrittenSegment, suffix: str = "log") -> str:
        return f"{self.path}/{segment.base_offset:020d}.{suffix}"

    def append(self, records: int = 1, leader_epoch: int = 0, payload: bytes = b"x") -> WrittenBatch:
        """One batch; a new leader epoch goes into the checkpoint first, as Kafka does it."""
        self.repair()
        base = self.log_end_offset
        raw = batch(base, records, leader_epoch, payload)
        written = WrittenBatch(base, base + records - 1, leader_epoch, raw)
        self.append_batch(written)
        return written

    def append_batch(self, written: WrittenBatch) -> None:
        """One that another log has, as a follower does it."""
        self.repair()
        if not self.epochs or self.epochs[-1][0] < written.leader_epoch:
            self.epochs.append((written.leader_epoch, written.base_offset))
            self.write_checkpoint()
        active = self.segments[-1]
        size = active.size
        if size:
            self._write(self._name(active, "index"), self._index_entry(active, written, size))
        self._write(self._name(active), written.raw, at=size)
        active.append(written)
        self.present[written.key] = written
        self.ever_written.add(written.raw)

    def tear(self, leader_epoch: int = 0, keep: int = 30, *, full_length: bool = False) -> None:
        """Leave a batch at the end that is cut off, or of full length with its last bytes wrong."""
        self.repair()
        raw = batch(self.log_end_offset, 2, leader_epoch, b"torn" * 10)
        raw = raw[:-4] + b"\0\0\0\0" if full_length else raw[: max(1, min(keep, len(raw) - 1))]
        with self.file(self.segments[-1]).open("r+b") as out:
            out.seek(self.segments[-1].size)
            out.write(raw)
        self._torn = True

    @property
    def is_torn(self) -> bool:
        """Whether what stands at the end is no whole batch."""
        return self._torn

    def repair(self) -> None:
        """Cut the torn batch off, as a broker does when it starts."""
        if self._torn:
            self._truncate_file(self.segments[-1])
            self._torn = False

    def roll(self) -> None:
        self.repair()
        active = self.segments[-1]
        if active.batches:
            os.truncate(self.file(active), active.size)
            self._create(self.log_end_offset)

    def truncate_to(self, offset: int, *, flush_checkpoint: bool = True) -> None:
        """Remove every batch that reaches `offset`, as a follower that diverged."""
        self.repair()
        while len(self.segments) > 1 and self.segments[-1].base_offset >= offset:
            self._remove(self.segments.pop())
        active = self.segments[-1]
        active.keep([b for b in active.batches if b.last_offset < offset])
        self._find_present()
        self._truncate_file(active)
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < self.log_end_offset]
        if flush_checkpoint:
            self.write_checkpoint()
        self._stamp()

    def restart_at(self, offset: int) -> None:
        """Drop the whole log and begin again elsewhere, as a follower whose offset is out of range."""
        self._torn = False
        for segment in self.segments:
            self._remove(segment)
        self.segments = []
        self.present = {}
        self.epochs = []
        self._create(offset)
        self.write_checkpoint()

    def remove_oldest(self, *, unlink: bool = False) -> None:
        """Retention: the first segment goes, if it is not the active one."""
        if len(self.segments) > 1:
            self._remove(self.segments.pop(0), unlink=unlink)
            self._find_present()
            start = self.log_start_offset
            kept = [(epoch, first) for epoch, first in self.epochs if first > start]
            covering = [epoch for epoch, first in self.epochs if first <= start]
            self.epochs = [(covering[-1], start), *kept] if covering else kept
            self.write_checkpoint()

    def compact(self, index: int) -> None:
        """Swap in a cleaned copy of a closed segment, which keeps every second batch, and the log's last one."""
        segment = self.segments[index]
        is_last = not any(after.batches for after in self.segments[index + 1 :])
        kept = segment.batches[1::2]
        # No record is newer than the log's last one, of whatever key, so the cleaner keeps it.
        segment.keep([*kept, segment.batches[-1]] if is_last and len(segment.batches) % 2 else kept)
        self._find_present()
        cleaned = self.file(segment, "log.cleaned")
        cleaned.write_bytes(b"".join(b.raw for b in segment.batches))
        swap = cleaned.rename(self.file(segment, "log.swap"))
        self.file(segment, "index").unlink(missing_ok=True)
        self.file(segment).rename(self.file(segment, "log.deleted"))
        swap.rename(self.file(segment))
        self._stamp()

    def write_checkpoint(self) -> None:
        lines = ["0", str(len(self.epochs)), *(f"{epoch} {start}" for epoch, start in self.epochs)]
        temporary = self.path / "leader-epoch-checkpoint.tmp"
        temporary.write_text("\n".join(lines) + "\n")
        temporary.rename(self.path / "leader-epoch-checkpoint")
        self._stamp()

    def _find_present(self) -> None:
        self.present = {written.key: written for written in self.batches}

    def _create(self, base_offset: int) -> None:
        segment = WrittenSegment(base_offset)
        self.segments.append(segment)
        with self.file(segment).open("wb") as out:
            out.truncate(self._preallocate_bytes)
        self._stamp()

    def _index_entry(self, segment: WrittenSegment, written: WrittenBatch, position: int) -> bytes:
        return struct.pack(">II", written.last_offset - segment.base_offset, position)

    def _write(self, path: str, raw: bytes, at: int | None = None) -> None:
        """Into a file that is there, or to the end of one that need not be. A simulation does this most of all."""
        fd = os.open(path, os.O_WRONLY if at is not None else os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.pwrite(fd, raw, at) if at is not None else os.write(fd, raw)
        finally:
            os.close(fd)

    def _truncate_file(self, segment: WrittenSegment) -> None:
        os.truncate(self.file(segment), segment.size)
        self.file(segment, "index").unlink(missing_ok=True)

    def _remove(self, segment: WrittenSegment, *, unlink: bool = False) -> None:
        self.file(segment, "index").unlink(missing_ok=True)
        if unlink:
            self.file(segment).unlink()
        else:
            self.file(segment).rename(self.file(segment, "log.deleted"))
        self._stamp()

    def _stamp(self) -> None:
        # Time passes between what a broker does; on older kernels the file system's clock may not show it.
        self._time_ns += 10_000_000
        os.utime(self.path, ns=(self._time_ns, self._time_ns))
