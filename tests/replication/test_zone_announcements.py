"""Whom of a zone the leader's agent tells to read an object for the others."""

import asyncio
from dataclasses import dataclass

from plugin.segment_metadata import CombinedSegmentId
from replication.leader.zones import Zones
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import connect_framed, exchange_hellos
from replication.wire.peer_protocol import CAPABILITIES, Announcement, Hello, MessageKind, PeerCapabilities
from replication.wire.shared_reads import ZoneReading, in_order
from tests.kafka_log.batches import batches
from tests.replication.fetch_frames import request
from tests.replication.two_agents import PATIENCE_S, Agents, two_agents

SHARING = CAPABILITIES | PeerCapabilities.SHARED_READS
NEXT = {0: batches(1, base_offset=1), 1: batches(1, base_offset=1)}


@dataclass
class Reader:
    """A follower's agent, by its messages."""

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
    """Of the next object."""
    segment_id = agents.store(NEXT)
    found: list[tuple[ZoneReading | None, Announcement]] = []
    for reader in readers:
        kind, body = await reader.message()
        zone, rest = ZoneReading.decode(body) if kind is MessageKind.ANNOUNCE_SHARED else (None, body)
        found.append((zone, Announcement.decode(rest)))
    return segment_id, found


async def test_the_readers_of_a_zone_are_told_of_each_other_and_who_reads_alone_is_not() -> None:
    hello = Hello("cluster", 1, 11, SHARING)
    async with two_agents(leader_hello=hello, zones=zones(), share_min_readers=2, range_gap_bytes=0) as agents:
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
    async with two_agents(leader_hello=hello, zones=zones(), share_min_readers=2) as agents:
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
