"""Time that jumps, and calls that take effect when the seed says so."""

import asyncio

import pytest

from tests.simulation.plan import plan, shortened
from tests.simulation.virtual_time import (
    NothingEverHappensError,
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


def test_a_failing_run_is_shortened_to_what_it_takes() -> None:
    events = plan(3)
    needed = (events[7], events[100])
    assert shortened(events, lambda fewer: all(one in fewer for one in needed)) == list(needed)
