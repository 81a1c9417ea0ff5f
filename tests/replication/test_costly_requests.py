"""Requests that are well formed and take long to read: they go on as they are, and are answered inline."""

import asyncio
import struct
from collections.abc import Callable
from itertools import pairwise

import pytest

from kafka_log.crc32c import Buffer
from replication.leader import relay_core
from replication.leader.fetch_waits import BULK_BYTES
from replication.wire.fetch_frame import FETCH_API_KEY, MAX_READ_REQUEST_BYTES, FetchRequestView, scan_fetch_request
from replication.wire.kafka_frame import (
    MAX_SCANNED_ITEMS,
    encode_unsigned_varint,
    parse_request_header,
)
from tests.kafka_log.batches import batches
from tests.replication.frame_steps import many, steps_to_read
from tests.replication.two_agents import Agents, Follower, framed, two_agents

MIB = 1024 * 1024
PARTITION = struct.pack(">iiqiqi", 0, 0, 0, 0, 0, 0) + b"\0"
NONE = b"\1"
"""A compact array or string with nothing in it."""


def fetch(topics: bytes, forgotten: bytes = NONE, tags: bytes = b"\0") -> bytes:
    """Fetch v12 from broker 2's replica. Source: Kafka's protocol, request header v2."""
    client_id = b"broker-2-fetcher-0"
    header = struct.pack(">hhih", FETCH_API_KEY, 12, 7, len(client_id)) + client_id + b"\0"
    return header + struct.pack(">iiiibii", 2, 500, 1, MIB, 0, 0, 0) + topics + forgotten + NONE + tags


def of_partitions(count: int) -> bytes:
    return fetch(b"\2\2t" + many(count, PARTITION) + b"\0")


SHAPES: dict[str, Callable[[int], bytes]] = {
    "topics": lambda count: fetch(many(count, b"\1\1\0")),
    "forgotten topics": lambda count: fetch(NONE, many(count, b"\1\1\0")),
    "tags": lambda count: fetch(NONE, tags=encode_unsigned_varint(count) + b"\7\0" * count),
    "partitions": of_partitions,
    "partitions of many topics": lambda count: fetch(many(count // 10, b"\2t" + many(10, PARTITION) + b"\0")),
}


def scan(frame: bytes) -> FetchRequestView:
    return scan_fetch_request(frame, 12)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_request_takes_more_steps_to_read_than_the_bound_on_its_items(shape: str) -> None:
    for count in (20_000, 100_000, 1_000_000):
        assert steps_to_read(SHAPES[shape](count), scan) < 5 * MAX_SCANNED_ITEMS


@pytest.mark.parametrize("shape", SHAPES)
def test_what_followers_of_large_clusters_ask_for_is_read(shape: str) -> None:
    assert scan_fetch_request(SHAPES[shape](10_000), 12).replica_id == 2


def test_of_a_request_beyond_a_mebibyte_nothing_is_looked_at() -> None:
    name = encode_unsigned_varint(2 * MIB + 1) + b"x" * 2 * MIB
    assert steps_to_read(fetch(b"\2" + name + NONE + b"\0"), scan) == 0


def answer_small_ones(agents: Agents) -> None:
    def answer(frame: bytes) -> bytes | None:
        if len(frame) > 100_000:
            return struct.pack(">i", parse_request_header(frame).correlation_id) + b"an answer to all that"
        return agents.broker.answer_from_logs(frame)

    agents.broker.answer = answer


async def expect_to_be_passed_on(agents: Agents, follower: Follower, frame: bytes) -> None:
    follower.writer.write(framed(frame))
    assert await follower.receive() == struct.pack(">i", 7) + b"an answer to all that"
    assert agents.broker.requests[-1] == frame


async def test_a_costly_request_is_passed_on_and_answered_as_it_is_and_links_go_on_with_the_next() -> None:
    async with two_agents() as agents:
        answer_small_ones(agents)
        raw = batches(2, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        await expect_to_be_passed_on(agents, follower, of_partitions(30_000))
        assert agents.leader_faults("request_not_read_items") == 1
        await expect_to_be_passed_on(agents, follower, of_partitions(2 * MAX_READ_REQUEST_BYTES // len(PARTITION)))
        assert agents.leader_faults("request_not_read_size") == 1
        assert agents.linked_responses == 0
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.linked_responses == 1
        assert agents.leader_faults("request_not_understood") == 0


async def test_the_answer_to_a_costly_request_is_never_linked() -> None:
    async with two_agents() as agents:
        raw = batches(2, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        linkable = await follower.fetch({0: 0})
        assert agents.linked_responses == 1
        assert linkable is not None
        agents.broker.answer = lambda frame: frame[4:8] + linkable[4:]
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.linked_responses == 2, "else this test shows nothing"
        assert await follower.fetch(dict.fromkeys(range(MAX_SCANNED_ITEMS), 0)) == follower.expected({0: raw})
        assert agents.linked_responses == 2


async def test_what_a_costly_request_asks_for_is_not_known_so_the_broker_is_not_made_to_gather_any_more() -> None:
    async with two_agents(gather_max_ms=25) as agents:
        answer_small_ones(agents)
        follower = await agents.connect()
        agents.append({0: batches(1, 0)})
        await follower.fetch({0: 0})
        agents.append({0: batches(1, 1, payload=bytes(BULK_BYTES))})
        await follower.fetch({0: 1})
        await follower.fetch({0: 2})
        gathered = scan_fetch_request(agents.broker.requests[-1], 17)
        assert gathered.min_bytes > 1, "else this test shows nothing"
        agents.now_s += 0.15  # so that it would be asked to again
        await expect_to_be_passed_on(agents, follower, of_partitions(30_000))
        await follower.fetch({0: 2})
        asked = scan_fetch_request(agents.broker.requests[-1], 17)
        assert (asked.max_wait_ms, asked.min_bytes) == (500, 1)


async def test_of_many_large_requests_that_are_there_at_once_others_get_their_turn_after_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = 0
    read_at: list[int] = []

    def scan(frame: Buffer, version: int) -> FetchRequestView:
        read_at.append(turns)
        return scan_fetch_request(frame, version)

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with two_agents() as agents:
        follower = await agents.connect(agents.leader_address)
        await follower.fetch({0: 0})
        monkeypatch.setattr(relay_core, "scan_fetch_request", scan)
        others = asyncio.create_task(take_turns())
        follower.writer.write(framed(of_partitions(300)) * 6)  # all in one read of the agent
        for _ in range(6):
            assert await follower.receive() is not None
        others.cancel()
    assert len(read_at) == 6
    assert all(later > earlier for earlier, later in pairwise(read_at))
