"""Where object storage fails a follower, the leader's original comes inline, and nothing else."""

from collections.abc import Callable

import pytest

from plugin.errors import RemoteResourceNotFoundError, RemoteStorageTimeoutError
from plugin.segment_metadata import CombinedSegmentId
from tests.kafka_log.batches import batches
from tests.replication.two_agents import Agents, Follower, two_agents


async def fetched_inline(agents: Agents, reason: str) -> None:
    """One fetch whose links cannot be hydrated, answered by the leader's original all the same."""
    raw = batches(2, 0, payload=b"i" * 700)
    agents.append({0: raw})
    follower = await agents.connect()
    assert await follower.fetch({0: 0}) == follower.expected({0: raw})
    assert agents.leader_faults("inline_requested_by_follower") == 1
    assert agents.follower_faults(f"inline_requested_{reason}") == 1
    assert await follower.fetch({0: 2}) == follower.expected({0: b""})


async def fetched(agents: Agents, follower: Follower, offset: int) -> None:
    """One more record, appended and fetched: byte by byte what the leader has, on whichever way."""
    raw = batches(1, offset, payload=b"%d" % offset * 100)
    agents.append({0: raw})
    assert await follower.fetch({0: offset}) == follower.expected({0: raw})


def _raise(error: Exception) -> Callable[[bytes], bytes]:
    def answer(_: bytes) -> bytes:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (_raise(RemoteStorageTimeoutError("fetch", "key", "planted")), "timeout"),
        (_raise(RemoteResourceNotFoundError("fetch", "key", "planted")), "not_found"),
        (_raise(KeyError("a defect of the backend")), "defect"),
        pytest.param(lambda data: data[:-1], "corrupt", id="a short read"),
    ],
)
async def test_when_object_storage_fails_the_original_comes_inline(
    answer: Callable[[bytes], bytes], reason: str
) -> None:
    async with two_agents() as agents:
        agents.storage.corrupt = answer
        await fetched_inline(agents, reason)


async def test_corrupt_bytes_are_read_anew_once_and_then_asked_for_inline() -> None:
    async with two_agents() as agents:
        agents.storage.corrupt = _last_bit_flipped
        await fetched_inline(agents, "corrupt")
        assert len(agents.storage.fetches) == 2


async def test_links_are_held_off_where_response_after_response_is_corrupt() -> None:
    async with two_agents() as agents:
        agents.storage.corrupt = _last_bit_flipped
        follower = await agents.connect()
        for step in range(4):
            await fetched(agents, follower, step)
        assert agents.follower_faults("inline_requested_corrupt") == 3
        assert agents.follower_faults("link_defect_corrupt") == 1
        assert agents.linked_responses == 3


async def test_corrupt_responses_between_good_ones_hold_off_no_links() -> None:
    async with two_agents() as agents:
        follower = await agents.connect()
        for step in range(8):
            agents.storage.corrupt = (lambda data: data[:-1]) if step % 2 else (lambda data: data)
            await fetched(agents, follower, step)
        assert agents.follower_faults("inline_requested_corrupt") == 4
        assert agents.linked_responses == 8


async def test_bytes_that_are_right_the_second_time_are_spliced() -> None:
    async with two_agents() as agents:
        agents.storage.corrupt = _one_after_the_other(lambda data: b"\0" * len(data), lambda data: data)
        raw = batches(2, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.leader_faults("inline_requested_by_follower") == 0
        assert agents.follower_faults("splice_refetch") == 1


async def test_a_store_that_hangs_costs_one_timeout_then_links_pause_until_it_answers_again() -> None:
    async with two_agents(hydration_timeout_s=0.05) as agents:
        agents.storage.fetch_gate.clear()
        follower = await agents.connect()
        for step in range(3):
            await fetched(agents, follower, step)
        assert agents.follower_faults("inline_requested_timeout") == 3
        await agents.until(lambda: agents.leader_faults("links_paused") == 1)
        linked = agents.linked_responses
        await fetched(agents, follower, 3)
        assert agents.linked_responses == linked
        assert agents.follower_faults("inline_requested_breaker_open") == 0

        agents.storage.fetch_gate.set()
        await agents.until(lambda: agents.leader_faults("links_resumed") == 1)
        await fetched(agents, follower, 4)
        assert agents.linked_responses == linked + 1


async def test_a_pause_ends_the_wait_of_a_response_for_its_links() -> None:
    async with two_agents() as agents:
        raw = batches(1, 0)
        agents.append({0: raw}, stored=False)
        follower = await agents.connect()
        follower.send({0: 0})
        await agents.until(lambda: bool(agents.led.wanted))
        for _ in range(3):
            agents.hydration.timed_out([(CombinedSegmentId(1, 1, 0), b"")])
        assert await follower.receive() == follower.expected({0: raw})


async def test_an_operators_pause_at_the_follower_ends_links_and_reads_and_its_end_brings_them_back() -> None:
    async with two_agents() as agents:
        follower = await agents.connect()
        await fetched(agents, follower, 0)
        assert agents.linked_responses == 1
        agents.is_paused = True
        await fetched(agents, follower, 1)
        read = len(agents.storage.fetches)
        await fetched(agents, follower, 2)
        await fetched(agents, follower, 3)
        assert (len(agents.storage.fetches), agents.leader_faults("links_paused")) == (read, 1)
        agents.is_paused = False
        linked = agents.linked_responses
        await fetched(agents, follower, 4)
        await fetched(agents, follower, 5)
        assert agents.linked_responses > linked


async def test_a_connection_made_while_the_breaker_is_open_begins_paused() -> None:
    async with two_agents() as agents:
        for _ in range(3):
            agents.hydration.timed_out([(CombinedSegmentId(1, 1, 0), b"")])
        raw = batches(1, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        assert await follower.fetch({0: 5}) == follower.expected({0: b""})
        await agents.until(lambda: agents.leader_faults("links_paused") == 1)
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.storage.fetches == []


async def test_an_object_that_was_tampered_with_never_reaches_the_broker() -> None:
    """Whole batches with right checksums of their own, but of another leader epoch."""
    async with two_agents() as agents:
        raw = batches(1, 0)
        agents.append({0: raw})
        honest = agents.storage.objects.copy()
        for segment, data in honest.items():
            agents.storage.objects[segment] = data.replace(raw, batches(1, 0, leader_epoch=9))
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.follower_faults("inline_requested_corrupt") == 1


def _one_after_the_other(*answers: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    left = iter(answers)

    def answer(data: bytes) -> bytes:
        return next(left)(data)

    return answer


def _last_bit_flipped(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))
