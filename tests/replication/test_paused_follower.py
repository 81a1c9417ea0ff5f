"""A follower that stands still for a day, with links in its hands and objects that are deleted meanwhile."""

from prometheus_client import CollectorRegistry

from replication.follower.hydration import HydrationCache, HydrationError
from replication.leader.link_index import LinkIndex
from replication.leader.link_planner import LinkPlanner, PlannerLimits, SendLinked
from replication.wire.fetch_frame import scan_fetch_response
from replication.wire.link import decode_linked_response, encode_linked_response, splice
from replication.wire.metrics import ReplicationMetrics
from rlm.write_path.metrics import StageTimes
from tests.kafka_log.batches import batches
from tests.replication.fake_led import FakeLed, store
from tests.replication.fetch_frames import partition, response
from tests.rlm.lifecycle_world import AgentOfWorld, World

HOUR_MS, DAY_HOURS = 3_600_000, 24
RECORDS = batches(2, 0, 5, 0)
"""As `AgentOfWorld.upload` uploads them."""


async def test_what_a_follower_paused_for_a_day_holds_links_to_is_whole_or_gone_and_then_comes_inline() -> None:
    world = World()
    agent = AgentOfWorld(world)
    await agent.upload(0)
    [segment_id] = world.storage.objects
    index = LinkIndex()
    store(index, partition(0), RECORDS, segment_id)
    planner = LinkPlanner(index, FakeLed(), PlannerLimits(0.5, 100))
    original = response({0: RECORDS})
    planner.begin(original, scan_fetch_response(original, 17), 2)
    verdict = planner.decide(0.0)
    assert isinstance(verdict, SendLinked)
    linked = decode_linked_response(b"".join(map(bytes, encode_linked_response(verdict.response))), 1_000_000)

    # Hour by hour somebody who was paused goes on with the same links, while the leader's agent deletes by retention.
    read = []
    for _ in range(DAY_HOURS):
        registry = CollectorRegistry()
        cache = HydrationCache(world.storage, 10_000, StageTimes(registry), ReplicationMetrics(registry), lambda: 0.0)
        try:
            data = [await cache.fetch(one.object_id, one.start_position, one.end_position) for one in linked.links]
            assert b"".join(map(bytes, splice(linked, data))) == original
            read.append("whole")
        except HydrationError as error:
            read.append(error.reason)
        finally:
            cache.close()
        await agent.live_for(HOUR_MS)
    assert (read[0], read[-1]) == ("whole", "not_found")
    assert set(read) == {"whole", "not_found"}
    assert world.storage.objects == {}

    # The leader's side, which was told when the deletion began, gives no link any more.
    assert agent.unlinked == [segment_id]
    index.drop_object(segment_id)
    planner = LinkPlanner(index, FakeLed(expected=False), PlannerLimits(0.5, 100))
    planner.begin(original, scan_fetch_response(original, 17), 2)
    assert planner.decide(0.0) is None
    agent.close()
