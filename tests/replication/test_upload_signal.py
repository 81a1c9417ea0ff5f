"""Who waits for an upload looks when it is told, in order, and once more when its time has come."""

import asyncio
from collections.abc import Callable

import pytest

from replication.leader.upload_signal import Look, UploadSignal
from tests.simulation.virtual_time import VirtualTimeLoop, run


async def waiting(signal: UploadSignal, look: Look, first_s: float = 60.0) -> "asyncio.Task[None]":
    task = asyncio.create_task(signal.wait_until(look, first_s))
    await asyncio.sleep(0)
    return task


def looks(seen: list[str], name: str, *answers: float | None) -> Callable[[], float | None]:
    left = list(answers)

    def look() -> float | None:
        seen.append(name)
        return left.pop(0)

    return look


async def test_what_is_stored_is_looked_at_before_the_call_returns_in_the_order_in_which_they_came() -> None:
    signal, seen = UploadSignal(), list[str]()
    tasks = [await waiting(signal, looks(seen, name, None)) for name in "abc"]
    signal.notify_now()
    assert seen == ["a", "b", "c"]
    await asyncio.gather(*tasks)
    signal.notify_now()
    assert seen == ["a", "b", "c"]


async def test_a_change_is_looked_at_in_the_next_turn_and_once_however_often_it_is_told() -> None:
    signal, seen = UploadSignal(), list[str]()
    task = await waiting(signal, looks(seen, "a", 60.0, None))
    signal.notify()
    signal.notify()
    assert seen == []
    await asyncio.sleep(0)
    assert seen == ["a"]
    assert not task.done()
    signal.notify()
    await task
    assert seen == ["a", "a"]


async def test_it_looks_by_itself_when_its_time_has_come_and_again_after_as_long_as_it_says() -> None:
    signal, seen = UploadSignal(), list[str]()
    await asyncio.wait_for(await waiting(signal, looks(seen, "a", 0.01, -1.0, None), 0.01), 60)
    assert seen == ["a", "a", "a"]


async def test_what_a_look_raises_comes_out_where_it_was_waited_for_and_keeps_no_other_waiting() -> None:
    signal, seen = UploadSignal(), list[str]()

    def broken() -> float | None:
        raise ConnectionResetError

    first, second = await waiting(signal, broken), await waiting(signal, looks(seen, "b", None))
    signal.notify_now()
    await second
    with pytest.raises(ConnectionResetError):
        await first


async def test_a_look_that_notifies_is_not_entered_twice() -> None:
    signal, seen = UploadSignal(), list[str]()

    def look() -> float | None:
        seen.append("in")
        if len(seen) == 1:
            signal.notify_now()
            assert seen == ["in"]
            return 60.0
        return None

    task = await waiting(signal, look)
    signal.notify_now()
    await asyncio.wait_for(task, 60)
    assert seen == ["in", "in"]


def test_who_gave_up_waiting_looks_no_more() -> None:
    async def give_up() -> None:
        signal, seen = UploadSignal(), list[str]()
        task = await waiting(signal, looks(seen, "a"), 0.01)
        signal.notify()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        signal.notify_now()
        await asyncio.sleep(0.02)
        assert seen == []

    run(VirtualTimeLoop(), give_up())
