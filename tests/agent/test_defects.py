"""What fails beside relaying begins anew."""

import asyncio
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry

from agent.defects import BackOff, Supervisor


class Pauses:
    """Sleeps in no time, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.now_s = 0.0

    async def sleep(self, seconds: float) -> None:
        self.taken.append(seconds)
        await asyncio.sleep(0)

    def clock(self) -> float:
        return self.now_s


def failures(registry: CollectorRegistry, part: str) -> float:
    return registry.get_sample_value("remote_wal_part_failures_total", {"part": part}) or 0.0


async def settled(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what it looks at tells nobody
            await asyncio.sleep(0)


async def test_a_part_that_fails_is_counted_by_its_name_and_begun_anew_after_pauses_that_grow() -> None:
    registry, pauses, runs = CollectorRegistry(), Pauses(), list[int]()
    supervisor = Supervisor(registry, BackOff(1, 4, 60), pauses.clock, pauses.sleep)

    async def part() -> None:
        runs.append(1)
        async with asyncio.TaskGroup() as tasks:
            if len(runs) <= 4:
                tasks.create_task(failing())
            else:
                await asyncio.Event().wait()

    async def failing() -> None:
        raise KeyError("a defect")

    supervisor.start("part", part)
    await settled(lambda: len(runs) == 5)
    assert pauses.taken == [1, 2, 4, 4]
    assert failures(registry, "part") == 4
    assert failures(registry, "other") == 0
    await supervisor.stop("part")


async def test_a_failure_after_a_long_good_run_is_a_first_one_again() -> None:
    pauses, runs = Pauses(), list[int]()
    supervisor = Supervisor(CollectorRegistry(), BackOff(1, 60, 60), pauses.clock, pauses.sleep)

    async def part() -> None:
        runs.append(1)
        if len(runs) == 3:
            pauses.now_s += 60
        if len(runs) == 4:
            await asyncio.Event().wait()
        raise ValueError("a defect")

    supervisor.start("part", part)
    await settled(lambda: len(runs) == 4)
    assert pauses.taken == [1, 2, 1]
    await supervisor.stop("part")


async def test_a_part_is_told_as_down_until_it_begins_anew_and_the_others_run_on() -> None:
    again, well = asyncio.Event(), asyncio.Event()
    supervisor = Supervisor(CollectorRegistry(), sleep=lambda _seconds: again.wait())  # type: ignore[arg-type, return-value]

    async def failing() -> None:
        if not again.is_set():
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(defect())
        await asyncio.Event().wait()

    async def defect() -> None:
        raise ValueError("a defect")

    async def other() -> None:
        await again.wait()
        well.set()
        await asyncio.Event().wait()

    supervisor.start("failing", failing)
    supervisor.start("other", other)
    await settled(lambda: bool(supervisor.down))
    assert supervisor.down == {"failing": "ValueError: a defect"}
    again.set()
    await settled(lambda: not supervisor.down)
    await asyncio.wait_for(well.wait(), 60)
    await supervisor.stop("failing")
    await supervisor.stop("other")


async def test_a_part_that_is_ended_lets_go_first_and_a_defect_on_its_way_out_is_told() -> None:
    registry, let_go = CollectorRegistry(), list[str]()
    supervisor = Supervisor(registry)
    begun = asyncio.Event()

    async def part() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            let_go.append("all")
            raise OSError("a defect while closing")

    supervisor.start("part", part)
    await begun.wait()
    await supervisor.stop("part")
    assert let_go == ["all"]
    assert failures(registry, "part") == 1
    assert supervisor.down == {}
    await supervisor.stop("part")  # nothing happens


async def test_what_is_no_exception_is_nobodys_defect() -> None:
    supervisor = Supervisor(CollectorRegistry())

    async def part() -> None:
        raise asyncio.CancelledError

    task = supervisor.start("part", part)
    with pytest.raises(asyncio.CancelledError):
        await task
