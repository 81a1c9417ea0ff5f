"""RLMWalTask: reads what was appended to one led partition's active segment (KIP-1176)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.open_files import OpenFiles
from kafka_log.record_batch import BatchSpan
from kafka_log.segment_files import log_file_name
from kafka_log.segment_tail import Gap, LogDeleted, TailEvent, TailRead, Truncated
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.offset_ranges import NO_END, OffsetRange, ranges_missing
from plugin.errors import defect_site
from rlm.write_path.reading.log_task import LogTask, Outcome, ReadError, Run, TaskOutcome
from rlm.write_path.reading.resume_point import ResumePoint
from rlm.write_path.reading.resumed_tail import ResumedTail
from rlm.write_path.uploads.segment_queue import MetaQueueItem


class RLMWalTask:
    """One led partition's task. Never runs twice at once; `LogReader` says where it runs."""

    def __init__(
        self,
        partition: TopicIdPartition,
        directory: Path,
        resume: ResumePoint,
        open_files: OpenFiles,
    ) -> None:
        """`resume` says what of the log must be uploaded."""
        self.topic_id_partition = partition
        self.directory = directory
        self._open_files = open_files
        self._tail = ResumedTail(directory, partition.topic_id, resume, open_files)

    @property
    def next_offset(self) -> int:
        """The first offset that was not read yet; negative when the log has not been found. Not during a run."""
        return self._tail.next_offset

    @property
    def missing(self) -> tuple[OffsetRange, ...]:
        """The ranges that are left to read before the log's end."""
        return self._tail.missing

    def also_read(self, ranges: Iterable[OffsetRange]) -> None:
        """Read these ranges before the others. Not during a run."""
        self._tail.also_read(ranges)

    def pass_over(self, offset: int) -> "RLMWalTask | None":
        """Continue at `offset`, the followers' position. Returns a task for what lies between.

        Not during a run, and only after one. None: not possible now.
        """
        rest = self._tail.pass_over(offset)
        return None if rest is None else RLMWalTask(self.topic_id_partition, self.directory, rest, self._open_files)

    def run(self, max_bytes: int, seen_s: float, now_s: float) -> TaskOutcome:
        """Read up to `max_bytes` of whole, checked batches; each leader epoch makes an item.

        Raises a ReadError.
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
        """Run without waiting for a disk; None if it takes a `run`.

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
        """Return what the next run would find in the active segment, by a look at its size. Not during a run."""
        return self._tail.unread_bytes()

    def _rolled_segment(self) -> Path:
        return self.directory / log_file_name(self._tail.next_offset)

    def close(self) -> None:
        """Give the files back. Not while the task runs."""
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
