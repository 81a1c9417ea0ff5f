"""Restores many logs at once:

reads ahead over all of them, writes each in order, and uses other copies after a failure.

The plans say which copy of each offset to read. If a copy is gone or damaged, the log's other copies of these offsets
are tried, in the order of a plan: furthest reaching first. If none is left, the log ends there, before the first
missing offset; what the plan has behind it is ignored. So what is written never has a hole that the plan did not know
of.

Objects may expire and be deleted between planning and reading: those of a log's beginning first. A log that ended
because an object is gone is read on until some of it exists, and planned again without what is gone. If it then begins
behind that gap, because nothing is before it or everything before it has expired too, it is made again from there: the
same as what a recovery begun now would make. The same happens if unreadable data exists, but the metadata says that the
gap's records were released, or declared.

Leftovers of an older epoch may be where a newer one has written, in batches that reach into its known range. Only
reading shows that. The log is then planned again without these batches, which were cut off.

If the whole store fails, restoring ends with its error. What was written stays, and the next run continues.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import structlog

from kafka_log.topic_partition import TopicIdPartition
from recovery.errors import GoneRunError, OvertakenRunError, UnusableRunError
from recovery.logs.log_plan import EpochStart, Extent, Gap, LogPlan, LogRuns, PlanRules
from recovery.logs.log_settings import LogSettings
from recovery.logs.log_writer import LogWriter
from recovery.logs.object_reads import ObjectRead, order_reads
from recovery.logs.run_reader import FailedExtent, ReadExtent, RunReader
from recovery.logs.stored_run import StoredRun

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """One log to restore: its runs and plan, its settings, and where it is written."""

    partition: TopicIdPartition
    name: str
    """`topic-partition`, for people."""
    directory: Path
    """The directory where it is made."""
    runs: LogRuns
    plan: LogPlan
    settings: LogSettings
    rules: PlanRules = field(default_factory=PlanRules)
    """The rules of the plan."""


class GoneHead(NamedTuple):
    """Offsets [from_offset, to_offset) whose objects were partly deleted during the recovery; the log begins behind
    them."""

    from_offset: int
    to_offset: int
    is_expired: bool
    """Whether everything found deleted was older than the retention, the topic's or the WAL's, or was being deleted."""


@dataclass(frozen=True, slots=True)
class RestoredLog:
    """What became of a restored log."""

    job: RestoreJob
    """With the final plan."""
    end_offset: int
    """Offset after the last one that was written."""
    written_bytes: int
    leader_epochs: tuple[EpochStart, ...]
    gap: Gap | None
    """The gap that ended the log too early."""
    resumed_bytes: int
    """The part of `written_bytes` from an earlier run."""
    written_ms: int | None
    """When the newest object that this run used was written: the recovery point."""
    reached_timestamp: bool
    """Whether the log ends at the requested point in time."""
    failed_copies: tuple[str, ...] = field(default=())
    """Why copies could not be used."""
    gone_head: GoneHead | None = None

    @property
    def declared_gaps(self) -> tuple[Gap, ...]:
        """The declared gaps within the log."""
        return tuple(gap for gap in self.job.plan.declared_gaps if gap.to_offset <= self.end_offset)


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """How much of all logs is restored so far."""

    read_bytes: int
    total_bytes: int


class _Log:
    """A job under way."""

    def __init__(self, job: RestoreJob, to_timestamp_ms: int | None) -> None:
        self._to_timestamp_ms = to_timestamp_ms
        self._planned_start = job.plan.start_offset
        self.unusable: dict[StoredRun, UnusableRunError] = {}
        self.gone_head: GoneHead | None = None
        self.failed: list[str] = []
        self._begin(job)

    def _begin(self, job: RestoreJob) -> None:
        self.job = job
        self.writer = LogWriter(job.directory, job.plan, job.settings, self._to_timestamp_ms)
        self.writer.resume()
        self.resumed_bytes = self.writer.written_bytes
        self.gap = job.plan.gap
        self.is_broken = False
        self.seeks_what_is_left = False
        self.written_ms: int | None = None

    def wants(self, extent: Extent) -> bool:
        is_ended = self.writer.reached_timestamp or (self.is_broken and not self.seeks_what_is_left)
        return not is_ended and extent.last_offset >= self.writer.next_offset

    def cannot_use(self, extent: Extent, error: UnusableRunError) -> None:
        log.warning("recovery_copy_unusable", log=self.job.name, error=str(error))
        self.failed.append(str(error))
        self.unusable[extent.run] = error

    @property
    def gone(self) -> set[StoredRun]:
        return {run for run, error in self.unusable.items() if isinstance(error, GoneRunError)}

    @property
    def _overtaken(self) -> dict[StoredRun, int]:
        """The offset for each of these runs."""
        errors = self.unusable.items()
        return {run: error.base_offset for run, error in errors if isinstance(error, OvertakenRunError)}

    def end_before(self, gap: Gap, *, is_gone: bool) -> None:
        """End the log: no copy of what comes next is left."""
        self.is_broken, self.seeks_what_is_left = True, is_gone
        self.gap = gap

    def begins_anew(self, now_ms: int | None) -> bool:
        """Prepare to make it once more if it continues behind its gap. Returns whether that is so."""
        if not self.is_broken or self.gap is None:
            return False
        job = self.job
        rules = job.rules
        if now_ms is not None:
            is_start_known = job.runs.log_start(rules) is not None
            horizon_ms = job.settings.horizon_ms(now_ms, is_start_known=is_start_known)
            rules = replace(rules, retention_horizon_ms=horizon_ms)
        if overtaken := self._overtaken:
            job = replace(job, runs=job.runs.cut_off(overtaken))
            self.unusable = {run: error for run, error in self.unusable.items() if run not in overtaken}
            self._begin(replace(job, plan=job.runs.mark_unreadable(self.unusable).plan(rules)))
            return True
        plan = job.runs.mark_unreadable(self.unusable).plan(rules)
        if plan.start_offset > self.gap.from_offset and self.gone:
            horizon_ms = rules.retention_horizon_ms if now_ms is None else job.settings.horizon_ms(now_ms)
            not_going = (run.stored_in for run in self.gone if not run.stored_in.is_going)
            is_expired = all(horizon_ms is not None and one.written_ms < horizon_ms for one in not_going)
            self.gone_head = GoneHead(self._planned_start, plan.start_offset, is_expired)
            log.warning("recovery_begins_behind_deleted", log=job.name, **self.gone_head._asdict())
        elif not self._is_not_missed(self.gap, plan):
            return False
        self._begin(replace(job, plan=plan))
        return True

    def _is_not_missed(self, unread: Gap, plan: LogPlan) -> bool:
        """Whether the plan continues behind what cannot be read, and everything it lacks there was released, or
        declared.
        """
        offset, job = unread.from_offset, self.job
        behind = next((extent.first_offset for extent in plan.extents if extent.last_offset >= offset), None)
        if behind is None:
            return False
        # Compaction may have removed anything that no object mentions.
        missing = unread if job.rules.may_have_holes else Gap(offset, behind)
        begins_there = plan.start_offset == behind or job.rules.may_have_holes
        is_not_missed = job.runs.is_declared(missing, job.rules) or (
            begins_there and job.runs.is_released(missing, job.rules)
        )
        if is_not_missed:
            log.warning("recovery_goes_on_behind_unusable", log=job.name, **missing._asdict())
        return is_not_missed

    def take(self, found: ReadExtent) -> None:
        end_before = self.writer.next_offset
        self.writer.append(found.extent, found.records, found.batches)
        if self.writer.next_offset > end_before:
            written_ms = found.extent.run.stored_in.written_ms
            self.written_ms = max(written_ms, self.written_ms or written_ms)


def restore_logs(
    jobs: Sequence[RestoreJob],
    reader: RunReader,
    *,
    to_timestamp_ms: int | None = None,
    threads: int,
    progress: Callable[[RestoreProgress], None] = lambda _progress: None,
    wall_ms: Callable[[], int] | None = None,
) -> list[RestoredLog]:
    """Write all logs; they are complete and on the disk when this returns. Raises RemoteStorageError, OSError.

    `wall_ms` gives the time by which records have expired meanwhile; without it, the plan's time counts.
    """
    logs = [_Log(job, to_timestamp_ms) for job in jobs]
    to_be_made = logs
    while to_be_made:
        _write(to_be_made, reader, threads, progress)
        now_ms = wall_ms() if wall_ms is not None else None
        to_be_made = [one for one in to_be_made if one.begins_anew(now_ms)]
    with ThreadPoolExecutor(threads, thread_name_prefix="recovery-sync") as pool:
        return list(pool.map(_finish, logs))


def _write(logs: Sequence[_Log], reader: RunReader, threads: int, progress: Callable[[RestoreProgress], None]) -> None:
    reads = [read for read in order_reads([one.job.plan for one in logs]) if any(_wanted(logs, read))]
    total = sum(read.size_bytes for read in reads)
    done = 0
    wanted = (read for read in reads if any(_wanted(logs, read)))
    for results in reader.read_ahead(wanted, threads):
        for found in results:
            one = logs[found.log]
            if not one.wants(found.extent):
                continue
            if one.seeks_what_is_left:
                _seek(one, found)
            elif isinstance(found, FailedExtent):
                _take_other_copies(one, found, reader)
            else:
                one.take(found)
        done += sum(found.extent.run.size_bytes for found in results)
        progress(RestoreProgress(min(done, total), total))


def _wanted(logs: Sequence[_Log], read: ObjectRead) -> Iterable[bool]:
    return (logs[number].wants(extent) for number, extent in read.extents)


def _seek(one: _Log, found: ReadExtent | FailedExtent) -> None:
    """Find out what else is gone, up to the first existing one."""
    if isinstance(found, FailedExtent):
        one.cannot_use(found.extent, found.error)
    one.seeks_what_is_left = isinstance(found, FailedExtent) and isinstance(found.error, GoneRunError)


def _take_other_copies(one: _Log, failed: FailedExtent, reader: RunReader) -> None:
    """Restore the failed extent's offsets from elsewhere, or end the log."""
    one.cannot_use(failed.extent, failed.error)
    tried = {failed.extent.run}
    while one.wants(failed.extent):
        position = max(one.writer.next_offset, failed.extent.first_offset)
        copies = [copy for copy in one.job.runs.copies(position) if copy.run not in tried]
        if not copies:
            # The log continued at least to the end of what could not be read.
            one.end_before(Gap(position, failed.extent.last_offset + 1), is_gone=tried <= one.gone)
            return
        try:
            one.take(reader.read(failed.log, copies[0]))
        except UnusableRunError as error:
            one.cannot_use(copies[0], error)
            tried.add(copies[0].run)


def _finish(one: _Log) -> RestoredLog:
    writer = one.writer
    epochs = writer.finish(one.job.partition.topic_id)
    return RestoredLog(
        one.job,
        writer.next_offset,
        writer.written_bytes,
        epochs,
        None if writer.reached_timestamp else one.gap,
        one.resumed_bytes,
        one.written_ms,
        writer.reached_timestamp,
        tuple(one.failed),
        one.gone_head,
    )
