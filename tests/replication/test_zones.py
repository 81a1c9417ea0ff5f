"""Who stands in the leader's own zone gets its bytes as in stock Kafka; whose zone is not known does not.

Of other zones, agents by which consumers read count as readers for a while, and one agent reads for the others.
"""

import asyncio
from dataclasses import dataclass

import pytest

from plugin.segment_metadata import CombinedSegmentId
from replication.leader.zones import RemoteReaders, Zones
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import connect_framed, exchange_hellos
from replication.wire.peer_protocol import (
    CAPABILITIES,
    Announcement,
    Hello,
    MessageKind,
    PeerCapabilities,
    ZoneReading,
    in_order,
)
from tests.kafka_log.batches import batches
from tests.replication.fetch_frames import partition, request
from tests.replication.test_relay_core import INLINE, Rig, is_linked, uploaded
from tests.replication.two_agents import PATIENCE_S, Agents, two_agents


def rig_in(own: str | None, followers: str | None) -> Rig:
    rig = Rig(zones=Zones(own))
    rig.context.zones.learned({2: followers})
    return rig


def test_a_follower_in_the_leaders_zone_is_sent_what_is_stored_inline_and_told_of_no_object() -> None:
    rig = rig_in("az1", "az1")
    rig.stored()
    rig.asked()
    assert rig.answered() == INLINE
    assert rig.core.uploaded(uploaded(0)) == []
    assert rig.led.fetches, "that it fetches still tells the load"


def test_a_follower_in_the_leaders_zone_waits_for_no_upload() -> None:
    rig = rig_in("az1", "az1")
    rig.asked()
    assert rig.answered() == INLINE
    assert rig.led.wanted == []
    assert rig.faults("link_wait_timeout") == 0


@pytest.mark.parametrize(("own", "followers"), [("az1", "az2"), ("az1", None), (None, "az1"), (None, None)])
def test_a_follower_elsewhere_or_in_a_zone_that_is_not_known_gets_links(own: str | None, followers: str | None) -> None:
    rig = rig_in(own, followers)
    rig.stored()
    rig.asked()
    is_linked(rig.answered())
    assert rig.core.uploaded(uploaded(0))


def test_a_follower_whose_zone_becomes_known_is_sent_inline_from_the_next_response_on() -> None:
    rig = Rig(zones=Zones("az1"))
    rig.linked()
    rig.context.zones.learned({2: "az1"})
    rig.asked()
    assert rig.answered() == INLINE


def test_a_zone_has_a_replica_where_a_follower_of_the_partition_stands() -> None:
    zones = Zones("az1")
    zones.learned({2: "az2", 3: None})
    zones.set_led({partition(0): frozenset({2, 3}), partition(1): frozenset()})
    assert [zones.has_replica(zone, partition(0)) for zone in ("az2", "az3")] == [True, False]
    assert zones.has_replica("az2", partition(1)) is False
    assert zones.has_replica("az2", partition(2)) is None
    zones.set_led({})
    assert zones.has_replica("az2", partition(0)) is None


def test_a_broker_that_is_away_keeps_its_zone_until_it_comes_back_in_another() -> None:
    zones = Zones("az1")
    zones.learned({2: "az1", 3: "az2"})
    zones.learned({3: "az2"})
    assert zones.is_own(2)
    assert zones.remote(frozenset({2, 3, 4})) == {3, 4}
    zones.learned({2: "az3", 3: "az1"})
    assert zones.remote(frozenset({2, 3, 4})) == {2, 4}
    zones.learned({3: None})
    assert not zones.is_own(3)


def test_a_reader_counts_until_it_has_not_read_for_long() -> None:
    now_s = 0.0
    readers = RemoteReaders(lambda: now_s, keep_s=10.0)
    readers.read(partition(0), 2)
    now_s = 6.0
    readers.read(partition(0), 3)
    assert readers.of(partition(0)) == {2, 3}
    assert readers.of(partition(1)) == frozenset()
    now_s = 10.0
    assert readers.of(partition(0)) == {3}
    readers.read(partition(1), 2)  # what has expired goes, and what has not stays
    assert readers.of(partition(0)) == {3}
    now_s = 16.0
    assert readers.of(partition(0)) == frozenset()


def test_a_reader_that_did_not_count_is_news() -> None:
    now_s, told = 0.0, list[float]()
    readers = RemoteReaders(lambda: now_s, lambda: told.append(now_s), keep_s=10.0)
    for at_s in (1.0, 2.0, 11.0, 22.0):
        now_s = at_s
        readers.read(partition(0), 2)
    readers.read(partition(0), 3)
    assert told == [1.0, 22.0, 22.0]


