"""A task that sleeps until something happens."""

import asyncio

from rlm.write_path.remote_wal_log_manager import Wake


async def test_what_happened_before_is_not_slept_over() -> None:
    wake = Wake()
    wake.set()
    await asyncio.wait_for(wake.sleep(None), 60)


async def test_it_wakes_when_something_happens_however_often() -> None:
    wake = Wake()
    task = asyncio.create_task(wake.sleep(60.0))
    await asyncio.sleep(0)
    wake.set()
    wake.set()
    await asyncio.wait_for(task, 60)
    wake.clear()
    again = asyncio.create_task(wake.sleep(None))
    await asyncio.sleep(0.01)
    assert not again.done()
    wake.set()
    await asyncio.wait_for(again, 60)


async def test_it_wakes_when_its_time_has_come() -> None:
    await asyncio.wait_for(Wake().sleep(0.01), 60)


async def test_the_time_of_a_sleep_that_was_ended_wakes_nobody_later() -> None:
    wake = Wake()
    task = asyncio.create_task(wake.sleep(0.02))
    await asyncio.sleep(0)
    wake.set()
    await task
    wake.clear()
    again = asyncio.create_task(wake.sleep(60.0))
    await asyncio.sleep(0.05)
    assert not again.done()
    again.cancel()
