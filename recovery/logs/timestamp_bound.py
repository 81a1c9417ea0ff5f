"""Finds with few reads where a log would end at most at a point in time: for a dry run.

A log that is restored up to a time ends before its first batch with a younger record, and only reading everything finds
that batch for certain. But any batch with a younger record bounds the log, and if time stamps do not decrease along the
log, bisection finds the first one. So only the header of the first batch of some runs is read, logarithmically many,
and then the one run that contains the time. An unreadable run bounds nothing; the run before it is used instead.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from kafka_log.record_batch import BATCH_OVERHEAD_BYTES, BatchSpan, CorruptBatchError, RecordBatchHeader
from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentCorruptError
from recovery.errors import UnusableRunError
from recovery.logs.log_plan import EpochStart, Extent, LogPlan
from recovery.logs.run_reader import RunReader
from recovery.logs.stored_run import StoredRun

_UNUSABLE: Final = (RemoteResourceNotFoundError, RemoteSegmentCorruptError, UnusableRunError, CorruptBatchError)


@dataclass(frozen=True, slots=True)
class TimestampBound:
    """Up to where a log would be restored at most, for a requested point in time."""

    end_offset: int
    """Offset after the last one."""
    size_bytes: int
    """Bytes to read for it, as in LogPlan."""
    leader_epochs: tuple[EpochStart, ...]
    written_ms: int | None
    """When its newest object was written; None when nothing would be restored."""


def timestamp_bounds(
    plans: Sequence[LogPlan], reader: RunReader, to_timestamp_ms: int, threads: int
) -> list[TimestampBound | None]:
    """Return the bound of each plan, in order; None if all of its log would be restored, as no younger record was
    found.

    Raises RemoteStorageError when the store fails.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="recovery-bound") as pool:
        return list(pool.map(lambda plan: timestamp_bound(plan, reader, to_timestamp_ms), plans))


def timestamp_bound(plan: LogPlan, reader: RunReader, to_timestamp_ms: int) -> TimestampBound | None:
    """Return the bound of one plan; None if all of its log would be restored. Raises RemoteStorageError when the
    store fails."""
    behind = first_that_begins_later(plan.extents, reader, to_timestamp_ms)
    found = _bound(plan, behind, _end_before(plan, behind), 0) if behind < len(plan.extents) else None
    # A run may begin before its extent: if all of the extent is younger, the time is in an earlier one.
    for number in range(behind - 1, -1, -1):
        batches, size_bytes = _not_younger(plan.extents[number], reader, to_timestamp_ms)
        if batches is None:
            break
        found = _bound(plan, number, batches[-1].last_offset + 1 if batches else _end_before(plan, number), size_bytes)
        if batches:
            break
    return found


def first_that_begins_later(extents: Sequence[Extent], reader: RunReader, to_timestamp_ms: int) -> int:
    """Return by bisection the index of an extent whose run's first batch is younger; the number of extents if none
    is.
    """
    low, high = 0, len(extents)
    while low < high:
        middle = (low + high) // 2
        readable = (
            (index, first_ms)
            for index in range(middle, low - 1, -1)
            if (first_ms := _first_timestamp_ms(extents[index].run, reader)) is not None
        )
        index, first_ms = next(readable, (middle, to_timestamp_ms))
        if first_ms > to_timestamp_ms:
            high = index
        else:
            low = middle + 1
    return high


def _bound(plan: LogPlan, whole: int, end_offset: int, more_bytes: int) -> TimestampBound:
    """Return the first `whole` extents, and so many bytes of the next one."""
    used = plan.extents[: whole + (more_bytes > 0)]
    return TimestampBound(
        end_offset,
        sum(extent.run.size_bytes for extent in plan.extents[:whole]) + more_bytes,
        tuple(epoch for epoch in plan.leader_epochs if epoch.start_offset < end_offset),
        max((extent.run.stored_in.written_ms for extent in used), default=None),
    )


def _end_before(plan: LogPlan, index: int) -> int:
    """Return where the log ends without this extent and those behind it."""
    return plan.extents[index - 1].last_offset + 1 if index else plan.start_offset


def _first_timestamp_ms(run: StoredRun, reader: RunReader) -> int | None:
    """Return the newest time stamp of the run's first batch; None when it cannot be read."""
    start = run.start_position
    try:
        header = RecordBatchHeader.parse(reader.fetch(run.stored_in, start, start + BATCH_OVERHEAD_BYTES))
    except _UNUSABLE:
        return None
    return header.max_timestamp_ms if header.leader_epoch == run.leader_epoch else None


def _not_younger(extent: Extent, reader: RunReader, to_timestamp_ms: int) -> tuple[Sequence[BatchSpan] | None, int]:
    """Return the batches before the extent's first younger one, and their bytes; None if no younger one can be read."""
    try:
        read = reader.read(0, extent)
    except UnusableRunError:
        return None, 0
    for index, batch in enumerate(read.batches):
        if RecordBatchHeader.parse(read.records, batch.start).max_timestamp_ms > to_timestamp_ms:
            return read.batches[:index], batch.start - read.batches[0].start
    return None, 0
