"""Where tasks run: on the event loop what is in memory, in the pool all else, and never a file closed beneath one."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kafka_log.open_files import OpenFiles
from rlm.write_path.reading.append_watcher import AppendWatcher
from rlm.write_path.reading.log_task import TaskOutcome
from rlm.write_path.reading.resume_point import ResumePoint
from rlm.write_path.reading.wal_task import LogReader, RLMWalTask
from rlm.write_path.runtime import thread_pool
from tests.kafka_log.log_writer import LogWriter
from tests.rlm.manager_rig import partition

BUDGET = 1 << 20


class Reading:
    """Two partitions' logs, watched, and the threads that their tasks ran on."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files = OpenFiles()
        self.watcher = AppendWatcher()
        self.reader = LogReader(thread_pool(2, "read"), self.watcher, time.monotonic)
        self.logs = [LogWriter(directory / f"t-{number}") for number in range(2)]
        for log in self.logs:
            log.file(log.segments[0], "index").touch()  # a broker makes it together with the segment
        self.tasks = [
            RLMWalTask(partition(number), log.path, ResumePoint(0), self.files) for number, log in enumerate(self.logs)
        ]
        for task in self.tasks:
            self.watcher.watch(task.topic_id_partition, task.directory)
        self.in_pool: list[RLMWalTask] = []
        self.begun, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self.go_on = threading.Event()
        self.go_on.set()
        run = RLMWalTask.run

        def run_noted(task: RLMWalTask, max_bytes: int, seen_s: float, now_s: float) -> TaskOutcome:
            self.in_pool.append(task)
            self._loop.call_soon_threadsafe(self.begun.set)
            assert self.go_on.wait(60)
            return run(task, max_bytes, seen_s, now_s)

        monkeypatch.setattr(RLMWalTask, "run", run_noted)

    async def read(self, *numbers: int, budget_bytes: int = BUDGET) -> list[list[int] | None]:
        """The base offsets of the batches that the tasks found, after what the kernel told."""
        self.watcher.take(lambda _partition: None)
        outcomes = await self.reader.run([(self.tasks[number], 0.0) for number in numbers], budget_bytes)
        return [
            [batch.base_offset for item in outcome.items for batch in item.batches]
            if isinstance(outcome, TaskOutcome)
            else None
            for outcome in outcomes
        ]

    async def begin_stalled(self, number: int) -> "asyncio.Task[list[list[int] | None]]":
        """A read that is under way in the pool, until `go_on`."""
        self.go_on.clear()
        self.begun.clear()
        running = asyncio.create_task(self.read(number))
        async with asyncio.timeout(60):
            await self.begun.wait()
        return running


@pytest.fixture
async def reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Reading]:
    reading = Reading(tmp_path, monkeypatch)
    yield reading
    for task in reading.tasks:
        task.close()
    reading.watcher.close()
    assert reading.files.open_count == 0


async def test_the_first_run_takes_the_pool_and_those_after_it_do_not(reading: Reading) -> None:
    for log in reading.logs:
        log.append(2)
    assert await reading.read(0, 1) == [[0], [0]]
    assert reading.in_pool == reading.tasks
    for log in reading.logs:
        log.append(3)
    assert await reading.read(0, 1) == [[2], [2]]
    assert reading.in_pool == reading.tasks
    await reading.reader.stop()


async def test_a_log_that_was_rolled_takes_the_pool_and_the_others_do_not(reading: Reading) -> None:
    for log in reading.logs:
        log.append(1)
    await reading.read(0, 1)
    for log in reading.logs:
        log.append(1)
    reading.logs[0].roll()
    reading.logs[0].append(1)
    reading.in_pool.clear()
    assert await reading.read(0, 1) == [[1], [1]]
    assert await reading.read(0, 1) == [[2], []]
    assert reading.in_pool == [reading.tasks[0], *reading.tasks], "the other one had nothing more in the end"
    await reading.reader.stop()


async def test_a_run_that_found_nothing_new_is_no_reason_to_look_no_more(reading: Reading) -> None:
    reading.logs[0].append(1)
    assert await reading.read(0) == [[0]]
    reading.logs[0].roll()
    assert await reading.read(0) == [[]]
    reading.logs[0].append(1)
    assert await reading.read(0) == [[1]]
    await reading.reader.stop()


async def test_a_log_that_was_not_read_to_its_end_is_looked_at_again(reading: Reading) -> None:
    """Its newer segment was told of before the run, so nothing else would bring it to mind."""
    first = reading.logs[0].append(1)
    reading.logs[0].append(1)
    reading.logs[0].roll()
    reading.logs[0].append(1)
    assert await reading.read(0, budget_bytes=len(first.raw)) == [[0]]
    read = []
    for _ in range(2):
        (outcome,) = await reading.reader.run([(reading.tasks[0], 0.0)], BUDGET)
        assert isinstance(outcome, TaskOutcome)
        read += [batch.base_offset for item in outcome.items for batch in item.batches]
        if not outcome.more:
            break
    assert read == [1, 2]
    await reading.reader.stop()


async def test_the_budget_holds_for_both_places_together(reading: Reading) -> None:
    for log in reading.logs:
        log.append(1)
    assert await reading.read(0, 1, budget_bytes=1) == [[0], None]
    assert await reading.read(0, 1) == [[], [0]]
    size = len(reading.logs[0].append(1).raw)
    reading.logs[1].append(1)
    assert await reading.read(0, 1, budget_bytes=size) == [[1], None]
    assert await reading.read(1) == [[1]]
    await reading.reader.stop()


async def test_a_look_that_failed_is_made_anew(reading: Reading) -> None:
    reading.logs[0].append(1)
    reading.logs[0].write_checkpoint()
    checkpoint = reading.logs[0].path / "leader-epoch-checkpoint"
    text = checkpoint.read_text()
    checkpoint.write_text("no checkpoint")
    assert await reading.read(0) == [None]
    assert not reading.watcher.only_appends(partition(0))
    checkpoint.write_text(text)
    assert await reading.read(0) == [[0]]
    await reading.reader.stop()


async def test_a_task_that_is_released_while_it_runs_is_closed_behind_it(reading: Reading) -> None:
    reading.logs[0].append(1)
    running = await reading.begin_stalled(0)
    reading.reader.release(reading.tasks[0])
    reading.go_on.set()
    assert await running == [[0]]
    assert reading.files.open_count == 0
    await reading.reader.stop()


async def test_a_disk_that_stalls_holds_up_the_pool_and_not_the_event_loop(reading: Reading) -> None:
    for log in reading.logs:
        log.append(1)
    await reading.read(1)
    reading.logs[1].append(1)
    stalled = await reading.begin_stalled(0)
    assert await reading.read(1) == [[1]]
    assert not stalled.done()
    reading.go_on.set()
    assert await stalled == [[0]]
    await reading.reader.stop()


async def test_files_are_closed_when_it_stops_in_the_middle_of_a_run(reading: Reading) -> None:
    reading.logs[0].append(1)
    running = await reading.begin_stalled(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    reading.go_on.set()
    await reading.reader.stop()
    assert reading.files.open_count == 0