def test_a_reader_in_the_leaders_own_zone_crosses_no_border() -> None:
    readers = RemoteReaders(lambda: 0.0)
    zones = Zones("az1", readers)
    zones.learned({2: "az1", 3: "az3"})
    readers.read(partition(0), 2)
    readers.read(partition(0), 3)
    assert zones.find_elsewhere(partition(0), frozenset({2})) == {3}


SHARING = CAPABILITIES | PeerCapabilities.SHARED_READS
NEXT = {0: batches(1, base_offset=1), 1: batches(1, base_offset=1)}


@dataclass
class Reader:
    broker_id: int
    connection: FramedConnection
    channel: PeerChannel

    async def message(self) -> tuple[MessageKind, bytes]:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.channel.receive()
        assert message is not None
        return message[0], bytes(message[1])

    async def follow(self, partition: int) -> None:
        self.channel.send(MessageKind.KAFKA, request({partition: 0}, replica_id=self.broker_id))
        while (await self.message())[0] not in (MessageKind.KAFKA, MessageKind.LINKED):
            pass


async def reader_of(agents: Agents, broker_id: int, partition: int, capabilities: PeerCapabilities = SHARING) -> Reader:
    connection = await connect_framed(agents.leader_address, FramedConnection())
    await exchange_hellos(connection, Hello("cluster", broker_id, 22, capabilities), 1)
    reader = Reader(broker_id, connection, PeerChannel(connection))
    await reader.follow(partition)
    return reader


def zones() -> Zones:
    made = Zones("az1")
    made.learned({2: "az2", 3: "az2", 4: "az2", 5: "az3"})
    return made


async def told(
    agents: Agents, *readers: Reader
) -> tuple[CombinedSegmentId, list[tuple[ZoneReading | None, Announcement]]]:
    segment_id = agents.store(NEXT)
    found: list[tuple[ZoneReading | None, Announcement]] = []
    for reader in readers:
        kind, body = await reader.message()
        zone, rest = ZoneReading.decode(body) if kind is MessageKind.ANNOUNCE_SHARED else (None, body)
        found.append((zone, Announcement.decode(rest)))
    return segment_id, found


async def test_the_readers_of_a_zone_are_told_of_each_other_and_who_reads_alone_is_not() -> None:
    hello = Hello("cluster", 1, 11, SHARING)
    async with two_agents(leader_hello=hello, zones=zones(), shares_reads=True, range_gap_bytes=0) as agents:
        agents.append({0: batches(1), 1: batches(1)})
        second, third = await reader_of(agents, 2, 0), await reader_of(agents, 3, 1)
        alone = await reader_of(agents, 5, 1)
        old, older = await reader_of(agents, 4, 0, CAPABILITIES), await reader_of(agents, 2, 0, CAPABILITIES)
        readers = second, third, alone, old, older
        segment_id, [(zone, first), (same, other), *others] = await told(agents, *readers)
        assert zone == same == ZoneReading(in_order(segment_id, [2, 3]), ((first.ranges[0][0], other.ranges[0][1]),))
        assert [none for none, _ in others] == [None, None, None]
        assert first.ranges != other.ranges


async def test_who_has_gone_or_paused_links_is_not_told_to_read_for_others() -> None:
    hello = Hello("cluster", 1, 11, SHARING)
    async with two_agents(leader_hello=hello, zones=zones(), shares_reads=True) as agents:
        agents.append({0: batches(1), 1: batches(1)})
        second, third, fourth = [await reader_of(agents, one, 0) for one in (2, 3, 4)]
        segment_id, [(zone, _), _, _] = await told(agents, second, third, fourth)
        assert zone is not None
        assert zone.readers == in_order(segment_id, [2, 3, 4])
        fourth.connection.close()
        await agents.until(lambda: len(agents.leader.relays) == 2)
        segment_id, [(zone, _), _] = await told(agents, second, third)
        assert zone is not None
        assert zone.readers == in_order(segment_id, [2, 3])
        third.channel.send(MessageKind.LINKS_PAUSED)
        await agents.until(lambda: agents.leader_faults("links_paused") == 1)
        assert [zone for zone, _ in (await told(agents, second, third))[1]] == [None, None]


async def test_where_it_is_off_each_is_told_of_its_own_ranges_alone() -> None:
    async with two_agents(leader_hello=Hello("cluster", 1, 11, SHARING), zones=zones()) as agents:
        agents.append({0: batches(1), 1: batches(1)})
        second, third = await reader_of(agents, 2, 0), await reader_of(agents, 3, 0)
        assert [zone for zone, _ in (await told(agents, second, third))[1]] == [None, None]
