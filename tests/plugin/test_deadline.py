"""A deadline is what `asyncio.timeout` is, and asks for no running loop."""

import asyncio

import pytest

from plugin.hot_path.deadline import Deadline
from tests.simulation.virtual_time import VirtualTimeLoop, run

SOON_S = 0.01


async def test_who_is_late_leaves_with_a_timeout_and_is_no_cancelled_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(TimeoutError), Deadline(asyncio.get_running_loop(), SOON_S):
        await asyncio.Event().wait()
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_deadline_that_is_over_already_comes_at_the_first_wait() -> None:
    with pytest.raises(TimeoutError), Deadline(asyncio.get_running_loop(), -1.0):
        await asyncio.Event().wait()


def test_who_is_in_time_is_never_cancelled() -> None:
    async def in_time() -> None:
        with Deadline(asyncio.get_running_loop(), SOON_S):
            await asyncio.sleep(SOON_S / 2)
        await asyncio.sleep(2 * SOON_S)

    run(VirtualTimeLoop(), in_time())


async def test_what_goes_wrong_inside_comes_out() -> None:
    with pytest.raises(KeyError), Deadline(asyncio.get_running_loop(), SOON_S):
        raise KeyError
    await asyncio.sleep(2 * SOON_S)


async def test_a_cancellation_by_somebody_else_stays_one() -> None:
    async def inside() -> None:
        with Deadline(asyncio.get_running_loop(), 60.0):
            await asyncio.Event().wait()

    task = asyncio.create_task(inside())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_that_comes_with_the_deadline_stays_one() -> None:
    async def inside() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        with Deadline(loop, 0.0):  # which comes in the next turn
            loop.call_soon(task.cancel)
            await asyncio.Event().wait()

    task = asyncio.create_task(inside())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_of_one_inside_another_only_the_one_that_is_over_is_told() -> None:
    loop = asyncio.get_running_loop()
    with Deadline(loop, 60.0):
        with pytest.raises(TimeoutError), Deadline(loop, SOON_S):
            await asyncio.Event().wait()
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError), Deadline(loop, SOON_S), Deadline(loop, 60.0):
        await asyncio.Event().wait()
