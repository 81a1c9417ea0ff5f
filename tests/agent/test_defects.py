"""What fails beside replication begins anew."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter

from agent.defects import begun_anew_after_defects


async def test_a_part_that_fails_is_counted_and_begun_anew_after_a_pause() -> None:
    defects, pauses, runs = Counter("d", "d", registry=CollectorRegistry()), list[float](), list[int]()

    async def part() -> None:
        runs.append(1)
        async with asyncio.TaskGroup() as tasks:
            if len(runs) < 3:
                tasks.create_task(failing())

    async def failing() -> None:
        raise KeyError("a defect")

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    await begun_anew_after_defects("part", part, defects, sleep)
    assert (len(runs), len(pauses), defects._value.get()) == (3, 2, 2)
    assert all(pause >= 1 for pause in pauses)


async def test_cancellation_ends_it() -> None:
    task = asyncio.create_task(
        begun_anew_after_defects("part", asyncio.Event().wait, Counter("e", "e", registry=CollectorRegistry()))  # type: ignore[arg-type]
    )
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
