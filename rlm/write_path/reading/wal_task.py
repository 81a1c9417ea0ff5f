"""RLMWalTask: reads what was appended to one led partition's active segment (KIP-1176)."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Final

from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.open_files import OpenFiles
from kafka_log.record_batch import BatchSpan
from kafka_log.segment_files import log_file_name
from kafka_log.segment_tail import Gap, LogDeleted, TailEvent, TailRead, Truncated
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.offset_ranges import NO_END, OffsetRange, ranges_missing
from plugin.errors import defect_site
from rlm.write_path.reading.append_watcher import AppendWatcher
from rlm.write_path.reading.log_task import LogTask, Outcome, ReadError, Run, TaskOutcome
from rlm.write_path.reading.resume_point import ResumePoint
from rlm.write_path.reading.resumed_tail import ResumedTail
from rlm.write_path.uploads.segment_queue import MetaQueueItem


class RLMWalTask:
    """Reads the appends to one led partition's log. Never runs twice at once; `LogReader` decides on which thread."""

    def __init__(
        self,
        partition: TopicIdPartition,
        directory: Path,
        resume: ResumePoint,
        open_files: OpenFiles,
    ) -> None:
        """`resume` has the parts of the log to read."""
        self.topic_id_partition = partition
        self.directory = directory
        self._open_files = open_files
        self._tail = ResumedTail(directory, partition.topic_id, resume, open_files)

    @property
    def next_offset(self) -> int:
        """The first offset that was not read yet; negative until the log is found. Not during a run."""
        return self._tail.next_offset

    @property
    def missing(self) -> tuple[OffsetRange, ...]:
        """The ranges before the log's end that are left to read."""
        return self._tail.missing

    def also_read(self, ranges: Iterable[OffsetRange]) -> None:
        """Read these ranges first. Not during a run."""
        self._tail.also_read(ranges)

    def pass_over(self, offset: int) -> "RLMWalTask | None":
        """Continue at `offset`, the followers' position. Returns a task for the offsets before it.

        Not during a run, and only after one. Returns None, and changes nothing, if that is not possible now.
        """
        rest = self._tail.pass_over(offset)
        return None if rest is None else RLMWalTask(self.topic_id_partition, self.directory, rest, self._open_files)

    def run(self, max_bytes: int, seen_s: float, now_s: float) -> TaskOutcome:
        """Read up to `max_bytes` of whole, checked batches; each leader epoch makes an item.

        Raises a ReadError when the log cannot be read.
        """
        unread = self._tail.missing or ((self._tail.next_offset, NO_END),)
        read = self._tail.read(max_bytes)
        next_offset = self._tail.next_offset
        compacted = _compacted(read, unread, self._tail.missing, next_offset)
        is_behind = bool(read.spans or read.events) or self._tail.has_missing
        backlog_bytes = self._backlog_bytes() if is_behind else 0
        # Asking for the backlog may already see what the next read reports: lost records must not count before that,
        # and cut ones no more.
        outcome = self._outcome(read, min(next_offset, self._tail.next_offset), backlog_bytes, seen_s, now_s)
        return replace(outcome, gaps=(*outcome.gaps, *compacted)) if compacted else outcome

    def run_cached(self, max_bytes: int, seen_s: float, now_s: float) -> TaskOutcome | None:
        """Run without waiting for a disk; returns None if that is not possible and `run` is needed.

        Call it only if the last `run` left nothing and the directory has not changed since. Raises LogDirectoryError.
        """
        found = self._tail.read_cached(max_bytes)
        if found is None:
            return None
        read, backlog_bytes = found
        return self._outcome(read, self._tail.next_offset, backlog_bytes, seen_s, now_s)

    def _outcome(
        self, read: TailRead, next_offset: int, backlog_bytes: int, seen_s: float, now_s: float
    ) -> TaskOutcome:
        records = memoryview(read.records)
        items = tuple(
            _item(self.topic_id_partition, records, tuple(batches), seen_s, now_s)
            for _, batches in groupby(read.spans, key=lambda batch: batch.leader_epoch)
        )
        return TaskOutcome(
            items,
            len(records),
            next_offset,
            backlog_bytes,
            truncated_at=_truncation(read.events),
            gaps=tuple(event for event in read.events if isinstance(event, Gap)),
            deleted=any(isinstance(event, LogDeleted) for event in read.events),
        )

    def _backlog_bytes(self) -> int:
        """Include a segment that was rolled just now, whose appends may have been noticed before this run."""
        try:
            return self._tail.backlog_bytes() or self._rolled_segment().stat().st_size
        except FileNotFoundError:
            return 0
        except (LogDirectoryError, OSError):  # keep what was read; the next run meets the error
            return 1

    def unread_bytes(self) -> int:
        """Return how many bytes the next run would find in the active segment, by its file's size. Not during a run."""
        return self._tail.unread_bytes()

    def _rolled_segment(self) -> Path:
        return self.directory / log_file_name(self._tail.next_offset)

    def close(self) -> None:
        """Close the log's files. Not while the task runs."""
        self._tail.close()


def run_tasks(runs: list[Run], budget_bytes: int, clock: Callable[[], float]) -> list[Outcome]:
    """Run the tasks one after the other, in a thread of the pool; None for those that the budget did not reach.

    A failing task does not stop the others.
    """
    outcomes: list[Outcome] = []
    for task, seen_s in runs:
        if budget_bytes <= 0:
            outcomes.append(None)
            continue
        try:
            outcome = task.run(budget_bytes, seen_s, clock())
        except (LogDirectoryError, MalformedFileError) as error:
            outcomes.append(error)
        except Exception as error:
            outcomes.append(read_defect(task, error))
        else:
            outcomes.append(outcome)
            budget_bytes -= outcome.read_bytes
    return outcomes


