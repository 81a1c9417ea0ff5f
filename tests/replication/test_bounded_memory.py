"""What peers name is not kept, and what they ask for is bounded."""

import pytest

from replication.leader import link_planner
from replication.leader.follower_offsets import WatermarkTimes
from replication.leader.link_index import StoredBatch
from rlm.write_path.commit.link_policy import LinkMode
from tests.kafka_log.batches import batch, batches
from tests.replication.fake_led import store
from tests.replication.fetch_frames import partition
from tests.replication.two_agents import Agents, two_agents


async def test_replicas_that_are_no_brokers_of_the_cluster_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[tuple[object, ...]] = []
    monkeypatch.setattr(WatermarkTimes, "fetched", lambda *what: measured.append(what))
    async with two_agents() as agents:
        raw = batches(1, 0)
        agents.append({0: raw})
        follower = await agents.connect(agents.leader_address)
        for replica_id in range(10_000, 10_200):
            assert await follower.fetch({0: 0}, replica_id=replica_id) == follower.expected({0: raw})
        assert set(agents.leader_metrics.traffic.by_follower) == {-1}
        assert {follower_id for _, follower_id in agents.leader_metrics.traffic.by_topic} <= {-1}
        assert agents.led.fetches == []
        assert measured == []


async def test_a_replica_that_is_no_broker_of_the_cluster_is_given_links_all_the_same() -> None:
    """As one of a broker that was added and is not in the settings yet."""
    async with two_agents() as agents:
        raw = batches(1, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}, replica_id=77) == follower.expected({0: raw})
        assert agents.linked_responses == 1


async def test_partitions_that_are_not_led_here_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_agents() as agents:
        monkeypatch.setattr(agents.led, "find", lambda *_: None)
        agents.led.mode = LinkMode.OFF
        follower = await agents.connect()
        for number in range(100):
            await follower.fetch({number: 5})
        (relay,) = agents.leader.relays
        assert relay.core.patience.fetch_offsets == {}


async def test_a_response_of_more_links_than_an_agent_decodes_goes_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_agents() as agents:
        monkeypatch.setattr(link_planner, "MAX_ITEMS", 5)
        follower = await agents.connect()
        few = {number: batches(1, 0) for number in range(2)}
        agents.append(few)
        assert await follower.fetch(dict.fromkeys(few, 0)) == follower.expected(dict(few))
        assert agents.linked_responses == 1
        many = {number: batches(1, 0) for number in range(10, 13)}
        agents.append(many)
        assert await follower.fetch(dict.fromkeys(many, 0)) == follower.expected(dict(many))
        assert agents.linked_responses == 1


def scattered(agents: Agents, raw: bytes, gap_bytes: int) -> None:
    """Store the log's batches with so much between one and the next."""
    segment = agents.store({9: raw})
    (entry,) = agents.storage.entries[segment]
    start, size = entry.start_file_position, len(raw) // 2
    stored = agents.storage.objects[segment]
    between = b"\0" * gap_bytes
    agents.storage.objects[segment] = stored[: start + size] + between + stored[start + size :]
    store(agents.index, partition(0), raw[:size], segment, start)
    store(agents.index, partition(0), raw[size:], segment, start + size + gap_bytes)
    agents.broker.logs[0] = raw


@pytest.mark.parametrize(("gap_bytes", "reads"), [(60_000, 1), (70_000, 2)])
async def test_little_between_two_links_is_read_along_and_much_is_not(gap_bytes: int, reads: int) -> None:
    async with two_agents() as agents:
        raw = batch(0, 1, 0, b"a" * 100) + batch(1, 1, 0, b"b" * 100)
        scattered(agents, raw, gap_bytes)
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert len(agents.storage.fetches) == reads
        assert sum(end - start for _, start, end in agents.storage.fetches) < 2 * len(raw) + 65_536


async def test_two_links_at_the_ends_of_an_endless_object_read_no_more_than_themselves() -> None:
    async with two_agents() as agents:
        raw = batch(0, 1, 0, b"a" * 100) + batch(1, 1, 0, b"b" * 100)
        scattered(agents, raw, 0)
        stored = agents.index.find(partition(0), 1)
        assert stored is not None
        far = StoredBatch(stored.header_prefix, stored.object_id, 2**40, 2**40 + len(raw) // 2)
        agents.index.add(partition(0), [(1, far)])
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})  # inline, as nothing is there
        assert max(end - start for _, start, end in agents.storage.fetches) == len(raw) // 2
