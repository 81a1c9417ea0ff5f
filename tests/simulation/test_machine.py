"""What stands for threads and time in simulations does what they do: the same tests on the machine and in virtual time.

Asked is what the product relies on: one thread keeps the order of calls, pools refuse calls once they are shut down and
cancel what waits; the loop's clock never goes back, and timers end in the order of their times.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from functools import partial
from random import Random
from typing import Any, cast

import pytest

from rlm.write_path.machine import thread_pool
from tests.simulation.virtual_time import Delays, SeededExecutor, VirtualTimeLoop, run

Pool = Callable[[int], Executor]
Scenario = Callable[[Pool], Awaitable[None]]
SHORT_S = 1 / 64
RESOLUTION_S = 1e-6


@pytest.fixture(params=["machine", 0, 1, 2])
def play(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs it with threads and the machine's clock, or by a seed with those of the simulation."""
    if request.param == "machine":
        return lambda scenario: asyncio.run(cast(Any, scenario(lambda threads: thread_pool(threads, "contract"))))
    loop, rng = VirtualTimeLoop(), Random(request.param)

    def delays() -> Delays:
        return rng.choice((0.0, rng.uniform(0, 1))), rng.choice((0.0, rng.uniform(0, 1)))

    return lambda scenario: run(loop, scenario(lambda threads: SeededExecutor(loop, threads, delays)))


def call(pool: Executor, function: Callable[..., Any], *arguments: Any) -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


class Latch:
    """Keeps a pool's only thread busy until it is let go, by whatever stands for threads."""

    def __init__(self, pool: Executor, effect: Callable[[], object] = lambda: None) -> None:
        """`effect` comes at the end of it."""
        loop, self._begun, self._event = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def wait() -> None:
            loop.call_soon_threadsafe(self._begun.set)
            self._event.wait(10)
            effect()

        is_simulated = isinstance(pool, SeededExecutor)
        if is_simulated:  # there is no thread that could wait; the call takes a while by itself
            self._begun.set()
        self.held = call(pool, effect if is_simulated else wait)

    async def begun(self) -> None:
        await self._begun.wait()

    def let_go(self) -> None:
        self._event.set()


def tell(told: list[int], number: int, _ended: object) -> None:
    told.append(number)


def test_one_thread_makes_calls_one_by_one_in_their_order(play: Callable[[Scenario], None]) -> None:
    async def scenario(pools: Pool) -> None:
        pool, made, told = pools(1), list[int](), list[int]()
        calls = [call(pool, made.append, number) for number in range(20)]
        for number, one in enumerate(calls):
            one.add_done_callback(partial(tell, told, number))
        await asyncio.gather(*calls)
        await asyncio.sleep(0)
        assert made == told == list(range(20))
        pool.shutdown()

    play(scenario)


def test_who_waits_gets_what_was_returned_or_raised(play: Callable[[Scenario], None]) -> None:
    def fail() -> None:
        raise OSError(5, "planted")

    async def scenario(pools: Pool) -> None:
        pool = pools(2)
        assert await call(pool, int, "7") == 7
        with pytest.raises(OSError, match="planted"):
            await call(pool, fail)
        assert await call(pool, int, "8") == 8, "the thread has outlived it"
        submitted: Future[int] = pool.submit(int, "9")
        assert await asyncio.wrap_future(submitted) == 9
        pool.shutdown()

    play(scenario)


def test_nobody_is_told_before_the_caller_has_gone_on(play: Callable[[Scenario], None]) -> None:
    async def scenario(pools: Pool) -> None:
        pool = pools(1)
        one = call(pool, int, "7")
        assert not one.done()
        assert await one == 7
        pool.shutdown()

    play(scenario)


def test_what_waits_for_a_thread_can_be_cancelled_and_is_not_made(play: Callable[[Scenario], None]) -> None:
    async def scenario(pools: Pool) -> None:
        pool, made = pools(1), list[int]()
        latch = Latch(pool)
        waiting, other = call(pool, made.append, 1), call(pool, made.append, 2)
        waiting.cancel()
        await asyncio.sleep(0)
        latch.let_go()
        await other
        assert waiting.cancelled()
        assert made == [2]
        pool.shutdown()

    play(scenario)


