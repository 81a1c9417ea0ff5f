"""Carries out the actions of the write path's core (`rlm.write_path.core.actions`): files, watches, listeners,
metrics.
"""

import asyncio
from collections.abc import Iterable

from kafka_log.open_files import OpenFiles
from rlm.write_path.assignment import Assignment
from rlm.write_path.backlog_uploads import BacklogUploads
from rlm.write_path.core.actions import (
    Action,
    AskAnew,
    CountLeftOut,
    CountQueued,
    CountReadFailure,
    CountStored,
    DeclareGaps,
    DeclareNotWanted,
    PassOver,
    Release,
    TellLeftOut,
    TellSettled,
    TellStored,
    TellTruncated,
    Watch,
)
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.core.log_manager_limits import LogManagerLimits
from rlm.write_path.core.write_path_core import WritePathCore
from rlm.write_path.hooks import WritePathHooks
from rlm.write_path.machine import Machine
from rlm.write_path.metrics import StageTimes, WriteMetrics
from rlm.write_path.reading.append_watcher import AppendWatcher
from rlm.write_path.reading.log_reader import LogReader
from rlm.write_path.reading.log_task import LogTask
from rlm.write_path.reading.resume_point import ResumeUnknownError
from rlm.write_path.reading.wal_task import RLMWalTask
from rlm.write_path.uploads.combine_task import RLMWalCombineTask
from rlm.write_path.uploads.upload_listener import UploadListeners


class Effects:
    """Owns everything that the write path uses, except the uploads for links. Event loop only."""

    def __init__(
        self,
        core: WritePathCore,
        limits: LogManagerLimits,
        combine_task: RLMWalCombineTask,
        stage_times: StageTimes,
        metrics: WriteMetrics,
        hooks: WritePathHooks,
        machine: Machine,
    ) -> None:
        self._stage_times = stage_times
        self._metrics = metrics
        self._hooks = hooks
        self.listeners = UploadListeners(metrics.listener_defects)
        self.open_files = OpenFiles(limits.open_files)
        self.watcher = AppendWatcher(machine.directory_events())
        clock = machine.clocks.monotonic_s
        self.reader = LogReader(machine.pool(limits.task_threads, "rlm-wal-task"), self.watcher, clock)
        self._asking: asyncio.TimerHandle | None = None
        backlog_pool = machine.pool(1, "rlm-backlog")
        self.backlog = BacklogUploads(core, combine_task, self.carry_out, clock, backlog_pool)

    def log_task(self, assignment: Assignment) -> LogTask:
        """Return the task that reads the log from where its upload continues. Raises ResumeUnknownError."""
        try:
            resume = self._hooks.resume(assignment)
        except ResumeUnknownError:
            self._metrics.resumes_put_off.inc()
            raise
        self._hooks.gaps.resumed(assignment, resume)
        return RLMWalTask(assignment.topic_id_partition, assignment.directory, resume, self.open_files)

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Carry out the actions in order."""
        for action in actions:
            match action:
                case Watch(partition, directory):
                    self.watcher.watch(partition, directory)
                case Release(led):
                    self._release(led)
                case PassOver(led):
                    self._pass_over(led)
                case CountLeftOut() | CountQueued() | CountStored() | CountReadFailure():
                    self._count(action)
                case _:
                    self._tell(action)

    async def close(self, led: Iterable[LedPartition]) -> None:
        """Give files and threads back, for good; waits for reads under way."""
        if self._asking is not None:
            self._asking.cancel()
        await self.reader.stop()
        self.backlog.close()
        for one in led:
            one.task.close()
        self.watcher.close()

    def _release(self, led: LedPartition) -> None:
        partition = led.assignment.topic_id_partition
        self.watcher.unwatch(partition)
        self.reader.release(led.task)
        self.backlog.release(partition)
        self.listeners.partition_released(partition)

    def _pass_over(self, led: LedPartition) -> None:
        rest = led.task.pass_over(led.followers_offset)
        if rest is None:
            return
        if led.assignment.is_kept:
            led.passed_over = self.backlog.add(led.assignment, rest)
            return
        for begin, end in rest.missing:
            led.left_out.also(begin, end)
        rest.close()

    def _tell(
        self,
        action: TellTruncated | TellStored | TellLeftOut | TellSettled | DeclareGaps | DeclareNotWanted | AskAnew,
    ) -> None:
        match action:
            case TellLeftOut():
                self._hooks.on_left_out()
            case TellStored(segment):
                self.listeners.segment_uploaded(segment)
            case TellTruncated(partition, offset):
                self.listeners.partition_truncated(partition, offset)
            case TellSettled(partition):
                self._hooks.on_hurried_settled(partition)
            case DeclareGaps(assignment, gaps):
                self._hooks.gaps.found(assignment, gaps)
            case DeclareNotWanted(assignment, ranges):
                self._hooks.gaps.not_wanted(assignment, ranges)
            case AskAnew(after_s) if after_s > 0:
                if self._asking is None:  # one question answers for all partitions
                    self._asking = asyncio.get_running_loop().call_later(after_s, self._ask)
            case AskAnew():
                self._hooks.on_unknown_partition()

    def _ask(self) -> None:
        self._asking = None
        self._hooks.on_unknown_partition()

    def _count(self, action: CountLeftOut | CountQueued | CountStored | CountReadFailure) -> None:
        match action:
            case CountLeftOut(size_bytes):
                self._metrics.left_out_bytes.inc(size_bytes)
            case CountQueued(outcome):
                for item in outcome.items:
                    self._stage_times.observe("queued", item.queued_s - item.seen_s)
                self._metrics.appended_bytes.inc(outcome.read_bytes)
            case CountStored(segment, started_s, now_s):
                if started_s is not None:
                    self._stage_times.stored(segment, started_s, now_s)
                self._metrics.uploaded_segments.inc()
                self._metrics.uploaded_bytes.inc(sum(len(item.records) for item in segment.items))
            case CountReadFailure(close_unread):
                self._metrics.read_failures.inc()
                if close_unread:
                    self.open_files.close_unread()
