"""Agents of a zone that read objects for each other: one GET, and an own one wherever a neighbour does not give."""

import asyncio
import ssl
from pathlib import Path

import pytest

from local_cluster.security.authority import Authority
from plugin.segment_metadata import CombinedSegmentId
from replication.follower import neighbours as range_handler
from replication.follower.hydration import HydrationError
from replication.follower.neighbours import Neighbours
from replication.follower.range_cache import CachedRange
from replication.wire.framed_connection import FramedConnection
from replication.wire.link import SegmentLink
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import KnownPeers, connect_framed, exchange_hellos
from replication.wire.peer_protocol import (
    CAPABILITIES,
    Hello,
    MessageKind,
    PeerCapabilities,
    RangeRequest,
    ZoneReading,
    decode_refusal,
    encode_range_response,
)
from tests.metric_values import metric_value
from tests.replication.neighbour_rig import ALL, DATA, OBJECT, Zone, zone_of
from tests.replication.test_peer_tls import on_both_event_loops

FIRST = ZoneReading((1, 2, 3), (ALL,))
"""The agent of broker 1 reads for all."""
SECOND, THIRD = (1000, 61_000), (60_000, 100_000)


async def both_have_all(zone: Zone) -> None:
    assert await zone.agents[2].fetch(*SECOND) == DATA[slice(*SECOND)]
    assert await zone.agents[3].fetch(*THIRD) == DATA[slice(*THIRD)]


@on_both_event_loops
async def test_one_agent_reads_for_all_of_its_zone() -> None:
    async with zone_of(3) as zone:
        zone.agents[1].told(FIRST, (0, 10))
        zone.agents[2].told(FIRST, SECOND)
        zone.agents[3].told(FIRST, THIRD)
        await both_have_all(zone)
        assert await zone.agents[1].fetch(*ALL) == DATA
        assert zone.reads == [(OBJECT, *ALL)]
        assert [zone.agents[one].asked("given") for one in (1, 2, 3)] == [0, 1, 1]
        assert zone.agents[1].gave("given") == 2
        received = zone.agents[2].metrics.shared_reads.bytes.labels("received")
        assert metric_value(received) == SECOND[1] - SECOND[0]


async def test_who_asks_before_the_reader_was_told_makes_it_read_for_all() -> None:
    async with zone_of(3) as zone:
        zone.agents[2].told(FIRST, SECOND)
        zone.agents[3].told(FIRST, THIRD)
        await both_have_all(zone)
        zone.agents[1].told(FIRST, (0, 10))
        assert await zone.agents[1].fetch(0, 10) == DATA[:10]
        assert zone.reads == [(OBJECT, *ALL)]


async def test_those_who_ask_while_it_is_read_wait_for_the_same_read() -> None:
    async with zone_of(3) as zone:
        zone.stores[1].fetch_gate.clear()
        for agent, wanted in ((1, ALL), (2, SECOND), (3, THIRD)):
            zone.agents[agent].told(FIRST, wanted)
        waiting = asyncio.create_task(both_have_all(zone))
        async with asyncio.timeout(60):
            while not zone.stores[1].fetches:  # noqa: ASYNC110 - on another thread
                await asyncio.sleep(0.001)
        zone.stores[1].fetch_gate.set()
        await waiting
        assert zone.reads == [(OBJECT, *ALL)]


async def test_a_range_that_a_link_waits_for_is_not_asked_for_twice() -> None:
    async with zone_of(2) as zone:
        zone.agents[2].told(FIRST, SECOND)
        zone.agents[2].told(FIRST, SECOND)
        assert await asyncio.gather(zone.agents[2].fetch(2000, 3000), zone.agents[2].fetch(5000, 6000))
        assert zone.agents[2].asked("given") == 1
        assert not zone.stores[2].fetches


async def own_read_for(zone: Zone, outcome: str) -> None:
    zone.agents[2].told(FIRST, SECOND)
    assert await zone.agents[2].fetch(*SECOND) == DATA[slice(*SECOND)]
    assert zone.stores[2].fetches == [(OBJECT, *SECOND)]
    assert zone.agents[2].asked(outcome) == 1


async def test_of_a_neighbour_that_is_slow_the_range_is_read_from_the_store_in_a_quarter_of_the_time() -> None:
    async with zone_of(2, timeout_s=0.4) as zone:
        zone.stores[1].fetch_gate.clear()
        await own_read_for(zone, "slow")
        assert zone.agents[2].hydration.in_flight_bytes == 0


async def test_of_a_neighbour_that_goes_while_it_is_asked_the_range_is_read_from_the_store_at_once() -> None:
    async with zone_of(2, timeout_s=1000.0) as zone:
        zone.stores[1].fetch_gate.clear()
        zone.agents[2].told(FIRST, SECOND)
        fetching = asyncio.create_task(zone.agents[2].fetch(*SECOND))
        async with asyncio.timeout(60):
            while not zone.stores[1].fetches:  # noqa: ASYNC110 - on another thread
                await asyncio.sleep(0.001)
        await zone.agents[1].listener.stop()
        assert await fetching == DATA[slice(*SECOND)]
        assert zone.agents[2].asked("gone") == 1


