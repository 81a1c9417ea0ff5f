"""Reads for a broker that is far behind: within their quota, and out of the way of all others."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from plugin.segment_metadata import CombinedSegmentId
from replication.follower.catch_up_reads import CatchUpReadLimits, CatchUpReads
from replication.follower.hydration import HydrationCache, HydrationError
from replication.wire.circuit_breaker import BreakerLimits
from replication.wire.link import SegmentLink
from replication.wire.metrics import ReplicationMetrics
from rlm.write_path.metrics import StageTimes
from tests.metric_values import metric_value
from tests.rlm.memory_storage import MemoryStorage

CONTENT = bytes(range(250)) * 8


def segment(number: int) -> CombinedSegmentId:
    return CombinedSegmentId(1, 1, number)


def link(number: int, start: int, end: int) -> SegmentLink:
    return SegmentLink(segment(number), start, end - start, 0)


class Rig:
    def __init__(self) -> None:
        self.storage, self.now_s = MemoryStorage(), 50.0
        for number in range(20):
            self.storage.objects[segment(number)] = CONTENT
        registry = CollectorRegistry()
        self.metrics = ReplicationMetrics(registry)
        self.cache = HydrationCache(
            self.storage,
            100_000,
            StageTimes(registry),
            self.metrics,
            clock=lambda: self.now_s,
            breaker=BreakerLimits(failures_to_open=3),
        )
        # A quarter of a second's worth, 1000 bytes, may go at once.
        self.reads = CatchUpReads(
            self.cache, CatchUpReadLimits(4000, 6000, 0.5, reads=2), self.metrics, clock=lambda: self.now_s
        )

    async def fetch(self, *links: SegmentLink) -> list[bytes]:
        async with asyncio.timeout(60):
            return [bytes(data) for data in await self.reads.fetch_all(links)]

    def faults(self, reason: str) -> float:
        return metric_value(self.metrics.faults.labels(reason))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.storage.fetch_gate.set()
    made.reads.close()
    made.cache.close()


async def test_what_was_announced_is_read_once_and_each_link_finds_its_part(rig: Rig) -> None:
    rig.reads.read_ahead(segment(0), ((0, 400), (600, 900)))
    found = await rig.fetch(link(0, 10, 400), link(0, 600, 700), link(0, 700, 900))
    assert found == [CONTENT[10:400], CONTENT[600:700], CONTENT[700:900]]
    assert sorted(rig.storage.fetches) == [(segment(0), 0, 400), (segment(0), 600, 900)]
    assert metric_value(rig.metrics.catch_up.read_bytes) == 700


async def test_what_was_not_announced_is_read_when_it_is_needed_adjoining_ranges_at_once(rig: Rig) -> None:
    assert await rig.fetch(link(1, 0, 100), link(1, 100, 300), link(2, 5, 6)) == [
        CONTENT[:100],
        CONTENT[100:300],
        b"\5",
    ]
    assert sorted(rig.storage.fetches) == [(segment(1), 0, 300), (segment(2), 5, 6)]


async def test_a_link_across_the_ends_of_what_was_read_has_only_the_rest_read(rig: Rig) -> None:
    rig.reads.read_ahead(segment(3), ((100, 200), (300, 400)))
    assert await rig.fetch(link(3, 50, 450)) == [CONTENT[50:450]]
    rig.reads.read_ahead(segment(3), ((0, 500),))
    assert await rig.fetch(link(3, 0, 500)) == [CONTENT[:500]]
    assert sorted(rig.storage.fetches) == [
        (segment(3), *read) for read in [(0, 50), (50, 100), (100, 200), (200, 300), (300, 400), (400, 450), (450, 500)]
    ]
    assert metric_value(rig.metrics.catch_up.read_bytes) == 500


async def test_reads_wait_for_the_quota_and_beyond_the_wait_are_not_made(rig: Rig) -> None:
    for number in range(3):  # the first fills the bucket's burst, the others wait 0.25 and 0.5 s
        rig.reads.read_ahead(segment(number), ((0, 1000),))
    rig.reads.read_ahead(segment(3), ((0, 1000),))
    rig.reads.read_ahead(segment(4), ((0, 1000),))
    assert rig.faults("catch_up_over_quota") == 1
    with pytest.raises(HydrationError) as refused:
        await rig.fetch(link(4, 0, 1000))
    assert refused.value.reason == "over_quota"
    assert segment(4) not in [fetched for fetched, _, _ in rig.storage.fetches]


async def test_a_response_whose_read_waits_for_the_quota_gets_it_when_its_turn_comes(rig: Rig) -> None:
    rig.reads.read_ahead(segment(0), ((0, 1200),))
    rig.reads.read_ahead(segment(1), ((0, 10),))
    assert not rig.cache.ranges.find_missing(segment(1), 0, 10)
    await asyncio.sleep(0)
    assert rig.storage.fetches == [(segment(0), 0, 1200)]
    assert await rig.fetch(link(1, 2, 4)) == [b"\2\3"]


async def test_what_is_announced_beyond_the_bytes_under_way_is_let_go(rig: Rig) -> None:
    rig.storage.fetch_gate.clear()
    rig.reads.read_ahead(segment(0), ((0, 900),))
    rig.now_s += 100
    rig.reads.read_ahead(segment(1), ((0, 5101),))
    assert rig.faults("catch_up_over_budget") == 1
    assert rig.cache.ranges.find_missing(segment(1), 0, 1)


async def test_they_take_neither_the_threads_nor_the_budget_of_what_was_stored_just_now(rig: Rig) -> None:
    rig.storage.fetch_gate.clear()
    for number in range(2):
        rig.reads.read_ahead(segment(number), ((0, 400),))
    async with asyncio.timeout(60):
        while len(rig.storage.fetches) < 2:  # noqa: ASYNC110 - both threads of these reads are busy
            await asyncio.sleep(0)
    assert rig.cache.in_flight_bytes == 0
    fresh = asyncio.create_task(rig.cache.fetch(segment(9), 0, 5))
    async with asyncio.timeout(60):
        while len(rig.storage.fetches) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
    rig.storage.fetch_gate.set()
    assert bytes(await fresh) == CONTENT[:5]


async def test_while_the_store_is_left_alone_they_are_not_made(rig: Rig) -> None:
    for _ in range(3):
        rig.cache.timed_out([(segment(0), b"")])
    rig.reads.read_ahead(segment(0), ((0, 10),))
    with pytest.raises(HydrationError) as refused:
        await rig.fetch(link(0, 0, 10))
    assert refused.value.reason == "breaker_open"
    assert rig.storage.fetches == []


async def test_a_read_that_failed_is_told_and_made_anew(rig: Rig) -> None:
    rig.storage.fetches_fail = True
    with pytest.raises(HydrationError):
        await rig.fetch(link(0, 0, 10))
    rig.storage.fetches_fail = False
    assert await rig.fetch(link(0, 0, 10)) == [CONTENT[:10]]
    rig.now_s += 100
    rig.reads.read_ahead(segment(1), ((0, 6000),))  # all that may be under way
    assert rig.faults("catch_up_over_budget") == 0


async def test_planned_reads_are_abandoned_at_the_end(rig: Rig) -> None:
    rig.reads.read_ahead(segment(0), ((0, 1200),))
    rig.reads.read_ahead(segment(1), ((0, 10),))
    waiting = asyncio.create_task(rig.reads.fetch_all([link(1, 0, 10)]))
    await asyncio.sleep(0)
    rig.reads.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
