"""Writes one partition's log as Kafka would have: segment files that roll by size, time and offset, and small files.

Batches come in the order of the log and are appended to the active segment, byte for byte. The segment rolls before a
batch as in Kafka's LogSegment.shouldRoll: when it would grow beyond `segment.bytes`, when the batch is younger than the
segment's first by more than `segment.ms`, or when its offset is too far from the segment's base for an index. A rolled
segment is synced to the disk, and recorded in a journal: [base offset, size, offset behind it], together with the
leader epochs, holes and settings that it was made by. A writer that finds a journal continues behind its last segment,
if by the present plan the same leaders wrote those segments and the same offsets are missing; otherwise it starts
again.

Index files and producer snapshots are not written: a broker that finds none reads the segments, checks every batch, and
makes them. Their absence makes it check.

An unfinished log is in a directory that no broker takes for a partition (see `recovery.logs.log_directory_target`).
"""

import json
import os
import shutil
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from kafka_log.broker_files.leader_epoch_checkpoint import FILE_NAME as LEADER_EPOCHS
from kafka_log.broker_files.partition_metadata import FILE_NAME as PARTITION_METADATA
from kafka_log.record_batch import BatchSpan
from kafka_log.segment_files import log_file_name
from kafka_log.topic_partition import TopicId, topic_id_to_text
from plugin.durable_files import sync_directory, write_durably
from recovery.errors import RecoveryError
from recovery.logs.log_plan import EpochStart, Extent, LogPlan
from recovery.logs.log_settings import LogSettings

JOURNAL: Final = "recovery-journal.json"
_MAX_TIMESTAMP: Final = struct.Struct(">q")
_MAX_TIMESTAMP_AT: Final = 35
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1


class WrittenSegment(NamedTuple):
    """A segment file that is complete and on the disk."""

    base_offset: int
    size_bytes: int
    next_offset: int


@dataclass(slots=True)
class _ActiveSegment:
    base_offset: int
    size_bytes: int = 0
    first_timestamp_ms: int | None = None


