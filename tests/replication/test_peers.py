"""Who may connect, and what becomes of peers that are strangers, older, broken, or away."""

import asyncio
import struct

import pytest

from plugin.segment_metadata import CombinedSegmentId
from replication.follower.hydration import HydrationError
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import connect_framed, exchange_hellos
from replication.wire.peer_protocol import (
    Hello,
    MessageKind,
    PeerRefusedError,
    encode_inline_request,
)
from tests.kafka_log.batches import batches
from tests.replication.two_agents import Agents, framed, two_agents


async def test_a_peer_without_a_hello_gets_everything_inline() -> None:
    async with two_agents() as agents:
        raw = batches(2, 0)
        agents.append({0: raw})
        plain = await agents.connect(agents.leader_address)
        assert await plain.fetch({0: 0}) == plain.expected({0: raw})
        agents.append({0: batches(1, 2)})  # no announcement comes between
        assert await plain.fetch({0: 2}) == plain.expected({0: batches(1, 2)})
        assert agents.linked_responses == 0


async def test_an_agent_of_another_version_gets_everything_inline() -> None:
    async with two_agents(follower_hello=Hello("cluster", 2, 22, version=2)) as agents:
        raw = batches(2, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        agents.append({0: batches(1, 2)})
        for _ in range(3):
            agents.hydration.timed_out([(CombinedSegmentId(1, 1, 0), b"")])
        await agents.until(lambda: agents.leader_faults("links_paused") == 1)
        agents.now_s += 100
        with pytest.raises(HydrationError):  # that it is not there is an answer
            await agents.hydration.fetch(CombinedSegmentId(9, 9, 9), 0, 1)
        await agents.until(lambda: agents.leader_faults("links_resumed") == 1)
        assert await follower.fetch({0: 2}) == follower.expected({0: batches(1, 2)})
        assert agents.linked_responses == 0
        assert agents.storage.fetches == [(CombinedSegmentId(9, 9, 9), 0, 1)]


async def test_agents_of_two_versions_tell_of_each_other_until_both_are_of_one() -> None:
    async with two_agents(follower_hello=Hello("cluster", 2, 22, version=2)) as agents:
        raw = batches(2, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        assert agents.leader_metrics.held.versions.others == {2: 2}
        assert agents.follower_metrics.held.versions.others == {1: 1}
        gauge = "remote_wal_peers_of_another_version"
        assert agents.follower_metrics.registry.get_sample_value(gauge) == 1
        connection, _ = await agent_connection(agents)  # its upgraded agent
        connection.close()
        assert agents.leader_metrics.held.versions.others == {}
        await agents.follower.leave(1)
        assert agents.follower_metrics.registry.get_sample_value(gauge) == 0


async def test_another_clusters_agent_is_refused() -> None:
    async with two_agents(follower_hello=Hello("other", 2, 22)) as agents:
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) is None
        assert agents.broker.requests == []
        assert agents.leader_faults("peer_refused") == 1


async def test_an_agent_of_another_broker_than_dialled_is_refused() -> None:
    async with two_agents(leader_hello=Hello("cluster", 3, 11)) as agents:
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) is None
        assert agents.follower_faults("peer_refused") == 1


async def agent_connection(agents: Agents) -> tuple[FramedConnection, PeerChannel]:
    connection = await connect_framed(agents.leader_address, FramedConnection())
    await exchange_hellos(connection, Hello("cluster", 2, 22), expected_broker_id=1)
    return connection, PeerChannel(connection)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (MessageKind.INLINE_REQUEST, encode_inline_request(55)),
        (MessageKind.INLINE_REQUEST, b"xy"),
        (MessageKind.LINKED, b"from a follower"),
        (MessageKind.ANNOUNCE, b"from a follower"),
        (MessageKind.KAFKA, b"\0\1 no header"),
    ],
)
async def test_messages_that_no_honest_follower_sends_close_its_connection_alone(
    kind: MessageKind, body: bytes
) -> None:
    async with two_agents() as agents:
        connection, channel = await agent_connection(agents)
        channel.send(kind, body)
        assert await asyncio.wait_for(channel.receive(), 60) is None
        connection.close()
        assert agents.leader_faults("peer_refused") == 1
        raw = batches(1, 0)
        agents.append({0: raw})
        follower = await agents.connect()
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})


async def test_a_frame_of_an_impossible_size_is_counted_with_its_reason() -> None:
    async with two_agents() as agents:
        peer = await agents.connect(agents.leader_address)
        peer.writer.write(framed(agents.follower_hello.encode()))
        assert await peer.receive() is not None  # the leader's hello
        peer.writer.write(struct.pack(">i", -5))
        assert await peer.receive() is None
        await agents.until(lambda: agents.leader_faults("peer_frame_negative") == 1)


async def test_more_connections_than_the_limit_are_not_served() -> None:
    async with two_agents(max_connections=1) as agents:
        raw = batches(1, 0)
        agents.append({0: raw})
        follower = await agents.connect(agents.leader_address)
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})
        second = await agents.connect(agents.leader_address)
        assert await second.fetch({0: 0}) is None
        assert agents.leader_faults("too_many_connections") == 1
        assert await follower.fetch({0: 0}) == follower.expected({0: raw})


async def test_when_the_leaders_agent_is_away_the_followers_connection_ends_and_later_ones_work() -> None:
    async with two_agents() as agents:
        raw = batches(1, 0)
        follower = await agents.connect()
        await follower.fetch({0: 0})
        await agents.leader.stop()
        assert await follower.fetch({0: 0}) is None
        again = await agents.connect()
        assert await again.fetch({0: 0}) is None
        assert agents.follower_faults("peer_unreachable") == 1
        await agents.leader.start(agents.leader_address, None)
        agents.append({0: raw})
        third = await agents.connect()
        assert await third.fetch({0: 0}) == third.expected({0: raw})


async def test_a_broker_that_asks_while_the_leaders_agent_starts_anew_is_not_turned_away() -> None:
    # its fetcher would wait for a second before it asks again
    async with two_agents(restart_s=3.0) as agents:
        raw = batches(1, 0)
        await agents.leader.stop()
        agents.append({0: raw})
        follower = await agents.connect()
        asked = asyncio.create_task(follower.fetch({0: 0}))
        await asyncio.sleep(0.2)
        assert not asked.done()
        await agents.leader.start(agents.leader_address, None)
        assert await asked == follower.expected({0: raw})
        assert agents.follower_faults("peer_unreachable") == 0
        await agents.leader.stop()
        asked = asyncio.create_task((await agents.connect()).fetch({0: 0}))

        def is_turned_away() -> bool:
            agents.now_s += 1.0
            return asked.done()

        await agents.until(is_turned_away)
        assert await asked is None
        assert agents.follower_faults("peer_unreachable") == 1


async def test_refusals_name_what_is_wrong() -> None:
    async with two_agents() as agents:
        connection = await connect_framed(agents.leader_address, FramedConnection())
        with pytest.raises(PeerRefusedError, match="broker 1's agent answers where broker 9's should"):
            await exchange_hellos(connection, Hello("cluster", 2, 22), expected_broker_id=9)
        connection.close()