async def test_of_a_neighbour_whose_store_fails_the_range_is_read_from_the_store_at_once() -> None:
    async with zone_of(2, timeout_s=1000.0) as zone:
        zone.stores[1].fetches_fail = True
        await own_read_for(zone, "refused")
        assert zone.agents[1].gave("not_read") == 1


async def test_of_a_neighbour_that_reads_as_much_as_it_may_the_range_is_read_from_the_store_at_once() -> None:
    async with zone_of(2, timeout_s=1000.0, cache_bytes=len(DATA)) as zone:
        zone.agents[2].told(FIRST, (1000, 2000))
        assert await zone.agents[2].fetch(1000, 2000) == DATA[1000:2000]
        assert (zone.agents[1].gave("busy"), zone.stores[1].fetches) == (1, [])
        assert (zone.agents[2].asked("refused"), zone.stores[2].fetches) == (1, [(OBJECT, 1000, 2000)])


async def test_an_agent_that_knows_nothing_of_ranges_is_not_waited_for() -> None:
    async with zone_of(2, timeout_s=1000.0, grants=PeerCapabilities.NONE) as zone:
        await own_read_for(zone, "gone")


async def test_two_that_ask_each_other_do_not_wait_for_each_other() -> None:
    async with zone_of(2, timeout_s=1000.0) as zone:
        zone.agents[1].told(ZoneReading((2,), (ALL,)), SECOND)
        zone.agents[2].told(ZoneReading((1,), (ALL,)), SECOND)
        for agent in zone.agents.values():
            assert await agent.fetch(*SECOND) == DATA[slice(*SECOND)]


async def test_one_that_fails_repeatedly_is_left_alone_and_the_next_one_is_asked() -> None:
    async with zone_of(3, timeout_s=1000.0) as zone:
        await zone.agents[1].listener.stop()
        objects = [CombinedSegmentId(9, 1, sequence) for sequence in range(1, 6)]
        for store in zone.stores.values():
            store.objects |= dict.fromkeys(objects, DATA)
        for one in objects[:3]:
            zone.agents[3].told(FIRST, THIRD, object_id=one)
            await zone.agents[3].fetch(*THIRD, object_id=one)
        assert zone.agents[3].asked("gone") == 3
        zone.agents[3].told(FIRST, THIRD, object_id=objects[3])
        assert await zone.agents[3].fetch(*THIRD, object_id=objects[3]) == DATA[slice(*THIRD)]
        assert zone.stores[2].fetches == [(objects[3], *ALL)]
        zone.now_s += 1.5  # the first is tried again
        zone.agents[3].told(FIRST, THIRD, object_id=objects[4])
        await zone.agents[3].fetch(*THIRD, object_id=objects[4])
        assert zone.agents[3].asked("gone") == 4


async def test_one_that_gave_wrong_bytes_is_not_believed_twice_and_rests() -> None:
    async with zone_of(3) as zone:
        zone.stores[1].corrupt = lambda data: b"\xff" * len(data)
        second = zone.agents[2]
        second.told(FIRST, SECOND)
        assert await second.fetch(1000, 1100) == b"\xff" * 100
        second.hydration.discard_wrong(SegmentLink(OBJECT, 1000, 100, 0))
        assert await second.fetch(*SECOND) == DATA[slice(*SECOND)]
        assert zone.stores[2].fetches == [(OBJECT, *SECOND)]
        assert second.asked("wrong") == 1
        assert second.neighbours.reader(FIRST) == 2
        assert second.neighbours.reader(ZoneReading((1, 3), (ALL,))) == 3
        assert zone.agents[3].neighbours.reader(FIRST) == 1
        zone.now_s += 11
        assert second.neighbours.reader(FIRST) == 1


async def test_bytes_that_were_altered_on_their_way_are_read_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    altered = lambda number, data: encode_range_response(number, bytes(data)[:-1])  # noqa: E731
    monkeypatch.setattr(range_handler, "encode_range_response", altered)
    async with zone_of(3, timeout_s=1000.0) as zone:
        await own_read_for(zone, "altered")
        assert zone.agents[2].neighbours.reader(ZoneReading((1, 3), (ALL,))) == 3


async def test_where_a_neighbour_does_not_answer_its_other_address_is_asked_next() -> None:
    async with zone_of(2, timeout_s=1000.0) as zone:
        dead = zone.addresses[2]
        await zone.agents[2].listener.stop()
        moved = await zone.add(3)
        peers = KnownPeers({1: dead})
        peers.learned({1: zone.addresses[1]})
        moved.neighbours = Neighbours(zone.contexts[3], peers, zone.is_near)
        assert await moved.neighbours.ask(1, CachedRange(OBJECT, *SECOND), ALL) is None
        assert await moved.neighbours.ask(1, CachedRange(OBJECT, *SECOND), ALL) == DATA[slice(*SECOND)]


