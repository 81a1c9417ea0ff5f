"""Answers wait for their turn, only so many, and go on in the broker's order, whichever have to be asked for again."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.follower.hydrated_responses import Message, ResponsesAhead
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_protocol import MessageKind

LINKED, KAFKA, ORIGINAL = MessageKind.LINKED, MessageKind.KAFKA, MessageKind.ORIGINAL


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=20))
async def test_an_original_comes_in_the_place_of_its_links_however_much_is_there_before(
    played: list[tuple[bool, int]],
) -> None:
    """Each response: whether it was linked and could not be put together, and how many others come before its original.

    As to clients: no response is linked before the original of the last one is there. All have the same correlation id.
    """
    arriving: list[tuple[MessageKind, int]] = []
    for number, (fails, before) in enumerate(played):
        if fails:
            others = [(KAFKA, 1000 * (number + 1) + other) for other in range(3 * before)]
            arriving += [(LINKED, number), *others, (ORIGINAL, number)]
        else:
            arriving.append((KAFKA, number))
    ahead, delivered = ResponsesAhead(2, asyncio.get_running_loop()), list[int]()

    asked = asyncio.Event()

    async def give() -> None:
        for kind, number in arriving:
            if kind is ORIGINAL:
                await asked.wait()
                asked.clear()
            await ahead.put((kind, memoryview(b"%d" % number)))
        await ahead.put(None)

    giving = asyncio.create_task(give())
    while (found := await asyncio.wait_for(ahead.get(), 60)) is not None:
        if found[0] is LINKED:
            ahead.await_original()
            asked.set()
        else:
            delivered.append(int(bytes(found[1])))
    await giving
    assert delivered == [number for kind, number in arriving if kind is not ORIGINAL]


async def test_an_original_that_nobody_asked_for_is_refused_and_the_end_comes_without_one_that_was() -> None:
    ahead = ResponsesAhead(2, asyncio.get_running_loop())
    with pytest.raises(MalformedFrameError):
        await ahead.put((ORIGINAL, memoryview(b"1")))
    ahead.await_original()
    for response in (answer(2), answer(3), answer(4), None):
        await ahead.put(response)
    assert await ahead.get() is None


def answer(number: int) -> Message:
    return MessageKind.KAFKA, memoryview(b"%d" % number)


async def test_all_that_is_given_is_taken_in_order_to_the_end() -> None:
    ahead = ResponsesAhead(3, asyncio.get_running_loop())
    given = [*(answer(number) for number in range(10)), None]

    async def give() -> None:
        for one in given:
            await ahead.put(one)

    giving = asyncio.create_task(give())
    taken = [await asyncio.wait_for(ahead.get(), 60) for _ in given]
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
    await asyncio.wait_for(giving, 60)


async def test_who_takes_waits_for_what_is_given_later() -> None:
    ahead = ResponsesAhead(2, asyncio.get_running_loop())
    taking = asyncio.create_task(ahead.get())
    await asyncio.sleep(0.01)
    assert not taking.done()
    await ahead.put(answer(1))
    assert await asyncio.wait_for(taking, 60) == answer(1)
