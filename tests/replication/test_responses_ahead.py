"""Responses wait for their turn, in order, and only so many."""

import asyncio

from replication.follower.hydrated_responses import Answer, ResponsesAhead
from replication.wire.peer_protocol import MessageKind


def answer(number: int) -> Answer:
    return MessageKind.KAFKA, memoryview(b"%d" % number)


async def test_all_that_is_given_is_taken_in_order_to_the_end() -> None:
    ahead = ResponsesAhead(3, asyncio.get_running_loop())
    given = [*(answer(number) for number in range(10)), None]

    async def give() -> None:
        for one in given:
            await ahead.put(one)

    giving = asyncio.create_task(give())
    taken = [await asyncio.wait_for(ahead.get(), 10) for _ in given]
    await giving
    assert taken == given


async def test_who_gives_waits_while_as_many_as_may_be_are_there() -> None:
    ahead = ResponsesAhead(2, asyncio.get_running_loop())
    await ahead.put(answer(1))
    await ahead.put(answer(2))
    giving = asyncio.create_task(ahead.put(answer(3)))
    await asyncio.sleep(0.01)
    assert not giving.done()
    assert await ahead.get() == answer(1)
    await asyncio.wait_for(giving, 10)


async def test_who_takes_waits_for_what_is_given_later() -> None:
    ahead = ResponsesAhead(2, asyncio.get_running_loop())
    taking = asyncio.create_task(ahead.get())
    await asyncio.sleep(0.01)
    assert not taking.done()
    await ahead.put(answer(1))
    assert await asyncio.wait_for(taking, 10) == answer(1)
