"""Answers wait for their turn, only so many, and go on in the broker's order, whichever have to be asked for again."""

import asyncio
import struct

from hypothesis import given
from hypothesis import strategies as st

from replication.follower.hydrated_responses import Answer, AnswersInOrder, ResponsesAhead
from replication.wire.peer_protocol import MessageKind

LINKED, KAFKA = MessageKind.LINKED, MessageKind.KAFKA


def frame(number: int) -> memoryview:
    return memoryview(struct.pack(">i", number) + b" and more")


def test_what_comes_goes_on() -> None:
    answers = AnswersInOrder()
    assert answers.take_next() is None
    answers.came(KAFKA, frame(1))
    answers.came(LINKED, frame(2))
    assert [answers.take_next() for _ in range(3)] == [(KAFKA, frame(1)), (LINKED, frame(2)), None]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=20))
def test_an_original_comes_in_the_place_of_its_links_however_much_is_there_before(
    played: list[tuple[bool, int]],
) -> None:
    """Each answer: whether it was linked and could not be put together, and how many others come before its original.

    As to clients: no answer is linked before the original of the last one is there.
    """
    answers, delivered = AnswersInOrder(), list[int]()
    arriving: list[tuple[MessageKind, memoryview, bool]] = []
    for number, (fails, before) in enumerate(played):
        if fails and not any(is_original for *_, is_original in arriving[-5:]):
            arriving.append((LINKED, frame(number), False))
            arriving += [(KAFKA, frame(1000 * (number + 1) + other), False) for other in range(before)]
            arriving.append((KAFKA, frame(number), True))
        else:
            arriving.append((KAFKA, frame(number), False))
    expected = [struct.unpack_from(">i", body)[0] for _, body, is_original in arriving if not is_original]
    for kind, body, _ in arriving:
        answers.came(kind, body)
        while (found := answers.take_next()) is not None:
            (number,) = struct.unpack_from(">i", found[1])
            if found[0] is LINKED:
                answers.await_original(number)
            else:
                delivered.append(number)
    assert delivered == expected


def test_another_answers_number_is_not_taken_for_the_originals() -> None:
    answers = AnswersInOrder()
    answers.came(LINKED, frame(-5))
    assert answers.take_next() == (LINKED, frame(-5))
    answers.await_original(-5)
    answers.came(LINKED, frame(-5))
    answers.came(KAFKA, frame(5))
    assert answers.take_next() is None
    answers.came(KAFKA, frame(-5))
    assert [answers.take_next() for _ in range(3)] == [(KAFKA, frame(-5)), (LINKED, frame(-5)), (KAFKA, frame(5))]


def answer(number: int) -> Answer:
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