async def test_bytes_that_were_read_from_the_store_and_prove_wrong_blame_no_neighbour() -> None:
    async with zone_of(2) as zone:
        agent = zone.agents[2]
        agent.hydration.announce(OBJECT, (SECOND,))
        await agent.fetch(*SECOND)
        agent.hydration.discard_wrong(SegmentLink(OBJECT, 1000, 100, 0))
        assert agent.asked("wrong") == 0


async def test_nobody_of_another_zone_is_asked_or_given_anything() -> None:
    async with zone_of(2) as zone:
        assert zone.agents[2].neighbours.reader(ZoneReading((1,), (ALL,))) == 1
    async with zone_of(2, is_near=lambda _: False) as zone:
        assert zone.agents[2].neighbours.reader(ZoneReading((1,), (ALL,))) is None
        zone.agents[2].told(ZoneReading((1,), (ALL,)), SECOND)
        assert await zone.agents[2].fetch(*SECOND) == DATA[slice(*SECOND)]
        connection = await asking(zone, Hello("cluster", 2, 7, PeerCapabilities.RANGES))
        assert await connection.read_frame() is None
        assert zone.reads == [(OBJECT, *SECOND)]


async def asking(zone: Zone, hello: Hello, tls: ssl.SSLContext | None = None) -> FramedConnection:
    """A connection for ranges to the agent of broker 1."""
    connection = await connect_framed(zone.addresses[1], FramedConnection(), tls)
    assert PeerCapabilities.RANGES in await exchange_hellos(connection, hello, 1)
    return connection


async def test_what_is_no_request_for_a_range_ends_the_connection() -> None:
    async with zone_of(1) as zone:
        for kind in (MessageKind.KAFKA, MessageKind.RANGE, MessageKind.RANGE_REQUEST):
            connection = await asking(zone, Hello("cluster", 2, 7, PeerCapabilities.RANGES))
            PeerChannel(connection).send(kind, b"x" * 40)
            assert await connection.read_frame() is None
        assert metric_value(zone.agents[1].metrics.faults.labels("peer_refused")) == 3


async def test_an_object_that_is_not_there_is_refused_and_the_connection_stays() -> None:
    async with zone_of(1) as zone:
        connection = await asking(zone, Hello("cluster", 2, 7, PeerCapabilities.RANGES))
        channel = PeerChannel(connection)
        for number, wanted in ((5, CombinedSegmentId(4, 4, 4)), (6, OBJECT)):
            channel.send(MessageKind.RANGE_REQUEST, RangeRequest(number, wanted, 0, 9, (0, 9)).encode())
            message = await channel.receive()
            assert message is not None
            if number == 5:
                assert message[0] is MessageKind.RANGE_REFUSED
                assert decode_refusal(message[1]) == (5, "not_read")
            else:
                data = encode_range_response(6, DATA[:9]) + DATA[:9]
                assert (message[0], bytes(message[1])) == (MessageKind.RANGE, data)


async def test_a_replicas_connection_is_none_for_ranges() -> None:
    async with zone_of(1) as zone:
        connection = await connect_framed(zone.addresses[1], FramedConnection())
        await exchange_hellos(connection, Hello("cluster", 2, 7, CAPABILITIES), 1)
        request = RangeRequest(1, OBJECT, 0, 9, (0, 9)).encode()
        PeerChannel(connection).send(MessageKind.RANGE_REQUEST, request)
        assert await connection.read_frame() is None
        assert not zone.reads


async def test_under_tls_only_agents_of_brokers_are_given_ranges(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    keys = {name: authority.tls_for(name) for name in ("broker-1", "broker-2", "gateway-2")}
    async with zone_of(
        2,
        server_tls=lambda one: keys[f"broker-{one}"].server_context(),
        client_tls=lambda one: keys[f"broker-{one}"].client_context(),
    ) as zone:
        zone.agents[2].told(FIRST, SECOND)
        assert await zone.agents[2].fetch(*SECOND) == DATA[slice(*SECOND)]
        assert zone.agents[2].asked("given") == 1
        hello = Hello("cluster", 2, 7, PeerCapabilities.RANGES)
        with pytest.raises(ConnectionResetError):
            await asking(zone, hello, keys["gateway-2"].client_context())


async def test_while_the_own_store_is_given_up_the_next_announcement_is_its_probe() -> None:
    async with zone_of(2) as zone:
        agent = zone.agents[2]
        zone.stores[2].fetches_fail = True
        for start in range(3):
            with pytest.raises(HydrationError):
                await agent.fetch(start, start + 1)
        assert agent.hydration.tiers.given_up
        zone.stores[2].fetches_fail = False
        zone.now_s += 2
        agent.told(FIRST, SECOND)
        await agent.fetch(*SECOND)
        assert not agent.hydration.tiers.given_up
        assert agent.asked("given") == 0
