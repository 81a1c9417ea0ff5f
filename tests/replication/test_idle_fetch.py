"""Fetch requests without partitions, and their responses, take a short way through both agents, byte for byte."""

import asyncio
import struct
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest

from replication.wire.idle_fetch import WHOLE_EACH, IdleRequest, response_frame, response_numbers
from replication.wire.kafka_frame import MalformedFrameError
from tests.kafka_log.batches import batches
from tests.replication.fetch_frames import request, response
from tests.replication.two_agents import Agents, Follower, framed, read_frame, two_agents

SESSION = 77


def idle(number: int, epoch: int, replica_id: int = 2, **changes: Any) -> bytes:
    state = FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=1)
    fields = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 10_000_000, "session_id": SESSION, **changes}
    message = FetchRequest(version=17, topics=[], session_epoch=epoch, replica_state=state, **fields)
    message.with_header(correlation_id=number, client_id="broker-2-fetcher-0")
    return bytes(message.encode(header=True))


def nothing(number: int) -> bytes:
    return response_frame(struct.pack(">ii", number, SESSION))


async def exchange(follower: Follower, frame: bytes) -> bytes | None:
    follower.writer.write(framed(frame))
    return await read_frame(follower.reader)


def answering(agents: Agents, others: Callable[[int], bytes]) -> None:
    """The broker has nothing for a request without partitions, but for every third."""

    def answer(frame: bytes) -> bytes:
        number = int.from_bytes(frame[4:8], "big")
        return others(number) if number % 3 == 0 else nothing(number)

    agents.broker.answer = answer


async def test_they_pass_byte_for_byte_among_others() -> None:
    records = batches(1, 0)

    def with_partition(number: int) -> bytes:
        return response({0: records if number % 2 else b""}, correlation_id=number, high_watermark=number)

    async with two_agents() as agents:
        follower = await agents.connect()
        agents.store({0: records})
        answering(agents, with_partition)
        asked = []
        for number in range(1, 3 * WHOLE_EACH):
            is_whole = number % 7 == 0
            frame = (
                request({0: number}, correlation_id=number, session_epoch=number) if is_whole else idle(number, number)
            )
            asked.append(frame)
            expected = with_partition(number) if number % 3 == 0 else nothing(number)
            assert await exchange(follower, frame) == expected
        assert [bytes(frame) for frame in agents.broker.requests] == asked


async def test_one_that_differs_by_more_than_its_numbers_passes_whole() -> None:
    async with two_agents() as agents:
        follower = await agents.connect()
        agents.broker.answer = lambda frame: nothing(int.from_bytes(frame[4:8], "big"))
        frames = [
            idle(1, 1),
            idle(2, 2),
            idle(3, 3, max_wait_ms=100),
            idle(4, 4, session_id=5),
            idle(5, 0),
            idle(6, -1),
        ]
        for number, frame in enumerate(frames, 1):
            assert await exchange(follower, frame) == nothing(number)
        assert [bytes(frame) for frame in agents.broker.requests] == frames


async def test_a_second_request_waits_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_agents() as agents:
        follower = await agents.connect()
        agents.broker.answer = lambda frame: nothing(int.from_bytes(frame[4:8], "big"))
        assert await exchange(follower, idle(1, 1)) == nothing(1)
        agents.broker.go_on.clear()
        for number in (2, 3, 4):
            follower.writer.write(framed(idle(number, number)))
        await agents.until(lambda: len(agents.broker.requests) == 2)
        agents.broker.go_on.set()
        assert [await read_frame(follower.reader) for _ in range(3)] == [nothing(number) for number in (2, 3, 4)]


async def test_one_of_another_replica_is_looked_at_like_any_request() -> None:
    async with two_agents() as agents:
        follower = await agents.connect()
        agents.broker.answer = lambda frame: nothing(int.from_bytes(frame[4:8], "big"))
        assert await exchange(follower, idle(1, 1)) == nothing(1)
        core = next(iter(agents.leader.relays)).core
        own, others = IdleRequest(), IdleRequest()
        own.note(idle(1, 1))
        others.note(idle(1, 1, replica_id=3))
        assert not core.passes_idle_request(others, 2, 0.0)
        assert core.passes_idle_request(own, 2, 0.0)
        assert not core.passes_idle_request(own, 3, 0.0), "one is under way"


async def test_they_take_few_calls_of_functions() -> None:
    calls = [0]

    def called(frame: Any, event: str, _argument: Any) -> None:
        module = frame.f_globals.get("__name__") or ""
        calls[0] += event == "call" and module.startswith(("replication.", "kafka_log.", "plugin."))

    async with two_agents() as agents:
        follower = await agents.connect()
        agents.broker.answer = lambda frame: nothing(int.from_bytes(frame[4:8], "big"))
        assert await exchange(follower, idle(1, 1)) == nothing(1)
        sys.setprofile(called)
        try:
            for number in range(2, 2 + WHOLE_EACH):
                await exchange(follower, idle(number, number))
        finally:
            sys.setprofile(None)
        assert calls[0] / WHOLE_EACH <= 28, "of both agents; each has four such exchanges a second with two others"


async def test_what_was_passed_on_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_agents() as agents:
        follower = await agents.connect()
        agents.broker.answer = lambda frame: nothing(int.from_bytes(frame[4:8], "big"))
        for number in range(1, WHOLE_EACH + 3):  # the last one goes whole
            await exchange(follower, idle(number, number))
        await asyncio.sleep(0)
        counted = agents.leader_metrics.traffic.by_follower[2].stock_bytes
        assert counted == (WHOLE_EACH + 2) * (len(idle(1, 1)) + 4 + len(nothing(1)) + 4)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(1, 2**31 - 1))
def test_both_ends_make_the_same_frames(number: int, epoch: int) -> None:
    sender, receiver = IdleRequest(), IdleRequest()
    for one in (sender, receiver):
        one.note(idle(1, 1))
        one.note(request({0: 5}, session_epoch=2))  # has a partition
        one.note(idle(9, 0))  # begins a session
    frame = idle(number, epoch)
    numbers = sender.numbers(frame)
    assert numbers is not None
    assert receiver.frame(numbers) == frame
    told = response_numbers(nothing(number))
    assert told is not None
    assert response_frame(told) == nothing(number)
    assert response_numbers(response({0: b""}, correlation_id=number)) is None


@pytest.mark.parametrize("numbers", [b"", bytes(7), bytes(9), bytes(8), bytes(4) + b"\xff" * 4])
def test_numbers_of_another_size_or_without_a_whole_request_are_malformed(numbers: bytes) -> None:
    known = IdleRequest()
    with pytest.raises(MalformedFrameError):
        known.frame(bytes(8))
    known.note(idle(1, 1))
    with pytest.raises(MalformedFrameError):
        known.frame(numbers)
    with pytest.raises(MalformedFrameError):
        response_frame(numbers[:7])
