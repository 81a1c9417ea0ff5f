"""Restores many logs at once: reads ahead over all of them, writes each in its order, and takes other copies where one
fails.

Theory. The plans say which copy of each offset to read. When a copy turns out to be gone or damaged, the log's other
copies of these offsets are tried, one after the other, the same way as a plan chooses: furthest reaching first. When
none is left, the log ends there, before the first offset that is missing; what the plan has behind it is passed over.
So what is written never has a hole that the plan did not know of.

Objects that were there for the plan may expire, and be deleted, before they are read: those of a log's beginning first.
A log that ended since an object is gone is read on until something of it is there, and planned again without what
is gone. If it then begins behind that gap, as nothing stands before it or all of that has expired too, it is made anew
from there: what a recovery that is begun now would make. So it is where what cannot be read is there, but the metadata
tells that the gap's records were released, or declared.

Leftovers of an older epoch may stand where a newer one has written, in batches that reach into what is known of it.
Only reading shows that. The log is planned again then without these batches, which were cut off.

A store that fails altogether ends the restoring with its error. What was written stays, and the next run goes on.
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
    """One log to be restored."""

    partition: TopicIdPartition
    name: str
    """`topic-partition`, for people."""
    directory: Path
    """Where it is made."""
    runs: LogRuns
    plan: LogPlan
    settings: LogSettings
    rules: PlanRules = field(default_factory=PlanRules)
    """Those of the plan."""


class GoneHead(NamedTuple):
    """Offsets [from_offset, to_offset) of which something was deleted while it was read; the log begins behind them."""

    from_offset: int
    to_offset: int
    is_expired: bool
    """All that was found deleted was older than the retention, the topic's or the WAL's."""


@dataclass(frozen=True, slots=True)
class RestoredLog:
    """What became of a job."""

    job: RestoreJob
    """With the plan that it was made by at last."""
    end_offset: int
    """Behind the last offset that was written."""
    written_bytes: int
    leader_epochs: tuple[EpochStart, ...]
    gap: Gap | None
    """What ended the log before its time."""
    resumed_bytes: int
    """Of `written_bytes`, what an earlier run had written."""
    written_ms: int | None
    """When the newest object that this run wrote of was written: the recovery point."""
    reached_timestamp: bool
    """The log ends at the point in time that was asked for."""
    failed_copies: tuple[str, ...] = field(default=())
    """Why copies could not be used."""
    gone_head: GoneHead | None = None

    @property
    def declared_gaps(self) -> tuple[Gap, ...]:
        """What is missing within the log, as was declared."""
        return tuple(gap for gap in self.job.plan.declared_gaps if gap.to_offset <= self.end_offset)


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """So far."""

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
        """From which offset on."""
        errors = self.unusable.items()
        return {run: error.base_offset for run, error in errors if isinstance(error, OvertakenRunError)}

    def end_before(self, gap: Gap, *, is_gone: bool) -> None:
        """No copy is left of what comes next."""
        self.is_broken, self.seeks_what_is_left = True, is_gone
        self.gap = gap

    def begins_anew(self, now_ms: int | None) -> bool:
        """Whether it is to be made once more, as it goes on behind its gap; it is ready for that."""
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
            self._begin(replace(job, plan=job.runs.without(self.unusable).plan(rules)))
            return True
        plan = job.runs.without(self.unusable).plan(rules)
        if plan.start_offset > self.gap.from_offset and self.gone:
            horizon_ms = rules.retention_horizon_ms if now_ms is None else job.settings.horizon_ms(now_ms)
            is_expired = horizon_ms is not None and all(run.stored_in.written_ms < horizon_ms for run in self.gone)
            self.gone_head = GoneHead(self._planned_start, plan.start_offset, is_expired)
            log.warning("recovery_begins_behind_deleted", log=job.name, **self.gone_head._asdict())
        elif not self._is_not_missed(self.gap, plan):
            return False
        self._begin(replace(job, plan=plan))
        return True

    def _is_not_missed(self, unread: Gap, plan: LogPlan) -> bool:
        """Whether the plan goes on behind what cannot be read, and what it lacks there was released, or declared."""
        offset, job = unread.from_offset, self.job
        behind = next((extent.first_offset for extent in plan.extents if extent.last_offset >= offset), None)
        if behind is None:
            return False
        # Compaction may have taken whatever no object tells of.
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
    """Make all logs; they are whole and on the disk when this returns. Raises RemoteStorageError, OSError.

    `wall_ms` tells what has expired meanwhile; without it, that is what had expired for the plan.
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
    """Learn what else is gone, up to the first that is there."""
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
            # The log went on: at least to the end of what could not be read.
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
