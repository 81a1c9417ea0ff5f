"""Follows one partition's log on disk while a broker writes it, and delivers its batches in order.

`read` returns whole batches with correct checksums, in the order of the file; nothing is delivered twice unless a
Truncated event says from which offset on. Nothing is ever written.

The state is a segment file, a position in it where a batch begins, and the offset expected there. A broker may change
everything: it appends, rolls, deletes by retention, swaps in compacted segments, and, as a follower, truncates and
copies another leader's batches. Three observations put the state in doubt, and make the tail find its offset again by
walking batch headers (`_align`): the file is shorter than the position; the bytes at the position are no batch, or one
that is too old; the log's leader epochs differ from the delivered ones.

Descriptors survive renaming and deletion, so a deleted segment is read to its end while its descriptor is open. If it
had to be closed meanwhile, the missing offsets are reported as a Gap.

One caller at a time. A tail of a compacted topic sees closed segments either before or after compaction, so offsets may
have holes that are no Gap.
"""

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kafka_log.errors import LogDirectoryError
from kafka_log.log_lineage import LogLineage
from kafka_log.open_files import FileReplacedError, LogFile, OpenFiles
from kafka_log.record_batch import (
    BATCH_OVERHEAD_BYTES,
    LOG_OVERHEAD_BYTES,
    MAX_BATCH_BYTES,
    BatchSpan,
    CorruptBatchError,
    scan_batches,
    verify_batches,
)
from kafka_log.segment_directory import SegmentDirectory
from kafka_log.segment_files import Located, locate
from kafka_log.tail_events import Gap, LogDeleted, TailEvent, TornTail, Truncated
from kafka_log.topic_partition import TopicId

__all__ = [
    "UNKNOWN_OFFSET", "Gap", "LogDeleted", "LogDirectoryError", "SegmentTail", "TailEvent",
    "TailRead", "TornTail", "Truncated",
]  # fmt: skip

_MAX_STEPS = 16
_MAX_RELATIVE_OFFSET = 2**31 - 1


UNKNOWN_OFFSET: Final = -1
_LENGTH = struct.Struct(">8xi")


class SegmentPosition:
    """A position in a segment file, from which batches are read; `enter` sets file and position first."""

    def __init__(self, files: OpenFiles, max_batch_bytes: int) -> None:
        self._files = files
        self._max_batch_bytes = max_batch_bytes
        self.file: LogFile | None = None
        """None before the first file is found, and when it is gone."""
        self.base_offset = UNKNOWN_OFFSET
        """Base offset of the present segment, or of the last one."""
        self.position = 0
        self.is_quiet = False
        """The last read found the file's end, so sizes are checked first."""
        self.has_zero_tail = False
        """The last read found only zeros, so the next few bytes are checked first."""
        self.is_last_look = False
        """A later segment exists, so the present one is complete: what the next look does not find never comes."""

    def enter(self, base_offset: int, file: LogFile, position: int) -> None:
        self.leave()
        self.file, self.base_offset, self.position = file, base_offset, position
        self.is_quiet = self.is_last_look = self.has_zero_tail = False

    def leave(self) -> None:
        self.close()
        self.file = None

    def close(self) -> None:
        """Close the file. A later read opens it again."""
        if self.file is not None:
            self._files.close(self.file)

    def read(self, file: LogFile, max_bytes: int) -> bytes:
        """Read up to `max_bytes` from the position, or one larger batch."""
        fd = self._files.pin(file)
        try:
            if self.has_zero_tail:
                zeros = os.pread(fd, BATCH_OVERHEAD_BYTES, self.position)
                if not any(zeros):
                    return zeros
            data = os.pread(fd, max_bytes, self.position)
            if len(data) == max_bytes:
                needed = LOG_OVERHEAD_BYTES + _LENGTH.unpack_from(data)[0]
                if len(data) < needed <= self._max_batch_bytes:
                    data = os.pread(fd, needed, self.position)
            return data
        finally:
            self._files.unpin(file)

    def read_cached(self, file: LogFile, max_bytes: int) -> bytes:
        """Read up to `max_bytes` of what the kernel has in memory. Raises OSError."""
        return self._files.read_cached(file, self.position, max_bytes)

    def is_at_end(self, file: LogFile) -> bool:
        """Whether the position is at the file's end, by its size."""
        return self._files.status(file).st_size == self.position

    def bytes_behind(self, file: LogFile) -> int:
        """Return how many bytes there are from the position on."""
        return max(0, self._files.status(file).st_size - self.position)

    def size_bytes(self, file: LogFile) -> int:
        """Return the file's size; the position, if the file was closed and then deleted. Raises OSError."""
        try:
            return self._files.status(file).st_size
        except (FileNotFoundError, FileReplacedError):
            return self.position

    def is_live(self) -> bool:
        """Whether the file is still in the directory. Raises OSError."""
        file = self.file
        if file is None:
            return False
        try:
            status = file.path.stat()
        except FileNotFoundError:
            return False
        return file.identity in (None, (status.st_dev, status.st_ino))


