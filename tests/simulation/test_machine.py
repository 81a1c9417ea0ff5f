"""What stands for threads in simulations does what they do: the same tests on the machine and in virtual time.

Asked is what the product relies on: one thread keeps the order of calls, pools refuse calls once they are shut down and
cancel what waits. Timers, events and time-outs are asyncio's own in both.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from functools import partial
from random import Random
from typing import Any, cast

import pytest

from rlm.write_path.runtime import thread_pool
from tests.simulation.virtual_time import Delays, SeededExecutor, VirtualTimeLoop, run

Pool = Callable[[int], Executor]
Scenario = Callable[[Pool], Awaitable[None]]


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
            self._event.wait(60)
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
