"""Objects in a bucket of each zone: links name them by custom metadata, and each bucket fails by itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from plugin.format.bucket_id import bucket_id
from plugin.segment_metadata import CombinedSegmentId
from plugin.zones.zoned_storage import Bucket, ZoneBuckets, ZonedWalStorageManager
from tests.kafka_log.batches import batches
from tests.replication.two_agents import Agents, two_agents
from tests.rlm.memory_storage import MemoryStorage

ONE, TWO = bucket_id("one"), bucket_id("two")


class TwoBuckets:
    """What the follower's agent reads from: the leader's bucket `one`, and `two`."""

    def __init__(self) -> None:
        self.one, self.two = MemoryStorage(), MemoryStorage()
        self.one.custom_metadata = ONE
        buckets = {ONE: Bucket("one", self.one), TWO: Bucket("two", self.two)}
        self.reads = ZonedWalStorageManager(ZoneBuckets(buckets, TWO, None))


@asynccontextmanager
async def agents_of_two_zones(**changes: Any) -> AsyncIterator[tuple[Agents, TwoBuckets]]:
    """The leader writes to the bucket `one`."""
    buckets = TwoBuckets()
    async with two_agents(storage=buckets.one, read_from=buckets.reads, **changes) as agents:
        yield agents, buckets


async def test_an_object_in_another_zones_bucket_is_announced_linked_and_read_there() -> None:
    async with agents_of_two_zones() as (agents, buckets):
        follower, logs = await agents.connect(), b""
        for offset in range(3):
            agents.append({0: batches(1, offset)})
            assert await follower.fetch({0: offset}) == follower.expected({0: batches(1, offset)})
            logs += batches(1, offset)
        assert agents.linked_responses == 3
        assert len(buckets.one.fetches) == 3
        assert buckets.two.fetches == []


async def test_what_is_in_an_unknown_bucket_goes_inline_is_counted_and_no_more_links_to_it_are_sent() -> None:
    async with agents_of_two_zones() as (agents, buckets):
        follower = await agents.connect()
        buckets.one.custom_metadata = bucket_id("of nobody here")
        for offset in range(4):
            agents.append({0: batches(1, offset)})
            assert await follower.fetch({0: offset}) == follower.expected({0: batches(1, offset)})
        assert buckets.one.fetches == []
        await agents.until(lambda: agents.leader_faults("links_paused") == 1)
        assert agents.follower_faults("inline_requested_unknown_bucket") <= 2
        assert agents.hydration.tiers.given_up == []

        buckets.one.custom_metadata = ONE
        agents.append({0: batches(1, 4)})
        await agents.until(lambda: bool(buckets.one.fetches))
        assert await follower.fetch({0: 4}) == follower.expected({0: batches(1, 4)})
        agents.append({0: batches(1, 5)})
        assert await follower.fetch({0: 5}) == follower.expected({0: batches(1, 5)})
        assert agents.linked_responses >= 1


async def test_a_bucket_that_is_away_pauses_the_links_to_it_alone() -> None:
    async with agents_of_two_zones() as (agents, buckets):
        for sequence in range(3):
            agents.hydration.timed_out([(CombinedSegmentId(2, 1, sequence), TWO)])
        assert agents.hydration.tiers.given_up == ["two"]
        assert agents.hydration.tiers.is_given_up(TWO)
        follower = await agents.connect()
        for offset in range(2):
            agents.append({0: batches(1, offset)})
            assert await follower.fetch({0: offset}) == follower.expected({0: batches(1, offset)})
        assert agents.linked_responses == 2
        assert agents.leader_faults("links_paused") == 0

        for sequence in range(3):
            agents.hydration.timed_out([(CombinedSegmentId(1, 1, sequence), ONE)])
        await agents.until(lambda: agents.leader_faults("links_paused") == 1)
        read = len(buckets.one.fetches)
        agents.append({0: batches(1, 2)})
        assert await follower.fetch({0: 2}) == follower.expected({0: batches(1, 2)})
        assert len(buckets.one.fetches) == read

        agents.now_s += 100  # what is announced next is the probe
        agents.append({0: batches(1, 3)})
        await agents.until(lambda: agents.leader_faults("links_resumed") == 1)
        assert agents.hydration.tiers.given_up == ["two"]


async def test_reads_that_hang_in_one_bucket_leave_the_threads_of_the_others_alone() -> None:
    async with agents_of_two_zones() as (agents, buckets):
        buckets.two.fetch_gate.clear()
        for sequence in range(64):
            agents.hydration.announce(CombinedSegmentId(2, 1, sequence), ((0, 10),), TWO)
        follower = await agents.connect()
        agents.append({0: batches(1, 0)})
        assert await follower.fetch({0: 0}) == follower.expected({0: batches(1, 0)})
        assert agents.linked_responses == 1
        buckets.two.fetch_gate.set()
