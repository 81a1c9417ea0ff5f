"""Played followers speak to a real leader's proxy; what is measured of many is put together rightly."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from kafka_log.crc32c import Buffer
from perf.fan_out.played_followers import Leader, LinkedRecords, PlayedFollower, PlayedFollowerError
from perf.fan_out.registered_brokers import RegisteredBroker
from perf.fan_out.world import Carried, followers_of, replicas_of, zone_of
from plugin.format.archive_object_id import ArchiveObjectId
from replication.wire.fetch_frame import scan_fetch_request
from replication.wire.kafka_frame import parse_request_header
from replication.wire.link import SegmentLink
from rlm.write_path.commit.link_policy import LinkMode
from tests.kafka_log.batches import batches
from tests.replication.fetch_frames import TOPIC_ID, response
from tests.replication.two_agents import Agents, two_agents

CARRIED = Carried(3, 2, 10.0, 5.0, 1.0, 0.01, 0.1, 100.0, 50.0, 90.0)


def played(agents: Agents, partitions: list[int]) -> PlayedFollower:
    def fetch(link: SegmentLink) -> Buffer:
        assert not isinstance(link.object_id, ArchiveObjectId)
        return agents.storage.fetch_log_segment(link.object_id, link.start_position, link.end_position)

    leader = Leader(1, "cluster", agents.leader_address, "topic", TOPIC_ID)
    return PlayedFollower(RegisteredBroker(2, 7), leader, partitions, LinkedRecords(fetch), lambda: 1000.0)


def asked(agents: Agents, request: int) -> dict[int, int]:
    frame = agents.broker.requests[request]
    view = scan_fetch_request(frame, parse_request_header(frame).api_version)
    assert view.replica_id == 2
    return {one.partition: one.fetch_offset for one in view.partitions}


async def test_a_played_follower_goes_on_behind_what_was_linked() -> None:
    async with two_agents() as agents:
        linked = {0: batches(3, 0, 5), 1: batches(2, 0, 1, 2, b"b" * 900)}
        agents.append(linked)
        follower = played(agents, [0, 1, 2])
        task = asyncio.create_task(follower.follow())
        await agents.until(lambda: len(agents.broker.requests) > 1 and follower.tally.responses > 0)
        task.cancel()
        assert asked(agents, 0) == {0: 0, 1: 0, 2: 0}
        assert asked(agents, 1) == {0: 15, 1: 2}
        assert (follower.tally.linked_bytes, follower.tally.inline_bytes) == (sum(map(len, linked.values())), 0)
        assert len(follower.tally.late_ms) == 2


async def test_a_played_follower_goes_on_behind_what_came_inline() -> None:
    async with two_agents() as agents:
        agents.led.mode = LinkMode.INLINE
        agents.append({0: batches(2, 0, 4)}, stored=False)
        follower = played(agents, [0, 1])
        task = asyncio.create_task(follower.follow())
        await agents.until(lambda: len(agents.broker.requests) > 1)
        task.cancel()
        assert asked(agents, 1) == {0: 8}
        assert (follower.tally.linked_bytes, follower.tally.inline_bytes) == (0, len(agents.broker.logs[0]))


async def test_a_partition_that_the_broker_does_not_know_yet_is_asked_for_again() -> None:
    async with two_agents() as agents:

        def answer(frame: bytes) -> bytes | None:
            header = parse_request_header(frame)
            errors = {0: 6} if len(agents.broker.requests) == 1 else {}
            return response({0: b""}, version=17, correlation_id=header.correlation_id, errors=errors)

        agents.broker.answer = answer
        task = asyncio.create_task(played(agents, [0, 1]).follow())
        await agents.until(lambda: len(agents.broker.requests) > 2)
        task.cancel()
        assert asked(agents, 1) == {0: 0}
        assert asked(agents, 2) == {}


async def test_any_other_error_ends_a_played_follower() -> None:
    async with two_agents() as agents:
        agents.broker.answer = lambda _frame: response({0: b""}, version=17, correlation_id=1, errors={0: 1})
        with pytest.raises(PlayedFollowerError, match="error 1"):
            await played(agents, [0]).follow()


@pytest.mark.parametrize("brokers", [3, 10, 30, 90])
def test_each_partition_has_a_replica_in_each_zone_and_all_other_zones_follow(brokers: int) -> None:
    replicas = replicas_of(brokers, 120)
    assert all([zone_of(one) for one in assigned] == [1, 2, 3] for assigned in replicas)
    counted = Counter(one for assigned in replicas for one in assigned[1:])
    assert sorted(counted) == followers_of(brokers)
    assert max(counted.values()) - min(counted.values()) <= 120 // brokers + 1


def test_a_follower_costs_what_it_adds_to_an_object() -> None:
    more = replace(CARRIED, followers=22, cores=0.3)
    assert CARRIED.cpu_ms_per_object == pytest.approx(10)
    assert more.cpu_ms_per_follower(CARRIED) == pytest.approx(1)
    assert more.cpu_ms_per_follower(None) is None
