"""Runs RLMWalTasks: on the event loop if the kernel has in memory what they read, else in the thread pool.

Recent appends are in memory, so a usual run needs no thread, whose two hand-overs cost more than the read. A stalled
disk delays those who wait for a run, but not the event loop (`SegmentTail.read_cached`).

Used from the event loop only.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from kafka_log.errors import LogDirectoryError
from rlm.write_path.reading.append_watcher import AppendWatcher
from rlm.write_path.reading.log_task import LogTask, Outcome, Run, TaskOutcome
from rlm.write_path.reading.wal_task import read_defect, run_tasks

_HERE_BYTES: Final = 256 * 1024
"""So much is read on the event loop at a time: it takes 0.1 ms in batches of 16 KB, 4 ms in the smallest batches."""


class LogReader:
    """Owns the pool of `remote.wal.log.manager.thread.pool.size`, and the tasks' files while they are read."""

    def __init__(self, pool: Executor, watcher: AppendWatcher, clock: Callable[[], float]) -> None:
        """It owns the pool from now on."""
        self._watcher = watcher
        self._clock = clock
        self._pool = pool
        self._running: set[LogTask] = set()
        self._released: set[LogTask] = set()

    def is_running(self, task: LogTask) -> bool:
        """Whether the task is being run in the pool."""
        return task in self._running

    async def run(self, runs: Sequence[Run], budget_bytes: int) -> list[Outcome]:
        """Run the tasks, for at most so many bytes altogether. Returns the outcomes in their order."""
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
        """Close the task's files, as soon as it does not run."""
        if task in self._running:
            self._released.add(task)
        else:
            task.close()

    async def stop(self) -> None:
        """Wait for what runs in the pool, and begin nothing more."""
        await asyncio.to_thread(self._pool.shutdown, True, cancel_futures=True)
        for task in self._running:
            task.close()
