"""Where a log would end at a point in time, at most, found with few reads: for a dry run.

Theory. A log that is restored up to a time ends before its first batch with a younger record, and nothing short of
reading all of it finds that batch for certain. But any batch with a younger record bounds the log, and where time
stamps do not go back along the log, bisection finds the first one. So what is read of a log is the header of the first
batch of some of its runs, logarithmically many, and then the one run in which the time falls. What cannot be read
bounds nothing; the run before it is asked instead.
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
    """What would be restored of a log at most."""

    end_offset: int
    """Behind the last offset."""
    size_bytes: int
    """What is to be read for it, as in LogPlan."""
    leader_epochs: tuple[EpochStart, ...]
    written_ms: int | None
    """When the newest object of it was written; None when nothing would be restored."""


def timestamp_bounds(
    plans: Sequence[LogPlan], reader: RunReader, to_timestamp_ms: int, threads: int
) -> list[TimestampBound | None]:
    """For each plan, in their order; None where no younger record was found: all of the log would be restored.

    Raises RemoteStorageError when the store fails.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="recovery-bound") as pool:
        return list(pool.map(lambda plan: timestamp_bound(plan, reader, to_timestamp_ms), plans))


def timestamp_bound(plan: LogPlan, reader: RunReader, to_timestamp_ms: int) -> TimestampBound | None:
    """One log's. Raises RemoteStorageError when the store fails."""
    behind = _first_that_begins_later(plan.extents, reader, to_timestamp_ms)
    found = _bound(plan, behind, _end_before(plan, behind), 0) if behind < len(plan.extents) else None
    # A run may begin before its extent: when all of the extent is younger, the time falls into one further in front.
    for number in range(behind - 1, -1, -1):
        batches, size_bytes = _not_younger(plan.extents[number], reader, to_timestamp_ms)
        if batches is None:
            break
        found = _bound(plan, number, batches[-1].last_offset + 1 if batches else _end_before(plan, number), size_bytes)
        if batches:
            break
    return found


def _first_that_begins_later(extents: Sequence[Extent], reader: RunReader, to_timestamp_ms: int) -> int:
    """By bisection, the index of an extent whose run's first batch has a younger record; their number if none has."""
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
    """The first `whole` extents, and so many bytes of the one behind them."""
    used = plan.extents[: whole + (more_bytes > 0)]
    return TimestampBound(
        end_offset,
        sum(extent.run.size_bytes for extent in plan.extents[:whole]) + more_bytes,
        tuple(epoch for epoch in plan.leader_epochs if epoch.start_offset < end_offset),
        max((extent.run.stored_in.written_ms for extent in used), default=None),
    )


def _end_before(plan: LogPlan, index: int) -> int:
    """Where the log ends without this extent and those behind it."""
    return plan.extents[index - 1].last_offset + 1 if index else plan.start_offset


def _first_timestamp_ms(run: StoredRun, reader: RunReader) -> int | None:
    """The newest time stamp of the run's first batch; None when it cannot be read."""
    start = run.start_position
    try:
        header = RecordBatchHeader.parse(reader.fetch(run.stored_in, start, start + BATCH_OVERHEAD_BYTES))
    except _UNUSABLE:
        return None
    return header.max_timestamp_ms if header.leader_epoch == run.leader_epoch else None


def _not_younger(extent: Extent, reader: RunReader, to_timestamp_ms: int) -> tuple[Sequence[BatchSpan] | None, int]:
    """The batches before the extent's first younger one, and their bytes; None where no younger one can be read."""
    try:
        read = reader.read(0, extent)
    except UnusableRunError:
        return None, 0
    for index, batch in enumerate(read.batches):
        if RecordBatchHeader.parse(read.records, batch.start).max_timestamp_ms > to_timestamp_ms:
            return read.batches[:index], batch.start - read.batches[0].start
    return None, 0