class TailRead(NamedTuple):
    """The result of one read of a tail: events, and the batches that come after them."""

    records: bytes
    """Whole, verified batches in order, maybe of several leader epochs. Empty: nothing new."""
    spans: list[BatchSpan]
    """The batches of `records`; positions are relative to it."""
    events: tuple[TailEvent, ...]


class SegmentTail:
    """Delivers one partition's batches in order, from an offset on, while a broker writes the log."""

    def __init__(
        self,
        partition_dir: Path,
        start_offset: int | None,
        open_files: OpenFiles | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        topic_id: TopicId | None = None,
    ) -> None:
        """Start at `start_offset`, or with the active segment when it is None.

        Inside a batch, it starts with that batch. Below the log's start, the first read reports a Gap; above
        the log's end, Truncated. `open_files` bounds the descriptors of all tails that share it. A directory
        of another topic than `topic_id` counts as deleted. Touches no file.
        """
        self._directory = SegmentDirectory(partition_dir, topic_id)
        self._files = open_files if open_files is not None else OpenFiles()
        self._next_offset = UNKNOWN_OFFSET if start_offset is None else start_offset
        self._at = SegmentPosition(self._files, max_batch_bytes)
        self._lineage = LogLineage(self._directory)
        self._pending: list[TailEvent] = []
        self._doubted: tuple[int, int, int, int] | None = None
        """Base, position, file size and directory time at which unreadable bytes made the tail align itself."""
        self._torn_at: tuple[int, int] | None = None

    @property
    def next_offset(self) -> int:
        """The offset of the next batch to deliver; UNKNOWN_OFFSET while a tail without start offset has found no
        segment."""
        return self._next_offset

    @property
    def has_events(self) -> bool:
        """Whether events wait that the next read returns: until then, `next_offset` may be too high."""
        return bool(self._pending)

    def read(self, max_bytes: int) -> TailRead:
        """Return the next batches, at most `max_bytes` together; a larger batch comes alone.

        Raises LogDirectoryError when files cannot be read, MalformedFileError for a broken leader-epoch-checkpoint.
        After an error, events that were found stay for the next read.
        """
        records, spans = b"", list[BatchSpan]()
        try:
            for _ in range(_MAX_STEPS):
                outcome = self._step(max(max_bytes, BATCH_OVERHEAD_BYTES))
                if outcome is not None:
                    records, spans = outcome
                    break
        except OSError as error:
            raise LogDirectoryError(self._directory.path, str(error)) from error
        events = tuple(self._pending)
        self._pending.clear()
        return TailRead(records, spans, events)

    def read_cached(self, max_bytes: int) -> tuple[TailRead, int] | None:
        """Read what the kernel has in memory, without waiting for a disk; None: a `read` is needed.

        Also returns how many bytes are left behind what was read. It reads on in the last known segment and looks at
        nothing else. It would not see a roll, for instance, so the caller must know that files were only appended to.
        Raises LogDirectoryError.
        """
        if self._at.file is None or self._pending or self._at.has_zero_tail:
            return None
        if self._at.is_last_look or self._directory.find_next(self._at.base_offset) is not None:
            return None
        try:
            data = self._at.read_cached(self._at.file, max_bytes)
        except OSError as error:
            raise LogDirectoryError(self._directory.path, str(error)) from error
        spans = _whole_batches(data)
        epoch = self._lineage.delivered.last_epoch
        if not spans or any(span.leader_epoch != epoch for span in spans):
            return None
        if not self._goes_on(spans) or (found := self._hand_on(data, spans)) is None:
            return None
        return TailRead(*found, ()), len(data) - spans[-1].end

    def backlog_bytes(self) -> int:
        """Return the bytes behind the position, as far as known from the last look at the directory.

        Zeros at the end of a preallocated file count, and so do waiting events and what has replaced a deleted file.
        Segments that were deleted since do not. Raises LogDirectoryError.
        """
        try:
            if self._at.file is None and not self._align(self._next_offset):
                return 0
            if self._at.file is None:
                return 0
            untold = len(self._pending) + (not self._at.is_live())
            following = (base for base in self._directory.bases if base > self._at.base_offset)
            return untold + self._at.bytes_behind(self._at.file) + sum(map(self._size_bytes, following))
        except (FileNotFoundError, FileReplacedError):
            return 1
        except OSError as error:
            raise LogDirectoryError(self._directory.path, str(error)) from error

    def _size_bytes(self, base_offset: int) -> int:
        """Return the size of a segment; 0 if it was deleted, which must not fail the caller."""
        try:
            return self._directory.file_path(base_offset).stat().st_size
        except FileNotFoundError:
            return 0

    def unread_bytes(self) -> int:
        """Return the bytes behind the position in the current segment, by its size only; 0 in doubt."""
        if self._at.file is None:
            return 0
        try:
            return self._at.bytes_behind(self._at.file)
        except (OSError, FileReplacedError):
            return 0

    def close(self) -> None:
        """Close the file. A later read opens it again."""
        self._at.close()

    def _step(self, max_bytes: int) -> tuple[bytes, list[BatchSpan]] | None:
        """Return what was found, or None when the state changed and another step is needed."""
        if self._directory.is_gone:
            self._pending.append(LogDeleted())
            return b"", []
        if self._at.file is None:
            is_aligned = self._align(self._next_offset)
            return None if is_aligned or self._directory.is_gone else (b"", [])
        try:
            if self._at.is_quiet and self._stays_quiet(self._at.file):
                return b"", []
            data = self._at.read(self._at.file, max_bytes)
        except (FileNotFoundError, FileReplacedError):
            self._at.leave()
            return None
        spans = _whole_batches(data)
        if spans:
            return self._hand_on(data, spans)
        return self._nothing_whole(self._at.file, data)

    def _stays_quiet(self, file: LogFile) -> bool:
        if self._at.is_at_end(file) and not self._look_at_directory():
            return True
        self._at.is_quiet = False
        return False

    def _hand_on(self, data: bytes, spans: list[BatchSpan]) -> tuple[bytes, list[BatchSpan]] | None:
        last = spans[-1]
        if not self._goes_on(spans):
            self._align(self._next_offset)
            return None
        divergence = self._lineage.continue_with(spans, self._next_offset)
        if divergence is not None:
            self._align(min(divergence, self._next_offset))
            return None
        self._at.position += last.end
        self._next_offset = last.last_offset + 1
        self._at.is_last_look = False
        self._torn_at = None
        return data[: last.end], spans

    def _goes_on(self, spans: Sequence[BatchSpan]) -> bool:
        """Whether these batches may be at the position."""
        relative_offset = spans[-1].last_offset - self._at.base_offset
        return spans[0].base_offset >= self._next_offset and relative_offset <= _MAX_RELATIVE_OFFSET

    def _nothing_whole(self, file: LogFile, data: bytes) -> tuple[bytes, list[BatchSpan]] | None:
        """Handle a position at the file's end, at an incomplete or broken batch, at zeros, or at a wrong place."""
        size = self._at.size_bytes(file)
        if size < self._at.position:
            self._align(self._next_offset)
            return None
        is_torn = any(data[:BATCH_OVERHEAD_BYTES])
        if data:
            doubted = (self._at.base_offset, self._at.position, size, self._directory.mtime_ns)
            if doubted != self._doubted:
                self._doubted = doubted
                before = (file.identity, self._at.position, len(self._pending))
                self._align(self._next_offset)
                if self._at.file is None or before != (self._at.file.identity, self._at.position, len(self._pending)):
                    return None
        self._at.has_zero_tail = bool(data) and not is_torn
        if self._look_at_directory():
            return None
        return self._at_the_end(is_torn, is_empty=not data)

    def _at_the_end(self, is_torn: bool, is_empty: bool) -> tuple[bytes, list[BatchSpan]] | None:
        following = self._directory.find_next(self._at.base_offset)
        if following is not None and not self._at.is_last_look:
            self._at.is_last_look = True
            return None
        if is_torn and following != self._next_offset and self._torn_at != (self._at.base_offset, self._at.position):
            self._torn_at = (self._at.base_offset, self._at.position)
            self._pending.append(TornTail())
            return b"", []
        if following is not None:
            self._go_on_to(following, is_torn)
            return None
        self._at.is_quiet = is_empty
        return b"", []

    def _go_on_to(self, following: int, is_torn: bool) -> None:
        if following < self._next_offset:
            self._align(self._next_offset)
            return
        if is_torn and following > self._next_offset:
            self._pending.append(Gap(self._next_offset, following, is_unreadable=True))
        self._at.enter(following, LogFile(self._directory.file_path(following)), 0)
        self._next_offset = following

    def _look_at_directory(self) -> bool:
        """Whether something about the directory makes another step necessary."""
        expected_roll = self._next_offset if self._next_offset != self._at.base_offset else None
        has_changed = self._directory.look(expected_roll)
        if self._directory.is_gone:
            return True
        if (has_changed or self._directory.is_unsettled) and not self._at.is_live():
            self._align(self._next_offset)
            return True
        if has_changed and self._lineage.divergence_by_checkpoint() is not None:
            self._align(self._next_offset)
        return has_changed

    def _align(self, target: int) -> bool:
        """Find the batch that holds `target`, at most the next offset, and report what the log no longer holds.

        False when there is no segment; then the state is unchanged.
        """
        for _ in range(_MAX_STEPS):
            self._directory.relook()
            bases = self._directory.bases
            if self._directory.is_gone or not bases:
                return False
            divergence = self._lineage.divergence_by_checkpoint()
            if divergence is not None:
                target = min(target, divergence)
            wanted = bases[-1] if target == UNKNOWN_OFFSET else max(target, bases[0])
            base = self._directory.holding(wanted) or bases[0]
            file = LogFile(self._directory.file_path(base))
            try:
                fd = self._files.pin(file)
            except FileNotFoundError:
                continue
            try:
                located = locate(fd, file.path, base, wanted)
            finally:
                self._files.unpin(file)
            resume = located.resume_offset(wanted, is_last=base == bases[-1])
            if resume < wanted and self._directory.relook() and self._directory.bases != bases:
                self._files.close(file)
                continue
            self._settle(base, file, located, wanted if target == UNKNOWN_OFFSET else target, resume)
            return True
        return False

    def _settle(self, base: int, file: LogFile, located: Located, target: int, resume: int) -> None:
        is_first = self._at.base_offset == UNKNOWN_OFFSET
        if is_first:
            self._lineage.delivered.begin(resume)
        starts_inside_a_batch = is_first and located.batch is not None
        kept = min(target, resume)
        if kept < self._next_offset and not starts_inside_a_batch:
            self._pending.append(Truncated(kept))
            self._lineage.delivered.cut(kept)
        if target < resume:
            self._pending.append(Gap(target, resume))
        self._at.enter(base, file, located.position)
        self._next_offset = resume


def _whole_batches(data: bytes) -> list[BatchSpan]:
    try:
        spans = scan_batches(data, 0, len(data))
    except CorruptBatchError as error:
        spans = scan_batches(data, 0, error.position)
    intact = verify_batches(data, spans)
    return spans if intact == len(spans) else spans[:intact]