class LogWriter:
    """Writes one partition's log into a directory. Not thread-safe. Every method raises OSError."""

    def __init__(
        self, directory: Path, plan: LogPlan, settings: LogSettings, to_timestamp_ms: int | None = None
    ) -> None:
        """`to_timestamp_ms`: the log ends before the first batch with a record that is younger than this."""
        self._directory = directory
        self._plan = plan
        self._settings = settings
        self._to_timestamp_ms = to_timestamp_ms
        self._segments: list[WrittenSegment] = []
        self._active: _ActiveSegment | None = None
        self.next_offset = plan.start_offset
        """Offset after the last one that was written, or left out as a hole."""
        self.reached_timestamp = False
        """The point in time was reached: later batches are ignored."""

    @property
    def written_bytes(self) -> int:
        """Size of all segments, including those of an earlier run."""
        return sum(segment.size_bytes for segment in self._segments) + (self._active.size_bytes if self._active else 0)

    def resume(self) -> None:
        """Keep the segments of an interrupted writer that match this plan, and remove the rest."""
        kept = self._usable_journal()
        names = {log_file_name(segment.base_offset) for segment in kept} | ({JOURNAL} if kept else set())
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in list(self._directory.iterdir()):
            if path.name not in names:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        self._segments = kept
        if kept:
            self.next_offset = kept[-1].next_offset

    def append(self, extent: Extent, records: memoryview, batches: Sequence[BatchSpan]) -> None:
        """Write those batches of `records` that are not written yet, up to the extent's end.

        Raises RecoveryError for a batch that overlaps with what is written.
        """
        start = end = None
        for batch in batches:
            if batch.last_offset < self.next_offset:
                continue
            if batch.base_offset < self.next_offset and self.written_bytes:
                raise RecoveryError(
                    "write log", str(self._directory), f"batch {batch.base_offset} overlaps with {self.next_offset}"
                )
            (timestamp_ms,) = _MAX_TIMESTAMP.unpack_from(records, batch.start + _MAX_TIMESTAMP_AT)
            if self._to_timestamp_ms is not None and timestamp_ms > self._to_timestamp_ms:
                self.reached_timestamp = True
                break
            pending = 0 if start is None or end is None else end - start
            if self._must_roll(batch, pending, timestamp_ms):
                self._flush(records, start, end)
                start = None
                self._roll(batch)
            if self._active is not None and self._active.first_timestamp_ms is None:
                self._active.first_timestamp_ms = timestamp_ms
            if start is None:
                start = batch.start
            end = batch.end
            self.next_offset = batch.last_offset + 1
        self._flush(records, start, end)
        if not self.reached_timestamp:
            self.next_offset = max(self.next_offset, extent.last_offset + 1)

    def finish(self, topic_id: TopicId) -> tuple[EpochStart, ...]:
        """Close the log and write its small files; everything is on the disk when this returns.

        Returns the leader epochs as they were written.
        """
        if self._active is None and not self._segments:
            self._active = _ActiveSegment(self.next_offset)
            self._path(self.next_offset).touch()
        self._seal()
        is_whole = self.next_offset == self._plan.end_offset
        epochs = tuple(
            epoch
            for epoch in self._plan.leader_epochs
            if epoch.start_offset < self.next_offset or (is_whole and epoch.start_offset == self.next_offset)
        )
        lines = [f"{epoch} {start}" for epoch, start in epochs]
        write_durably(self._directory / LEADER_EPOCHS, "\n".join(["0", str(len(lines)), *lines]) + "\n")
        metadata = f"version: 0\ntopic_id: {topic_id_to_text(topic_id)}\n"
        write_durably(self._directory / PARTITION_METADATA, metadata)
        (self._directory / JOURNAL).unlink(missing_ok=True)
        sync_directory(self._directory)
        return epochs

    def _must_roll(self, batch: BatchSpan, pending_bytes: int, timestamp_ms: int) -> bool:
        active = self._active
        if active is None:
            return True
        size = active.size_bytes + pending_bytes
        if not size or active.first_timestamp_ms is None:
            return False
        return (
            size + batch.end - batch.start > self._settings.segment_bytes
            or timestamp_ms - active.first_timestamp_ms > self._settings.segment_ms
            or batch.last_offset - active.base_offset > _MAX_RELATIVE_OFFSET
        )

    def _roll(self, batch: BatchSpan) -> None:
        self._seal()
        # Kafka names a segment by the log end offset at the roll, which is lower than the batch's at a hole.
        base_offset = self.next_offset if self._segments else batch.base_offset
        if batch.last_offset - base_offset > _MAX_RELATIVE_OFFSET:
            base_offset = batch.base_offset
        self._active = _ActiveSegment(base_offset)

    def _flush(self, records: memoryview, start: int | None, end: int | None) -> None:
        active = self._active
        if start is None or end is None or active is None:
            return
        # Opened each time: there may be more logs than descriptors.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._path(active.base_offset), flags, 0o644)
        try:
            active.size_bytes += end - start
            while start < end:
                start += os.write(descriptor, records[start:end])
        finally:
            os.close(descriptor)

    def _seal(self) -> None:
        """Sync the active segment, and record it in the journal."""
        active, self._active = self._active, None
        if active is None:
            return
        with self._path(active.base_offset).open("rb") as file:
            os.fsync(file.fileno())
        sync_directory(self._directory)
        self._segments.append(WrittenSegment(active.base_offset, active.size_bytes, self.next_offset))
        journal = {"segments": self._segments, "made_of": self._made_of(self.next_offset)}
        write_durably(self._directory / JOURNAL, json.dumps(journal))

    def _usable_journal(self) -> list[WrittenSegment]:
        try:
            journal = json.loads((self._directory / JOURNAL).read_text("ascii"))
            segments = [WrittenSegment(*map(int, segment)) for segment in journal["segments"]]
            end_offset = segments[-1].next_offset
            if end_offset > self._plan.end_offset or journal["made_of"] != self._made_of(end_offset):
                return []
            sizes = [self._path(segment.base_offset).stat().st_size for segment in segments]
        except (OSError, ValueError, KeyError, TypeError):
            return []
        return segments if sizes == [segment.size_bytes for segment in segments] else []

    def _made_of(self, end_offset: int) -> str:
        """Return what decides the log's bytes up to an offset: all copies of an offset in a leader epoch are equal."""
        epochs = [tuple(epoch) for epoch in self._plan.leader_epochs if epoch.start_offset < end_offset]
        holes, position = [], self._plan.start_offset
        for extent in self._plan.extents:
            if position < min(extent.first_offset, end_offset):
                holes.append((position, extent.first_offset))
            position = extent.last_offset + 1
        return repr((self._plan.start_offset, epochs, holes, self._settings, self._to_timestamp_ms))

    def _path(self, base_offset: int) -> Path:
        return self._directory / log_file_name(base_offset)
