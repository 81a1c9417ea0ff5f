"""Restores many logs at once: reads ahead over all of them, writes each in its order, and takes other copies where one
fails.

Theory. The plans say which copy of each offset to read. When a copy turns out to be gone or damaged, the log's other
copies of these offsets are tried, one after the other, the same way as a plan chooses: furthest reaching first. When
none is left, the log ends there, before the first offset that is missing; what the plan has behind it is passed over.
So what is written never has a hole that the plan did not know of.

A store that fails altogether ends the restoring with its error. What was written stays, and the next run goes on.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from kafka_log.topic_partition import TopicIdPartition
from recovery.errors import UnusableRunError
from recovery.log_plan import EpochStart, Extent, Gap, LogPlan, LogRuns
from recovery.log_settings import LogSettings
from recovery.log_writer import LogWriter
from recovery.object_reads import ObjectRead, order_reads
from recovery.run_reader import FailedExtent, ReadExtent, RunReader

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


@dataclass(frozen=True, slots=True)
class RestoredLog:
    """What became of a job."""

    job: RestoreJob
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


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """So far."""

    read_bytes: int
    total_bytes: int


class _Log:
    """A job under way."""

    def __init__(self, job: RestoreJob, to_timestamp_ms: int | None) -> None:
        self.job = job
        self.writer = LogWriter(job.directory, job.plan, job.settings, to_timestamp_ms)
        self.writer.resume()
        self.resumed_bytes = self.writer.written_bytes
        self.gap = job.plan.gap
        self.is_broken = False
        self.written_ms: int | None = None
        self.failed: list[str] = []

    @property
    def is_ended(self) -> bool:
        return self.is_broken or self.writer.reached_timestamp

    def wants(self, extent: Extent) -> bool:
        return not self.is_ended and extent.last_offset >= self.writer.next_offset

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
) -> list[RestoredLog]:
    """Make all logs; they are whole and on the disk when this returns. Raises RemoteStorageError, OSError."""
    logs = [_Log(job, to_timestamp_ms) for job in jobs]
    reads = [read for read in order_reads([job.plan for job in jobs]) if any(_wanted(logs, read))]
    total = sum(read.size_bytes for read in reads)
    done = 0
    wanted = (read for read in reads if any(_wanted(logs, read)))
    for results in reader.read_ahead(wanted, threads):
        for found in results:
            one = logs[found.log]
            if not one.wants(found.extent):
                continue
            if isinstance(found, FailedExtent):
                _take_other_copies(one, found, reader)
            else:
                one.take(found)
        done += sum(found.extent.run.size_bytes for found in results)
        progress(RestoreProgress(min(done, total), total))
    with ThreadPoolExecutor(threads, thread_name_prefix="recovery-sync") as pool:
        return list(pool.map(_finish, logs))


def _wanted(logs: Sequence[_Log], read: ObjectRead) -> Iterable[bool]:
    return (logs[number].wants(extent) for number, extent in read.extents)


def _take_other_copies(one: _Log, failed: FailedExtent, reader: RunReader) -> None:
    """Restore the failed extent's offsets from elsewhere, or end the log."""
    log.warning("recovery_copy_unusable", log=one.job.name, error=str(failed.error))
    one.failed.append(str(failed.error))
    unusable = {failed.extent.run}
    while one.wants(failed.extent):
        position = max(one.writer.next_offset, failed.extent.first_offset)
        copies = [copy for copy in one.job.runs.copies(position) if copy.run not in unusable]
        if not copies:
            # The log went on: at least to the end of what could not be read.
            one.is_broken = True
            one.gap = Gap(position, failed.extent.last_offset + 1)
            return
        try:
            one.take(reader.read(failed.log, copies[0]))
        except UnusableRunError as error:
            one.failed.append(str(error))
            unusable.add(copies[0].run)


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
    )