def test_what_runs_takes_its_effect_though_nobody_waits_any_more(play: Callable[[Scenario], None]) -> None:
    async def scenario(pools: Pool) -> None:
        pool, made = pools(1), list[int]()
        latch = Latch(pool, lambda: made.append(1))
        await latch.begun()
        latch.held.cancel()
        latch.let_go()
        await call(pool, int, "1")
        assert made == [1]
        pool.shutdown()

    play(scenario)


def test_a_pool_that_is_shut_down_takes_nothing_and_cancels_what_waits(play: Callable[[Scenario], None]) -> None:
    async def scenario(pools: Pool) -> None:
        pool, made = pools(1), list[int]()
        latch = Latch(pool)
        waiting = call(pool, made.append, 1)
        pool.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(RuntimeError, match="after shutdown"):
            call(pool, made.append, 2)
        latch.let_go()
        await latch.held
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert made == []

    play(scenario)


def test_a_shutdown_that_waits_lets_what_runs_end(play: Callable[[Scenario], None]) -> None:
    async def scenario(pools: Pool) -> None:
        pool, made = pools(2), list[int]()
        calls = [call(pool, made.append, number) for number in range(2)]
        pool.shutdown(wait=True)
        assert sorted(made) == [0, 1]
        await asyncio.gather(*calls)

    play(scenario)


def test_timers_end_in_the_order_of_their_times_and_at_once_where_that_is_over(
    play: Callable[[Scenario], None],
) -> None:
    async def scenario(_pools: Pool) -> None:
        loop, told = asyncio.get_running_loop(), list[str]()
        ended = loop.create_future()
        began_s = loop.time()
        loop.call_later(2 * SHORT_S, lambda: ended.set_result(loop.time() - began_s))
        loop.call_later(SHORT_S, told.append, "later")
        cancelled = loop.call_later(SHORT_S / 2, told.append, "never")
        loop.call_later(-1.0, told.append, "over")
        loop.call_at(began_s - 0.5, told.append, "over")
        loop.call_later(0, told.append, "now")
        loop.call_soon(told.append, "soon")
        cancelled.cancel()
        assert told == [], "nothing is called by who asks for it"
        took_s = await ended
        assert told[0] == "soon", "what is due waits for the next round"
        assert sorted(told[1:4]) == ["now", "over", "over"]
        assert told[4:] == ["later"]
        assert took_s >= 2 * SHORT_S - RESOLUTION_S

    play(scenario)


def test_the_clock_never_goes_back_and_stands_for_as_long_as_was_slept(play: Callable[[Scenario], None]) -> None:
    async def scenario(_pools: Pool) -> None:
        loop = asyncio.get_running_loop()
        seen = [loop.time()]
        for pause_s in (0, SHORT_S, -1.0, 0, SHORT_S / 2):
            await asyncio.sleep(pause_s)
            seen.append(loop.time())
        assert seen == sorted(seen)
        assert seen[2] - seen[1] >= SHORT_S - RESOLUTION_S

    play(scenario)


def test_who_waits_for_too_long_is_told_and_what_was_waited_for_is_cancelled(play: Callable[[Scenario], None]) -> None:
    async def scenario(_pools: Pool) -> None:
        waiting = asyncio.ensure_future(asyncio.Event().wait())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_S):
                await waiting
        assert waiting.cancelled()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await asyncio.sleep(SHORT_S)

    play(scenario)


def test_those_that_an_event_wakes_go_on_in_the_order_in_which_they_waited(play: Callable[[Scenario], None]) -> None:
    async def scenario(_pools: Pool) -> None:
        event, woken = asyncio.Event(), list[int]()

        async def wait(number: int) -> None:
            await event.wait()
            woken.append(number)

        waiting = [asyncio.ensure_future(wait(number)) for number in range(5)]
        await asyncio.sleep(0)
        event.set()
        assert woken == []
        await asyncio.gather(*waiting)
        assert woken == list(range(5))

    play(scenario)
