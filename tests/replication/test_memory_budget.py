"""One bound for the memory of all connections: who would pass it waits in TCP, and everybody gets there."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.wire.framed_connection import FramedConnection, reserve
from replication.wire.memory_budget import MemoryBudget
from tests.kafka_log.batches import batch
from tests.replication.test_framed_connection import framed
from tests.replication.two_agents import PATIENCE_S, Follower, two_agents

MIB = 1024 * 1024
STAGING_BYTES = 64 * 1024


def test_those_who_wait_for_each_other_do_not_wait_for_ever() -> None:
    budget, went_on = MemoryBudget(100), list[str]()
    budget.take(60)
    budget.take(40)
    budget.wait("a half frame", 1, 60, 60, lambda: went_on.append("a half frame"))
    assert went_on == []
    budget.wait("another", 2, 40, 40, lambda: went_on.append("another"))
    assert went_on == ["a half frame"], "nobody else has anything to give back"


def test_one_address_keeps_nobody_waiting_by_half_frames() -> None:
    budget, went_on = MemoryBudget(100), list[str]()
    stranger, other = budget.share_of("10.0.0.1"), budget.share_of("10.0.0.2")
    assert budget.share_of("10.0.0.1") is stranger
    for number in range(50):
        if not stranger.try_take(10):
            stranger.wait(number, budget.ticket(), 10, 0, lambda: went_on.append("stranger"))
    assert (stranger.used, budget.used) == (20, 20)
    other.wait("other", budget.ticket(), 20, 0, lambda: went_on.append("other"))
    for number in range(50):
        stranger.forget(number)
    stranger.give_back(20)
    other.give_back(20)
    assert (stranger.used, other.used, budget.used, went_on) == (0, 0, 0, ["other"])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 120)), min_size=1, max_size=40), st.randoms())
def test_with_shares_too_every_frame_gets_there_and_all_is_given_back(
    frames: list[tuple[int, int]], rng: random.Random
) -> None:
    """Each frame of an address takes its memory in pieces, and gives all back when it is whole."""
    budget = MemoryBudget(100)
    shares = [budget.share_of(address) for address in range(4)]
    tickets: dict[int, int] = {}
    held, ready, waiting, done = [0] * len(frames), list(range(len(frames))), set[int](), 0

    def got(number: int, more: int) -> None:
        waiting.discard(number)
        held[number] += more
        ready.append(number)

    while ready:
        number = ready.pop(rng.randrange(len(ready)))
        address, size = frames[number]
        share = shares[address]
        tickets.setdefault(number, budget.ticket())
        if held[number] == size:
            share.give_back(size)
            done += 1
            continue
        more = min(size - held[number], 10)
        if share.try_take(more):
            got(number, more)
            continue
        waiting.add(number)
        share.wait(number, tickets[number], more, held[number], partial(got, number, more))
        largest = max(size for _, size in frames)
        assert budget.used <= 100 + largest
    assert (done, waiting, budget.used) == (len(frames), set(), 0)
    assert not any(share.used for share in shares)


def test_what_stalled_connections_hold_blocks_no_others_up_to_twice_the_limit() -> None:
    budget, went_on = MemoryBudget(100), list[str]()
    budget.take(90)
    budget.stall("stalled", lambda: 90)
    budget.wait("stalled", 1, 20, 0, lambda: went_on.append("stalled"))
    budget.wait("first", 2, 60, 0, lambda: went_on.append("first"))
    budget.wait("second", 3, 60, 0, lambda: went_on.append("second"))
    assert went_on == ["first"], "the second waits for the first, which is not stalled"
    budget.stall("first", lambda: 60)
    assert went_on == ["first"], "all three would hold more than twice the limit"
    budget.go_on("first")
    budget.give_back(60)
    assert went_on == ["first", "second"]
    budget.give_back(60)
    budget.give_back(90)
    budget.go_on("stalled")
    assert went_on == ["first", "second", "stalled"]


@pytest.mark.parametrize("is_cancelled_first", [False, True])
async def test_a_reservation_that_is_given_up_while_memory_is_given_back_leaks_nothing(
    is_cancelled_first: bool,
) -> None:
    budget = MemoryBudget(10)
    budget.take(10)
    waiting = asyncio.create_task(reserve(budget, 5))
    await asyncio.sleep(0)
    steps: list[Callable[[], object]] = [waiting.cancel, partial(budget.give_back, 10)]
    for step in steps if is_cancelled_first else reversed(steps):
        step()  # both in one turn of the event loop
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert budget.used == 0
    assert budget.try_take(10), "nobody waits"


def test_what_is_only_kept_goes_before_anybody_waits() -> None:
    budget, let_go = MemoryBudget(100), list[str]()
    budget.keep("first", 40, lambda: let_go.append("first"))
    budget.keep("second", 40, lambda: let_go.append("second"))
    budget.wait("a frame", 1, 50, 0, lambda: None)
    assert (let_go, budget.used) == (["first"], 90)
    budget.release_kept("first")
    budget.release_kept("second")
    assert budget.used == 50


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 40)), max_size=30))
def test_all_get_their_turn(steps: list[tuple[int, int]]) -> None:
    """Each holds something and waits for more; who goes on gives all back some time later."""
    budget, finished = MemoryBudget(50), list[int]()
    for owner, (held, more) in enumerate(steps):
        budget.take(held)
        budget.wait(owner, owner, more, held, partial(finished.append, held + more))
    given_back = 0
    while given_back < len(finished):
        budget.give_back(finished[given_back])
        given_back += 1
    assert given_back == len(steps)
    assert budget.used == 0


@asynccontextmanager
async def many(
    count: int, budget: MemoryBudget
) -> AsyncIterator[tuple[list[FramedConnection], list[asyncio.StreamWriter]]]:
    connections: list[FramedConnection] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: FramedConnection(on_connected=connections.append, budget=budget), "127.0.0.1", 0
    )
    writers = [(await asyncio.open_connection(*server.sockets[0].getsockname()[:2]))[1] for _ in range(count)]
    try:
        yield connections, writers
    finally:
        for connection in connections:
            connection.close()
        for writer in writers:
            writer.close()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("size", [1000, 60_000, 70_000, MIB])
async def test_many_connections_together_keep_to_the_bound(size: int) -> None:
    budget, count, frames = MemoryBudget(2 * MIB), 40, 5
    async with many(count, budget) as (connections, writers):
        for writer in writers:
            writer.write(framed(b"x" * size) * frames)
        async with asyncio.timeout(PATIENCE_S):
            while len(connections) < count:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
            lengths = await asyncio.gather(*(_read_all(connection, frames) for connection in connections))
        assert lengths == [[size] * frames] * count
        assert budget.peak <= 2 * MIB + size + 3 * count * STAGING_BYTES
    await asyncio.sleep(0)
    assert budget.used == 0


async def test_a_stalled_connection_queues_one_frame_and_reads_on_afterwards() -> None:
    size, budget = 70_000, MemoryBudget()
    async with many(1, budget) as (connections, (writer,)):
        writer.write(framed(b"x" * size) * 5)
        async with asyncio.timeout(PATIENCE_S):
            while not connections:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
            with connections[0].stalled():
                assert await connections[0].frame_is_there()
                for _ in range(100):
                    await asyncio.sleep(0)
                assert budget.used == size
            assert await _read_all(connections[0], 5) == [size] * 5


async def test_a_bound_that_one_frame_exceeds_lets_one_pass_at_a_time() -> None:
    budget, count = MemoryBudget(100_000), 10
    async with many(count, budget) as (connections, writers):
        for writer in writers:
            writer.write(framed(b"x" * MIB))
        async with asyncio.timeout(PATIENCE_S):
            while len(connections) < count:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
            frames = await asyncio.gather(*(_read_all(connection, 1) for connection in connections))
        assert frames == [[MIB]] * count
        assert budget.peak <= 2 * MIB + count * STAGING_BYTES


async def _read_all(connection: FramedConnection, frames: int) -> list[int]:
    """Their sizes. Who asks for the next frame is done with the one before."""
    sizes = []
    for _ in range(frames):
        frame = await connection.read_frame()
        assert frame is not None
        sizes.append(len(frame))
    asking = asyncio.create_task(connection.read_frame())
    await asyncio.sleep(0)
    asking.cancel()
    return sizes


async def test_agents_with_little_memory_pass_large_responses_of_many_fetchers_one_after_the_other() -> None:
    """Linked and inline; each at both ends of the way between two agents."""
    budgets = MemoryBudget(3 * MIB), MemoryBudget(3 * MIB)
    async with two_agents(leader_budget=budgets[0], follower_budget=budgets[1]) as agents:
        raw = {number: batch(0, 1, 0, bytes((number,)) * MIB) for number in range(12)}
        agents.append({number: records for number, records in raw.items() if number % 2})
        for number in range(0, 12, 2):
            agents.broker.logs[number] = raw[number]
        agents.led.expected = False
        followers = [await agents.connect() for _ in raw]
        for number, follower in enumerate(followers):
            follower.send({number: 0})

        async def received(number: int, follower: Follower) -> bool:
            return await follower.receive() == follower.expected({number: raw[number]})

        answers = await asyncio.gather(*(received(*each) for each in enumerate(followers)))
        assert all(answers)
        assert max(budget.peak for budget in budgets) <= 5 * MIB
    assert [budget.used for budget in budgets] == [0, 0]


async def test_no_more_is_read_for_responses_than_there_is_memory_to_put_them_together() -> None:
    fetchers, waits = 12, list[int]()
    budget = MemoryBudget(3 * MIB, on_wait=lambda: waits.append(1))
    async with two_agents(follower_budget=budget) as agents:
        agents.storage.fetch_gate.clear()
        raw = {number: batch(0, 1, 0, bytes((number,)) * (MIB - 1024)) for number in range(fetchers)}
        agents.append(raw)
        followers = [await agents.connect() for _ in raw]
        for number, follower in enumerate(followers):
            follower.send({number: 0})
        await agents.until(lambda: len(waits) + len(agents.storage.fetches) >= fetchers)
        under_way = sum(end - start for _, start, end in agents.storage.fetches)
        assert 0 < under_way <= 3 * MIB
        agents.storage.fetch_gate.set()
        answers = await asyncio.gather(*(follower.receive() for follower in followers))
        assert answers == [followers[number].expected({number: raw[number]}) for number in range(fetchers)]
        assert budget.peak <= 4 * MIB
    assert budget.used == 0


async def test_an_original_that_memory_was_too_short_to_keep_is_fetched_again() -> None:
    async with two_agents(leader_budget=MemoryBudget(MIB)) as agents:
        agents.storage.fetch_gate.clear()
        raw = batch(0, 1, 0, b"x" * 1000)
        agents.append({0: raw})
        follower = await agents.connect()
        follower.send({0: 0})
        await agents.until(lambda: agents.leader_budget.used > 1000)
        others = asyncio.create_task(reserve(agents.leader_budget, MIB))
        await asyncio.sleep(0)  # who waits for memory has what is only kept let go of
        others.cancel()
        agents.storage.fetches_fail = True
        agents.storage.fetch_gate.set()
        assert await follower.receive() is None
        assert agents.leader_faults("kept_response_let_go") == 1
        agents.storage.fetches_fail = False
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})


async def test_half_requests_that_fill_the_bound_hold_up_neither_other_requests_nor_responses() -> None:
    # On a busy machine a connection may be over its time for a hello before its first bytes are read.
    async with two_agents(request_budget=MemoryBudget(MIB), hello_timeout_s=PATIENCE_S) as agents:
        hostile = [await agents.connect(agents.leader_address) for _ in range(8)]
        for follower in hostile:
            follower.writer.write(framed(b"\0" * 16 * MIB)[: 4 * MIB])
        await agents.until(lambda: agents.request_budget.used >= MIB // 2)
        raw = batch(0, 1, 0, b"x" * MIB)
        agents.append({0: raw})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert await follower.fetch({0: 1}) == follower.expected({0: b""})
        assert agents.request_budget.peak <= 17 * MIB, "one goes on, whatever the bound"
    assert agents.request_budget.used == 0
