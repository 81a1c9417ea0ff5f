"""Hydration: each byte once, within bounds, and a store that fails is left alone for a while."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from agent.metrics.paused import Paused
from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.errors import RemoteStorageTimeoutError
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import CombinedSegmentId
from replication.follower.hydration import HydrationCache, HydrationError
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker
from replication.wire.link import SegmentLink
from replication.wire.metrics import ReplicationMetrics
from rlm.write_path.metrics import StageTimes
from tests.metric_values import metric_value
from tests.rlm.memory_storage import MemoryStorage

BREAKER = BreakerLimits(failures_to_open=3, open_s=1.0, open_max_s=4.0)


ARCHIVED = ArchiveObjectId(TopicIdPartition(TopicId(b"t" * 16), 0), 0, 9, CombinedSegmentId(1, 1, 0))


class ArchiveRig:
    def __init__(self) -> None:
        self.fails = False

    async def fetch(self, object_id: ArchiveObjectId, start_position: int, end_position: int) -> bytes:
        if self.fails:
            raise RemoteStorageTimeoutError("get", str(object_id), "planted")
        return bytes(range(start_position, end_position))


def segment(number: int) -> CombinedSegmentId:
    return CombinedSegmentId(1, 1, number)


class Rig:
    def __init__(self, cache_bytes: int = 1000) -> None:
        self.storage, self.now_s = MemoryStorage(), 50.0
        for number in range(10):
            self.storage.objects[segment(number)] = bytes(range(200))
        registry = CollectorRegistry()
        self.metrics = ReplicationMetrics(registry)
        self.archive: ArchiveRig | None = ArchiveRig()
        self.cache = HydrationCache(
            self.storage,
            cache_bytes,
            StageTimes(registry),
            self.metrics,
            clock=lambda: self.now_s,
            archive=lambda: self.archive,
            breaker=BREAKER,
        )
        self.told: list[bool] = []
        self.cache.tiers.on_breaker_change.append(self.told.append)

    async def fetch(self, number: int, start: int = 0, end: int = 100) -> bytes:
        return bytes(await asyncio.wait_for(self.cache.fetch(segment(number), start, end), 60))

    async def refused(self, number: int) -> str:
        with pytest.raises(HydrationError) as caught:
            await self.fetch(number)
        return caught.value.reason

    async def archive_refused(self) -> str:
        with pytest.raises(HydrationError) as caught:
            await asyncio.wait_for(self.cache.fetch(ARCHIVED, 0, 100), 60)
        return caught.value.reason

    def faults(self, reason: str) -> float:
        return metric_value(self.metrics.faults.labels(reason))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    yield made
    made.storage.fetch_gate.set()
    made.cache.close()


async def test_what_is_cached_or_on_its_way_is_not_read_again(rig: Rig) -> None:
    rig.storage.fetch_gate.clear()
    rig.cache.announce(segment(0), ((0, 100),))
    waiting = [asyncio.create_task(rig.fetch(0, start, start + 10)) for start in (0, 30, 90)]
    await asyncio.sleep(0)
    rig.storage.fetch_gate.set()
    assert await asyncio.gather(*waiting) == [bytes(range(start, start + 10)) for start in (0, 30, 90)]
    assert await rig.fetch(0) == bytes(range(100))
    assert rig.storage.fetches == [(segment(0), 0, 100)]
    assert await rig.fetch(0, 50, 150) == bytes(range(50, 150))
    assert len(rig.storage.fetches) == 2


async def test_bytes_that_several_reads_brought_are_put_together_and_not_read_again(rig: Rig) -> None:
    rig.storage.fetch_gate.clear()
    rig.cache.announce(segment(0), ((0, 60), (60, 130), (130, 140)))
    rig.cache.announce(segment(0), ((150, 200),))
    waiting = asyncio.create_task(rig.fetch(0, 20, 135))
    await asyncio.sleep(0)
    rig.storage.fetch_gate.set()
    assert await waiting == bytes(range(20, 135))
    assert await rig.fetch(0, 60, 130) == bytes(range(60, 130))
    assert await rig.fetch(0, 150, 200) == bytes(range(150, 200))
    assert len(rig.storage.fetches) == 4
    assert await rig.fetch(0, 120, 160) == bytes(range(120, 160))  # 140 to 150 was not read
    assert rig.storage.fetches[-1] == (segment(0), 120, 160)


async def test_of_bytes_that_are_put_together_one_read_that_fails_fails_all(rig: Rig) -> None:
    await rig.fetch(0, 0, 60)
    rig.storage.fetches_fail = True
    rig.storage.fetch_gate.clear()
    rig.cache.announce(segment(0), ((60, 130),))
    waiting = asyncio.create_task(rig.refused(0))
    await asyncio.sleep(0)
    rig.storage.fetch_gate.set()
    assert await waiting == "timeout"
    assert await rig.fetch(0, 10, 50) == bytes(range(10, 50))


@given(st.lists(st.tuples(st.integers(0, 199), st.integers(1, 200)).map(lambda at: (at[0], min(at[0] + at[1], 200)))))
def test_whatever_was_read_before_a_range_has_the_objects_bytes(reads: list[tuple[int, int]]) -> None:
    async def read_all() -> None:
        rig = Rig(cache_bytes=250)
        for start, end in reads:
            assert await rig.fetch(0, start, end) == bytes(range(start, end))
            assert rig.cache.ranges.size_bytes <= 250
        rig.cache.close()

    asyncio.run(read_all())


async def test_one_caller_that_gives_up_does_not_take_the_read_from_the_others(rig: Rig) -> None:
    rig.storage.fetch_gate.clear()
    impatient, patient = asyncio.create_task(rig.fetch(0)), asyncio.create_task(rig.fetch(0))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.sleep(0)
    rig.storage.fetch_gate.set()
    assert await patient == bytes(range(100))
    assert len(rig.storage.fetches) == 1


async def test_the_cache_is_bounded_and_the_oldest_segments_go_first(rig: Rig) -> None:
    for number in range(10):
        await rig.fetch(number, 0, 200)
    assert rig.cache.ranges.size_bytes <= 1000
    count = len(rig.storage.fetches)
    await rig.fetch(9, 0, 200)
    assert len(rig.storage.fetches) == count
    await rig.fetch(0, 0, 200)
    assert len(rig.storage.fetches) == count + 1


async def test_one_large_object_stays_within_the_bounds_its_oldest_ranges_go_first(rig: Rig) -> None:
    rig.storage.objects[segment(0)] = bytes(200) * 20
    for start in range(0, 4000, 200):
        await rig.fetch(0, start, start + 200)
    assert rig.cache.ranges.size_bytes == 1000
    assert not rig.cache.ranges.find_missing(segment(0), 3000, 4000)
    assert rig.cache.ranges.find_missing(segment(0), 2999, 3001)


async def test_announcements_beyond_the_budget_are_let_go(rig: Rig) -> None:
    rig.storage.fetch_gate.clear()
    rig.cache.announce(segment(0), ((0, 200), (200, 400), (400, 600)))
    rig.cache.announce(segment(1), ((0, 2**32 - 1),))
    assert rig.cache.in_flight_bytes == 400
    assert metric_value(rig.metrics.faults.labels("announcement_over_budget")) == 2
    rig.storage.fetch_gate.set()


async def test_wrong_bytes_are_discarded_and_read_anew(rig: Rig) -> None:
    rig.storage.corrupt = lambda data: b"\xff" * len(data)
    assert await rig.fetch(0) == b"\xff" * 100
    rig.storage.corrupt = None
    rig.cache.discard_wrong(SegmentLink(segment(0), 0, 100, 0))
    assert await rig.fetch(0) == bytes(range(100))
    assert rig.cache.ranges.size_bytes == 100


async def test_a_failed_read_is_told_and_not_remembered(rig: Rig) -> None:
    rig.storage.fetches_fail = True
    assert await rig.refused(0) == "timeout"
    rig.storage.fetches_fail = False
    assert await rig.fetch(0) == bytes(range(100))


async def test_a_store_that_keeps_failing_is_left_alone_and_probed_now_and_then(rig: Rig) -> None:
    rig.storage.fetches_fail = True
    for number in range(3):
        await rig.refused(number)
    assert rig.told == [True]
    assert rig.cache.tiers.paused == {"": True}
    assert await rig.refused(3) == "breaker_open"
    assert len(rig.storage.fetches) == 3
    rig.now_s += 1.0
    assert await rig.refused(3) == "timeout"  # the probe
    rig.now_s += 1.9  # the wait has doubled
    assert await rig.refused(3) == "breaker_open"
    rig.now_s += 0.1
    rig.storage.fetches_fail = False
    rig.cache.announce(segment(4), ((0, 10), (20, 30)))  # the first is the probe
    async with asyncio.timeout(60):
        while rig.told != [True, False]:  # noqa: ASYNC110 - the callback is what is under test
            await asyncio.sleep(0)
    assert rig.cache.tiers.paused == {"": False}
    assert len(rig.storage.fetches) == 5
    assert await rig.fetch(5) == bytes(range(100))


async def test_an_archive_that_keeps_failing_is_left_alone_and_told_of_and_combined_segments_are_read_all_the_same(
    rig: Rig,
) -> None:
    assert rig.archive is not None
    rig.archive.fails = True
    assert [await rig.archive_refused() for _ in range(4)] == ["timeout"] * 3 + ["breaker_open"]
    assert rig.faults("archive_reads_paused") == 1
    assert await rig.fetch(0) == bytes(range(100))
    paused, _links = Paused(rig.cache.tiers, None).collect()
    assert {sample.labels["store"]: sample.value for sample in paused.samples} == {"wal": 0, "archive": 1}
    assert await rig.archive_refused() == "breaker_open"
    rig.archive.fails = False
    rig.now_s += 1.0
    assert bytes(await rig.cache.fetch(ARCHIVED, 3, 7)) == bytes(range(3, 7))
    assert rig.faults("archive_reads_resumed") == 1
    assert rig.told == []


async def test_without_an_archive_its_objects_are_refused_and_soon_not_asked_for(rig: Rig) -> None:
    rig.archive = None
    assert [await rig.archive_refused() for _ in range(4)] == ["no_archive"] * 3 + ["breaker_open"]


async def test_objects_that_are_gone_are_no_sign_of_a_store_that_fails(rig: Rig) -> None:
    for number in range(100, 110):
        assert await rig.refused(number) == "not_found"
    assert rig.told == []


async def test_callers_that_time_out_open_the_breaker_too(rig: Rig) -> None:
    for _ in range(3):
        rig.cache.timed_out([(segment(0), b"")])
    assert rig.told == [True]
    assert await rig.refused(0) == "breaker_open"


@given(st.lists(st.tuples(st.sampled_from(["ok", "fail"]), st.sampled_from([0.0, 0.5, 1.0, 5.0])), max_size=40))
def test_the_breaker_lets_no_more_than_one_probe_through_in_each_wait(script: list[tuple[str, float]]) -> None:
    breaker, now_s = CircuitBreaker(BREAKER), 0.0
    last_probe_s, failures = float("-inf"), 0
    for outcome, wait_s in script:
        now_s += wait_s
        was_open = breaker.is_open
        if not breaker.allows(now_s):
            assert was_open
            continue
        if was_open:
            assert now_s - last_probe_s >= BREAKER.open_s
            last_probe_s = now_s
        if outcome == "ok":
            assert breaker.succeeded() == was_open
            failures = 0
        else:
            failures += 1
            opened = breaker.failed(now_s)
            assert opened == (not was_open and failures == 3)
            if opened:
                last_probe_s = now_s
        assert breaker.is_open == (failures >= 3)
