"""What becomes of objects where topic, store and clock are late, wrong, or another's: nothing wanted goes."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED
from metadata_topic.store.archive.archive_store import ArchiveStore
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.lifecycle.expiration import DELETE_THREADS
from rlm.lifecycle.orphans import HealingLimits, Kind, MetadataBehindError, skipped_because
from rlm.lifecycle.release import ClusterView
from rlm.write_path.reading.resume_point import LedLog, resume_of
from tests.metric_values import metric_value
from tests.rlm.lifecycle_world import (
    BROKER,
    GRACE_MS,
    PARTITION,
    RETENTION_MS,
    START_MS,
    TOPIC,
    TTL_MS,
    AgentOfWorld,
    World,
)
from tests.rlm.memory_storage import FAIL_AFTER, FAIL_BEFORE


async def whole_life(agent: AgentOfWorld) -> None:
    await agent.upload(0)
    await agent.upload(10)
    await agent.live_for(RETENTION_MS + GRACE_MS + 100_000)


def assert_nothing_is_left(world: World) -> None:
    agent = AgentOfWorld(world)
    try:
        assert world.storage.objects == {}
        totals = agent.store.count_by_state()
        assert {state: totals[state].segments for state in (STARTED, FINISHED, DELETING)} == {
            STARTED: 0, FINISHED: 0, DELETING: 0
        }  # fmt: skip
        assert agent.orphans.compare([BROKER])[BROKER].disagreements == ()
    finally:
        agent.close()


async def finish(world: World) -> None:
    """A new incarnation, which lives long."""
    agent = AgentOfWorld(world)
    try:
        world.now_ms += TTL_MS
        agent.heal()
        await agent.live_for(TTL_MS + RETENTION_MS + 2 * GRACE_MS)
    finally:
        agent.close()
    assert_nothing_is_left(world)


async def test_an_object_whose_records_were_all_lost_with_the_publishers_queue_is_an_orphan_and_goes() -> None:
    world = World()
    agent = AgentOfWorld(world)
    agent.publisher.holds = True
    await agent.upload(0)
    agent.close()
    agent = AgentOfWorld(world)
    assert agent.orphans.compare([BROKER])[BROKER].young == 1
    world.now_ms += TTL_MS
    [found] = agent.orphans.compare([BROKER])[BROKER].disagreements
    assert found.kind is Kind.UNKNOWN
    agent.close()
    await finish(world)


async def test_an_object_whose_records_stand_unread_in_the_topic_is_no_orphan_however_old_it_is() -> None:
    world = World()
    agent = AgentOfWorld(world)
    agent.publisher.is_read_late = True
    await agent.upload(0)
    world.now_ms += 2 * TTL_MS

    def read_on() -> bool:
        for record in world.topic:
            agent.store.apply(record)
        return True

    assert agent.orphans.compare([BROKER])[BROKER].disagreements != ()
    agent.read_to_end = read_on
    assert agent.orphans.compare([BROKER])[BROKER].disagreements == ()
    agent.close()


async def test_a_segment_whose_deletion_by_another_agent_stands_unread_in_the_topic_is_not_lost() -> None:
    world = World()
    agent, other = AgentOfWorld(world), AgentOfWorld(world, registers=False)
    await agent.upload(0)
    for record in world.topic:
        other.store.apply(record)
    await other.live_for(RETENTION_MS + 2 * GRACE_MS)
    assert world.storage.objects == {}

    def read_on() -> bool:
        for record in world.topic:
            agent.store.apply(record)
        return True

    agent.read_to_end = read_on
    assert agent.orphans.compare([BROKER])[BROKER].disagreements == ()
    agent.close()
    other.close()


async def test_nothing_is_said_of_a_listing_while_the_metadata_cannot_be_read_to_its_end() -> None:
    world = World()
    agent = AgentOfWorld(world)
    agent.publisher.is_read_late = True
    await agent.upload(0)
    world.now_ms += 2 * TTL_MS
    agent.read_to_end = lambda: False
    with pytest.raises(MetadataBehindError) as behind:
        agent.orphans.compare([BROKER])
    assert skipped_because(behind.value) == "metadata_behind"
    agent.close()


async def test_an_upload_of_this_very_agent_is_no_orphan_while_its_metadata_waits_to_be_published() -> None:
    world = World()
    agent = AgentOfWorld(world)
    agent.publisher.is_read_late = True
    await agent.upload(0)
    agent.combine._uploading.add(0)
    world.now_ms += 2 * TTL_MS
    comparison = agent.orphans.compare([BROKER])[BROKER]
    assert (comparison.young, comparison.disagreements) == (1, ())
    agent.close()


@pytest.mark.parametrize("can_read", [True, False])
async def test_an_upload_whose_end_stands_unread_in_the_topic_is_not_taken_for_uncommitted(can_read: bool) -> None:
    world = World()
    agent = AgentOfWorld(world)
    agent.planner.cluster_seen(ClusterView(frozenset({TOPIC})))
    agent.publisher.is_read_late = True
    await agent.upload(0)
    agent.store.apply(world.topic[1])

    def read_on() -> bool:
        for record in world.topic if can_read else []:
            agent.store.apply(record)
        return can_read

    agent.read_to_end = read_on
    await agent.live_for(2 * TTL_MS)
    assert len(world.topic) == 3
    assert len(world.storage.objects) == 1
    agent.close()


async def test_an_upload_whose_end_is_not_acknowledged_is_not_uncommitted_though_the_clock_jumps() -> None:
    world = World()
    agent = AgentOfWorld(world)
    agent.planner.cluster_seen(ClusterView(frozenset({TOPIC})))
    agent.publisher.waits = True
    await agent.upload(0)
    started, *_ = agent.publisher.waiting
    agent.store.apply(started)
    await agent.live_for(2 * TTL_MS)
    assert len(agent.publisher.waiting) == 2, "no deletion is begun"
    agent.publisher.acknowledge()
    await agent.live_for(2 * TTL_MS)
    assert len(world.storage.objects) == 1
    agent.close()


async def test_an_upload_whose_end_is_acknowledged_behind_what_was_read_is_no_orphan_though_the_clock_jumps() -> None:
    world = World()
    agent = AgentOfWorld(world)
    agent.publisher.waits = agent.publisher.is_read_late = True
    await agent.upload(0)

    def read_and_then_acknowledge() -> bool:
        agent.publisher.acknowledge()
        return True

    agent.read_to_end = read_and_then_acknowledge
    world.now_ms += 2 * TTL_MS
    comparison = agent.orphans.compare([BROKER])[BROKER]
    assert (comparison.young, comparison.disagreements) == (1, ())
    agent.close()


async def test_a_segment_that_somebody_else_deleted_is_told_and_forgotten() -> None:
    world = World()
    agent = AgentOfWorld(world)
    await agent.upload(0)
    world.storage.objects.clear()
    [found] = agent.orphans.compare([BROKER])[BROKER].disagreements
    assert found.kind is Kind.LOST
    agent.heal()
    assert agent.store.state_of(found.object_id) is DELETED
    assert agent.store.entries_covering(PARTITION, 0) == []
    agent.close()
    assert_nothing_is_left(world)


async def test_the_records_of_an_object_that_somebody_else_deleted_are_uploaded_again() -> None:
    world = World()
    agent = AgentOfWorld(world)
    for first_offset in (0, 10, 20):
        await agent.upload(first_offset)
    [_, lost, _] = world.storage.objects
    log = LedLog(PARTITION, LeaderEpochs([(0, 0)]), [0])
    assert resume_of(agent.store, ArchiveStore(), log).missing == ()
    del world.storage.objects[lost]
    agent.heal()
    assert resume_of(agent.store, ArchiveStore(), log).missing == ((10, 20),)
    agent.close()


async def test_links_end_when_the_deletion_starts_and_the_object_is_there_for_the_grace_time() -> None:
    world = World()
    agent = AgentOfWorld(world)
    await agent.upload(0)
    [segment_id] = world.storage.objects
    world.now_ms += RETENTION_MS
    await agent.expiration.run_once()
    assert agent.unlinked == [segment_id]
    world.now_ms += GRACE_MS - 1
    await agent.expiration.run_once()
    assert segment_id in world.storage.objects
    world.now_ms += 1
    await agent.expiration.run_once()
    assert world.storage.objects == {}
    agent.close()


async def test_an_object_stays_until_the_topic_tells_that_its_deletion_was_started() -> None:
    # its deletion is started, and the record waits in the publisher's queue for longer than the grace time -> the agent
    # dies with it -> the object is there, as the topic says
    world = World()
    agent = AgentOfWorld(world)
    await agent.upload(0)
    agent.publisher.holds = True
    await agent.live_for(RETENTION_MS + 4 * GRACE_MS)
    agent.close()
    successor = AgentOfWorld(world)
    assert successor.store.count_by_state()[FINISHED].segments == len(world.storage.objects) == 1
    successor.close()
    await finish(world)


@pytest.mark.parametrize("fault", [FAIL_BEFORE, FAIL_AFTER])
async def test_a_deletion_that_failed_or_whose_outcome_is_unknown_is_made_again(fault: str) -> None:
    world = World()
    agent = AgentOfWorld(world)
    world.storage.delete_faults = [fault, fault]
    await whole_life(agent)
    assert metric_value(agent.metrics.deletion_failures.labels("timeout")) == 2
    agent.close()
    assert_nothing_is_left(world)


async def test_one_run_deletes_what_a_busy_agent_makes_until_the_next_one() -> None:
    world = World()
    agent = AgentOfWorld(world)
    for number in range(500):  # a hundred a second, and a run every five
        await agent.upload(10 * number)
    world.now_ms += RETENTION_MS
    await agent.expiration.run_once()
    world.now_ms += GRACE_MS
    await agent.expiration.run_once()
    assert not world.storage.objects
    agent.close()


def _wanted_again(agent: AgentOfWorld) -> None:
    agent.planner.cluster_seen(ClusterView(frozenset({TOPIC})))


def _out_of_care(agent: AgentOfWorld) -> None:
    agent.in_care.clear()


@pytest.mark.parametrize("change", [_wanted_again, _out_of_care])
async def test_what_is_not_to_go_by_the_time_a_slow_store_has_a_thread_for_it_stays(
    change: Callable[[AgentOfWorld], None],
) -> None:
    world = World()
    agent = AgentOfWorld(world)
    for number in range(10):
        await agent.upload(10 * number)
    world.now_ms += RETENTION_MS
    await agent.expiration.run_once()
    world.now_ms += GRACE_MS
    world.storage.delete_gate.clear()
    deleting = asyncio.create_task(agent.expiration.run_once())
    for _ in range(DELETE_THREADS):
        assert await asyncio.to_thread(world.storage.deletes_begun.acquire, timeout=10)
    change(agent)
    world.storage.delete_gate.set()
    await deleting
    assert len(world.storage.objects) == 10 - DELETE_THREADS
    agent.close()


async def test_after_a_restart_the_object_itself_says_how_old_it_is() -> None:
    world = World()
    agent = AgentOfWorld(world)
    await agent.upload(0)
    world.now_ms += RETENTION_MS
    await agent.expiration.run_once()
    agent.close()
    agent = AgentOfWorld(world)
    await agent.live_for(GRACE_MS)
    assert world.storage.objects == {}
    agent.close()


async def orphans_of_an_agent_that_is_known(world: World, objects: int) -> AgentOfWorld:
    """Another agent, which finds so many objects of the one before without their records."""
    agent = AgentOfWorld(world)
    agent.publisher.holds = True
    for number in range(objects):
        await agent.upload(10 * number)
    agent.close()
    world.now_ms += TTL_MS
    return AgentOfWorld(world)


async def test_where_healing_would_delete_more_than_a_small_share_nothing_is_healed_unless_it_is_confirmed() -> None:
    world = World()
    agent = await orphans_of_an_agent_that_is_known(world, HealingLimits().min_objects + 1)
    [comparison] = agent.orphans.compare([BROKER]).values()
    assert "101 of 101 objects" in comparison.doubt
    before = len(world.topic)
    agent.heal()
    agent.heal("100-objects-44000-bytes")
    assert len(world.topic) == before
    agent.heal(comparison.amount)
    await agent.live_for(2 * GRACE_MS)
    assert world.storage.objects == {}
    agent.close()


async def test_a_few_objects_whose_writer_is_not_known_either_wait_for_a_word() -> None:
    world = World()
    agent = AgentOfWorld(world)
    await agent.upload(0)
    agent.close()
    world.topic.clear()
    world.now_ms += TTL_MS
    agent = AgentOfWorld(world)
    [comparison] = agent.orphans.compare([BROKER]).values()
    assert (comparison.doubt, comparison.heals_by_itself) == ("", ())
    assert [found.kind for found in comparison.waiting] == [Kind.UNKNOWN]
    agent.heal()
    await agent.live_for(10 * GRACE_MS)
    assert len(world.storage.objects) == 1
    agent.close()


async def test_nothing_is_healed_while_the_topic_is_doubted() -> None:
    world = World()
    agent = await orphans_of_an_agent_that_is_known(world, 1)
    agent.topic_doubt = "it began anew"
    agent.heal()
    await agent.live_for(10 * GRACE_MS)
    assert len(world.storage.objects) == 1
    agent.topic_doubt = ""
    agent.heal()
    await agent.live_for(10 * GRACE_MS)
    assert world.storage.objects == {}
    agent.close()


async def test_a_late_finished_record_of_an_orphan_being_deleted_holds_it_while_its_records_are_wanted() -> None:
    world = World()
    agent = AgentOfWorld(world)
    agent.planner.cluster_seen(ClusterView(frozenset({TOPIC})))
    agent.publisher.holds = True
    await agent.upload(0)
    agent.publisher.holds = False
    [segment_id] = world.storage.objects
    world.now_ms += TTL_MS
    agent.heal()
    last = world.topic[-1]
    assert isinstance(last, RemoteWalCombinedLogSegmentMetadata)
    finished = replace(
        last,
        state=FINISHED,
        entries=(RemoteLogSegmentMetadataEntry(PARTITION, 0, 0, 9, 112, 500, 1),),
        event_timestamp_ms=START_MS,
    )
    agent.store.apply(finished)
    await agent.live_for(10 * GRACE_MS)
    assert segment_id in world.storage.objects
    agent.close()


async def test_an_upload_that_is_under_way_is_left_alone_however_long_it_takes() -> None:
    world = World()
    agent = AgentOfWorld(world)
    assert not agent.combine.is_under_way(CombinedSegmentId(BROKER, world.incarnation, 0))
    agent.combine._uploading.add(0)
    started = CombinedSegmentId(BROKER, world.incarnation, 0)
    assert agent.combine.is_under_way(started)
    assert not agent.combine.is_under_way(started._replace(incarnation=99))
    agent.close()


async def test_while_the_store_reads_late_nothing_is_deleted_twice_and_nothing_is_called_lost() -> None:
    world = World()
    agent = AgentOfWorld(world)
    await agent.upload(0)
    await agent.live_for(RETENTION_MS)
    agent.publisher.is_read_late = True
    await agent.live_for(4 * GRACE_MS)
    assert [record.state for record in world.topic if isinstance(record, RemoteWalCombinedLogSegmentMetadata)] == [
        STARTED, FINISHED, DELETING, DELETED
    ]  # fmt: skip
    assert agent.orphans.compare([BROKER])[BROKER].disagreements == ()
    for record in world.topic:
        agent.store.apply(record)
    await agent.expiration.run_once()
    assert not agent.planner.is_being_deleted(CombinedSegmentId(BROKER, world.incarnation, 0))
    agent.close()