def read_defect(task: LogTask, error: Exception) -> ReadError:
    """Turn an unexpected error while reading a log into a failure of this partition only."""
    return MalformedFileError(task.directory, 0, f"a defect of reading it: {defect_site(error)}")


def _item(
    partition: TopicIdPartition,
    records: memoryview,
    batches: tuple[BatchSpan, ...],
    seen_s: float,
    now_s: float,
) -> MetaQueueItem:
    start, end = batches[0].start, batches[-1].end
    if start:
        batches = tuple(batch._replace(start=batch.start - start, end=batch.end - start) for batch in batches)
    return MetaQueueItem(partition, batches, records[start:end], seen_s, now_s)


def _compacted(
    read: TailRead, before: Sequence[OffsetRange], after: Sequence[OffsetRange], next_offset: int
) -> list[Gap]:
    """Return what compaction removed from the ranges that should be read, except what an item covers.

    `before` and `after` are the ranges to read before and after the run; what was read and is in no batch and no gap is
    not in the log.
    """
    if before[0][0] < 0 or any(isinstance(event, Truncated | LogDeleted) for event in read.events):
        return []
    by_epoch = [list(batches) for _, batches in groupby(read.spans, key=lambda batch: batch.leader_epoch)]
    found = [(batches[0].base_offset, batches[-1].last_offset + 1) for batches in by_epoch]
    found += [(event.from_offset, event.to_offset) for event in read.events if isinstance(event, Gap)]
    was_read = [part for whole in before for part in ranges_missing(after, (whole[0], min(whole[1], next_offset)))]
    return [Gap(begin, end, is_compacted=True) for part in was_read for begin, end in ranges_missing(found, part)]


def _truncation(events: tuple[TailEvent, ...]) -> int | None:
    offsets = [event.at_offset for event in events if isinstance(event, Truncated)]
    return min(offsets) if offsets else None


_HERE_BYTES: Final = 256 * 1024
"""So much is read on the event loop at a time: it takes 0.1 ms in batches of 16 KB, 4 ms in the smallest batches."""


class LogReader:
    """Runs RLMWalTasks: on the event loop if the kernel has in memory what they read, else in the thread pool.

    Recent appends are in memory, so a usual run needs no thread, whose two hand-overs cost more than the read. A
    stalled disk delays those who wait for a run, but not the event loop (`SegmentTail.read_cached`).

    Used from the event loop only.
    """

    def __init__(self, pool: Executor, watcher: AppendWatcher, clock: Callable[[], float]) -> None:
        """`pool` is shut down with the reader."""
        self._watcher = watcher
        self._clock = clock
        self._pool = pool
        self._running: set[LogTask] = set()
        self._released: set[LogTask] = set()

    async def run(self, runs: Sequence[Run], budget_bytes: int) -> list[Outcome]:
        """Run the tasks, which read at most `budget_bytes` together. Returns the outcomes in their order."""
        outcomes = self._run_here(runs, min(budget_bytes, _HERE_BYTES))
        left = [index for index, outcome in enumerate(outcomes) if outcome is None]
        if left:
            budget_bytes -= sum(outcome.read_bytes for outcome in outcomes if isinstance(outcome, TaskOutcome))
            rest = await self._run_in_pool([runs[index] for index in left], budget_bytes)
            for index, outcome in zip(left, rest, strict=True):
                outcomes[index] = outcome
        return outcomes

    def _run_here(self, runs: Sequence[Run], budget_bytes: int) -> list[Outcome]:
        """Run what can be read here. Returns None for those that need the pool."""
        outcomes: list[Outcome] = []
        for task, seen_s in runs:
            outcome: Outcome = None
            if budget_bytes > 0 and self._watcher.only_appends(task.topic_id_partition):
                try:
                    outcome = task.run_cached(budget_bytes, seen_s, self._clock())
                except LogDirectoryError as error:
                    outcome = error
                except Exception as error:
                    outcome = read_defect(task, error)
            if isinstance(outcome, TaskOutcome):
                budget_bytes -= outcome.read_bytes
            outcomes.append(outcome)
        return outcomes

    async def _run_in_pool(self, runs: list[Run], budget_bytes: int) -> list[Outcome]:
        tasks = [task for task, _ in runs]
        for task in tasks:
            self._watcher.reading_begins(task.topic_id_partition)
        self._running.update(tasks)
        outcomes = await asyncio.get_running_loop().run_in_executor(
            self._pool, run_tasks, runs, budget_bytes, self._clock
        )
        self._running.difference_update(tasks)
        for task, outcome in zip(tasks, outcomes, strict=True):
            if not isinstance(outcome, TaskOutcome) or outcome.more:
                self._watcher.reading_fell_short(task.topic_id_partition)
            if task in self._released:
                self._released.discard(task)
                task.close()
        return outcomes

    def release(self, task: LogTask) -> None:
        """Close the task's files once it does not run."""
        if task in self._running:
            self._released.add(task)
        else:
            task.close()

    async def stop(self) -> None:
        """Wait for the tasks in the pool, and start no more."""
        await asyncio.to_thread(self._pool.shutdown, True, cancel_futures=True)
        for task in self._running:
            task.close()
