"""Time that jumps, and calls that take effect when the seed says so."""

import asyncio
from collections.abc import Awaitable

import pytest

from tests.simulation.network import PROCESS
from tests.simulation.plan import plan, shortened
from tests.simulation.virtual_time import (
    NothingEverHappensError,
    SeededExecutor,
    SpinningError,
    VirtualTimeLoop,
    run,
)


@pytest.fixture
def loop() -> VirtualTimeLoop:
    return VirtualTimeLoop()


def test_waiting_for_nothing_and_never_waiting_are_failures(loop: VirtualTimeLoop) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    async def spin() -> None:
        again()
        await asyncio.Event().wait()

    def again() -> None:
        asyncio.get_running_loop().call_soon(again)

    with pytest.raises(NothingEverHappensError):
        run(loop, wait())
    with pytest.raises(SpinningError):
        run(VirtualTimeLoop(), spin())


@pytest.mark.parametrize("takes_effect", [True, False])
def test_after_a_crash_what_ran_may_have_had_its_effect_and_nobody_is_told(
    loop: VirtualTimeLoop, takes_effect: bool
) -> None:
    made = list[str]()
    pool = SeededExecutor(loop, 1, lambda: (1.0, 0.0))

    async def crash() -> list[bool]:
        calls: list[Awaitable[None]] = [loop.run_in_executor(pool, made.append, name) for name in "ab"]
        pool.crash(lambda: takes_effect)
        await asyncio.sleep(10)
        return [asyncio.ensure_future(call).done() for call in calls]

    assert run(loop, crash()) == [False, False]
    assert made == (["a"] if takes_effect else [])


def test_a_failing_run_is_shortened_to_what_it_takes() -> None:
    events = plan(3)
    needed = (events[7], events[100])
    assert shortened(events, lambda fewer: all(one in fewer for one in needed)) == list(needed)


def test_a_process_that_stands_still_goes_on_where_it_stood(loop: VirtualTimeLoop) -> None:
    told = list[tuple[str, int]]()

    async def tick(name: str) -> None:
        PROCESS.set(name)
        for number in range(4):
            await asyncio.sleep(1)
            told.append((name, number))

    async def both() -> None:
        still, going = (asyncio.ensure_future(tick(name)) for name in ("still", "going"))
        await asyncio.sleep(1.5)
        loop.pause("still")
        await going
        assert [name for name, _ in told] == ["still", "going", "going", "going", "going"]
        loop.resume("still")
        await still

    run(loop, both())
    assert told[-3:] == [("still", 1), ("still", 2), ("still", 3)]
