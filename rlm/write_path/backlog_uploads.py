"""Uploads what logs that are far behind pass over: `Backlog` decides what and when, without IO."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from kafka_log.topic_partition import TopicIdPartition
from rlm.write_path.assignment import Assignment
from rlm.write_path.core.actions import Action
from rlm.write_path.core.led_partition import PassedOver
from rlm.write_path.core.write_path_core import WritePathCore
from rlm.write_path.reading.log_task import LogTask
from rlm.write_path.reading.wal_task import run_tasks
from rlm.write_path.uploads.combine_task import RLMWalCombineTask


class BacklogUploads:
    """Reads and uploads the ranges that `Backlog` chooses, beside the uploads for links.

    For the event loop; it reads in one thread of its own.
    """

    def __init__(
        self,
        core: WritePathCore,
        combine_task: RLMWalCombineTask,
        carry_out: Callable[[Sequence[Action]], None],
        clock: Callable[[], float],
        reading: Executor,
    ) -> None:
        """Take over the `reading` thread."""
        self._core = core
        self._backlog = core.backlog
        self._combine_task = combine_task
        self._carry_out = carry_out
        self._clock = clock
        self._pool = reading
        self._wake = asyncio.Event()

    def add(self, assignment: Assignment, task: LogTask) -> PassedOver:
        """Upload what the task has to read, besides what is left of the same log. Returns the log's state in the
        backlog."""
        partition = assignment.topic_id_partition
        since_s = self._clock()
        if (known := self._backlog.get(partition)) is not None:
            since_s = known.since_s
            task.also_read(known.left)
            self.release(partition)
        passed_over = PassedOver(assignment, task, since_s)
        self._backlog.add(passed_over)
        self._wake.set()
        return passed_over

    def release(self, partition: TopicIdPartition) -> None:
        """Drop a log that is no longer uploaded here, or starts again from its resume point."""
        task = self._backlog.release(partition)
        if task is not None:
            task.close()

    async def run(self) -> None:
        """Upload what is added, until cancelled."""
        while True:
            if not len(self._backlog):
                self._wake.clear()
                await self._wake.wait()
            await asyncio.sleep(self._backlog.wait_s(self._clock()))
            await self._gather()
            await self._store()

    def close(self) -> None:
        """Close everything, after `run` was cancelled. What is not stored stays in the logs."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for task in self._backlog.end():
            task.close()

    async def _gather(self) -> None:
        self._backlog.begin_object()
        while (wanted := self._backlog.next_read()) is not None:
            passed_over, budget_bytes = wanted
            (outcome,) = await asyncio.get_running_loop().run_in_executor(
                self._pool, run_tasks, [(passed_over.task, self._clock())], budget_bytes, self._clock
            )
            self._carry_out(self._backlog.read_done(passed_over, outcome, self._clock()))
            if not self._backlog.is_wanted(passed_over):
                passed_over.task.close()

    async def _store(self) -> None:
        items = self._backlog.next_object(self._clock())
        if not items:
            return
        segment = await self._combine_task.combine(sorted(items, key=lambda item: item.topic_id_partition))
        if segment is None:
            self._backlog.object_failed()
            return
        for task in self._backlog.object_stored(self._clock()):
            task.close()
        self._carry_out(self._core.backlog_stored(segment))
