"""Consumers' records by object storage, from where clients connect to the broker's listener, over real sockets.

client -> ZoneGateway (agent 2) -> LeaderProxy, ClientHandler (agent 1) -> a broker that answers Fetches from logs
                    |                            ^
              MemoryStorage  <- what a test stores
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.broker_pipe import ConsumerContext
from gateway.consume.consumer_links import ReadCosts
from gateway.metrics import ConsumeMetrics
from replication.follower.follower_context import FollowerContext
from replication.leader.leader_context import LeaderContext
from replication.wire.memory_budget import MemoryBudget
from replication.wire.metrics import PackingMetrics
from replication.wire.packing import Packing
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities
from rlm.write_path.commit.link_policy import LinkMode
from rlm.write_path.metrics import StageTimes
from tests.gateway.gateway_rig import GatewayRig
from tests.gateway.gateway_rig import started as started_gateway
from tests.gateway.produce.produce_frames import produce, records
from tests.gateway.routed_rig import RoutedRig
from tests.gateway.routed_rig import started as started_routing
from tests.kafka_log.batches import batches
from tests.replication.fetch_frames import request, response
from tests.replication.test_catch_up_proxies import OBJECT_BATCHES, OBJECTS, missed_much
from tests.replication.two_agents import Agents, Follower, framed, read_frame, two_agents

CLIENTS, LINKED = PeerCapabilities.CLIENTS, PeerCapabilities.LINKED_FETCH
BOTH = CLIENTS | LINKED
FIRST, SECOND, THIRD = (batches(20, 20 * number, payload=b"r" * 300) for number in range(3))


class Consumers:
    """Consumers of the gateway's zone, of a leader elsewhere."""

    def __init__(self, agents: Agents, gateway: GatewayRig, registry: CollectorRegistry, routed: RoutedRig) -> None:
        self.agents, self.gateway, self.routed, self._registry = agents, gateway, routed, registry

    async def connect(self) -> Follower:
        return Follower(*await self.gateway.connect())

    async def fetch(self, client: Follower, offset: int) -> bytes | None:
        return await client.fetch({0: offset}, replica_id=-1)

    def record_bytes(self, way: str) -> float:
        labels = {"zone": "az2", "way": way}
        return self._registry.get_sample_value("remote_wal_gateway_fetch_record_bytes_total", labels) or 0.0


async def serve_logs(agents: Agents, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while (frame := await read_frame(reader)) is not None:
        await agents.broker.go_on.wait()
        if (answer := agents.broker.answer_from_logs(frame)) is not None:
            writer.write(framed(answer))


@asynccontextmanager
async def consumers(
    asked: PeerCapabilities = BOTH, granted: PeerCapabilities = CAPABILITIES | BOTH, **changes: Any
) -> AsyncIterator[Consumers]:
    """`asked` and `granted` are what the gateway and the broker's agent say in their hellos."""
    async with two_agents(**changes) as agents, consumers_of(agents, asked, granted) as made:
        yield made


@asynccontextmanager
async def consumers_of(
    agents: Agents, asked: PeerCapabilities = BOTH, granted: PeerCapabilities = CAPABILITIES | BOTH
) -> AsyncIterator[Consumers]:
    async with contextlib.AsyncExitStack() as stack:
        routed = await stack.enter_async_context(started_routing())
        registry, hello = CollectorRegistry(), Hello("cluster", 2, 22, asked)
        untold = StageTimes(CollectorRegistry())
        leader = LeaderContext(
            agents.leader_hello,
            agents.limits,
            agents.broker_address,
            agents.led,
            untold,
            agents.leader_metrics,
            clock=lambda: agents.now_s,
            index=agents.index,
            uploads=agents.uploads,
            budget=agents.leader_budget,
            catch_up=agents.catch_up,
            packing=agents.packing,
        )
        follower = FollowerContext(
            hello,
            agents.follower_limits,
            agents.follower_metrics,
            lambda: None,
            lambda: agents.now_s,
            agents.follower_budget,
            agents.hydration,
            untold,
            agents.catch_up_reads,
            packing=agents.packing,
        )
        gateway = GatewayRig(
            serve=lambda reader, writer: serve_logs(agents, reader, writer),
            granted=granted,
            asked=hello,
            routing=replace(routed.routing, links=follower, channel=follower.channel),
            splicing=replace(routed.splicing, channel=leader.channel),
            consumers=ConsumerContext(leader, ConsumeMetrics(registry), ReadCosts(1, 0.025)),
        )
        await stack.enter_async_context(started_gateway(gateway))
        yield Consumers(agents, gateway, registry, routed)


async def test_records_that_are_stored_come_from_the_store_and_the_consumer_sees_what_the_broker_sent() -> None:
    async with consumers() as zone:
        zone.agents.append({0: FIRST})
        client = await zone.connect()
        assert await zone.fetch(client, 0) == client.expected({0: FIRST})
        assert zone.record_bytes("linked") == len(FIRST)
        assert zone.gateway.gateway_bytes("to_client") < len(FIRST) / 10
        assert zone.gateway.gateway_bytes("to_client") == zone.gateway.broker_bytes("to_client")
        moved = zone.gateway.traffic.own
        client.writer.close()
        await zone.gateway.until(lambda: zone.gateway.connections("gateway") == 0)
        assert moved.given_bytes > len(FIRST)
        assert moved.given_crossed_bytes == zone.gateway.gateway_bytes("to_client")
        assert moved.untold_bytes == 0, "the agent beside the broker looks at answers"


async def test_a_range_that_many_consumers_of_the_zone_read_is_read_once() -> None:
    async with consumers() as zone:
        zone.agents.append({0: FIRST})
        clients = [await zone.connect() for _ in range(8)]
        zone.agents.storage.fetch_gate.clear()
        reading = [asyncio.ensure_future(zone.fetch(client, 0)) for client in clients]
        await zone.agents.until(lambda: zone.record_bytes("linked") == 8 * len(FIRST))
        zone.agents.storage.fetch_gate.set()
        assert await asyncio.gather(*reading) == [client.expected({0: FIRST}) for client in clients]
        assert len(zone.agents.storage.fetches) == 1


async def test_a_part_that_is_not_stored_is_asked_for_again_and_waited_for_no_longer_than_may_be() -> None:
    async with consumers(link_wait_max_s=0.0) as zone:
        zone.agents.append({0: FIRST})
        zone.agents.append({0: SECOND}, stored=False)
        client = await zone.connect()
        assert await zone.fetch(client, 0) == client.expected({0: FIRST})
        assert await zone.fetch(client, 20) == client.expected({0: SECOND})
        assert (zone.record_bytes("linked"), zone.record_bytes("inline")) == (len(FIRST), len(SECOND))


@pytest.mark.parametrize("fault", ["fails", "corrupt", "late", "gone"])
async def test_what_the_store_does_not_give_comes_as_the_broker_sent_it(fault: str) -> None:
    async with consumers(hydration_timeout_s=0.05 if fault == "late" else 5.0) as zone:
        storage = zone.agents.storage
        zone.agents.append({0: FIRST})
        client = await zone.connect()
        storage.fetches_fail = fault == "fails"
        storage.corrupt = (lambda raw: raw[:-1] + b"!") if fault == "corrupt" else None
        if fault == "late":
            storage.fetch_gate.clear()
        if fault == "gone":
            storage.objects.clear()
        assert await zone.fetch(client, 0) == client.expected({0: FIRST})
        assert zone.record_bytes("original") > len(FIRST)
        storage.fetch_gate.set()
        storage.fetches_fail, storage.corrupt = False, None
        zone.agents.append({0: SECOND})
        assert await zone.fetch(client, 20) == client.expected({0: SECOND})
        assert zone.record_bytes("linked") == len(FIRST) + len(SECOND)


async def test_while_the_store_is_given_up_all_comes_inline_and_then_one_fetch_tries_it_again() -> None:
    async with consumers() as zone:
        zone.agents.append({0: FIRST + SECOND + THIRD})
        zone.agents.storage.fetches_fail = True
        client = await zone.connect()
        for _ in range(5):
            assert await zone.fetch(client, 0) == client.expected({0: FIRST + SECOND + THIRD})
        asked = zone.record_bytes("original")
        assert zone.record_bytes("inline") > 0
        zone.agents.storage.fetches_fail = False
        assert await zone.fetch(client, 0) == client.expected({0: FIRST + SECOND + THIRD})
        linked = zone.record_bytes("linked")
        zone.agents.now_s += 2.0
        assert await zone.fetch(client, 0) == client.expected({0: FIRST + SECOND + THIRD})
        assert zone.record_bytes("linked") > linked
        assert zone.record_bytes("original") == asked


@pytest.mark.parametrize(
    ("asked", "granted"), [(CLIENTS, BOTH), (BOTH, CLIENTS), (CLIENTS, CLIENTS)], ids=["agent", "gateway", "neither"]
)
async def test_records_come_as_they_are_unless_both_agents_have_it_on(
    asked: PeerCapabilities, granted: PeerCapabilities
) -> None:
    async with consumers(asked, CAPABILITIES | granted) as zone:
        zone.agents.append({0: FIRST})
        client = await zone.connect()
        assert await zone.fetch(client, 0) == client.expected({0: FIRST})
        assert zone.agents.storage.fetches == []
        assert zone.gateway.gateway_bytes("to_client") > len(FIRST)


@pytest.mark.parametrize("off", [False, True])
@pytest.mark.parametrize("links", [PeerCapabilities.NONE, LINKED], ids=["packed alone", "with links"])
async def test_records_that_cross_between_the_agents_are_packed_both_ways_unless_their_topic_is_off(
    links: PeerCapabilities, off: bool
) -> None:
    packing = Packing(lambda: 0.0, PackingMetrics(CollectorRegistry()), lambda _topic: not off)
    packs = CLIENTS | PeerCapabilities.PACKED | links
    async with consumers(packs, CAPABILITIES | packs, packing=packing) as zone:
        zone.agents.led.mode = LinkMode.INLINE
        zone.agents.append({0: FIRST}, stored=False)
        client = await zone.connect()
        assert await zone.fetch(client, 0) == client.expected({0: FIRST})
        assert zone.agents.storage.fetches == []
        assert (zone.gateway.gateway_bytes("to_client") < len(FIRST) / 10) is not off
        client.writer.write(framed(produce({0: b"r" * 5000}, correlation_id=5)))
        assert await client.receive() == b"\x00\x00\x00\x05some other answer"
        assert (zone.gateway.gateway_bytes("to_broker") < 1000) is not off


async def test_produce_and_fetch_of_one_connection_go_by_object_storage_side_by_side() -> None:
    routed = PeerCapabilities.ROUTED_PRODUCE
    async with consumers(BOTH | routed, CAPABILITIES | BOTH | routed) as zone:
        zone.agents.append({0: FIRST})
        client = await zone.connect()
        # Answers keep their order, though the second comes from the store and the third does not.
        zone.agents.broker.go_on.clear()
        client.writer.write(framed(request({1: 0}, correlation_id=4, replica_id=-1)))
        client.writer.write(framed(request({0: 0}, correlation_id=5, replica_id=-1)))
        client.writer.write(framed(produce({0: records(5000)}, correlation_id=6, acks=0)))  # has no answer
        client.writer.write(framed(request({1: 0}, correlation_id=7, replica_id=-1)))
        zone.agents.broker.go_on.set()
        assert await client.receive() == response({1: b""}, correlation_id=4)
        assert await client.receive() == response({0: FIRST}, correlation_id=5)
        assert await client.receive() == response({1: b""}, correlation_id=7)


async def test_what_comes_behind_an_answer_that_is_asked_for_as_it_was_does_not_overtake_it() -> None:
    async with consumers() as zone:
        zone.agents.append({0: FIRST})
        zone.agents.storage.fetches_fail = True
        client = await zone.connect()
        zone.agents.storage.fetch_gate.clear()
        client.writer.write(framed(request({0: 0}, correlation_id=5, replica_id=-1)))
        for number in (6, 7):  # as clients ask for metadata meanwhile
            client.writer.write(framed(produce({}, correlation_id=number)))
        await zone.agents.until(lambda: zone.record_bytes("linked") > 0)
        await zone.gateway.until(lambda: zone.gateway.gateway_bytes("to_client") > 100)
        zone.agents.storage.fetch_gate.set()
        answers = [await client.receive() for _ in range(3)]
        assert [int.from_bytes(answer[:4], "big") for answer in answers if answer] == [5, 6, 7]
        assert answers[0] == response({0: FIRST}, correlation_id=5)


async def test_a_client_that_goes_while_its_records_are_read_leaves_nothing_behind() -> None:
    async with consumers() as zone:
        zone.agents.append({0: FIRST})
        zone.agents.storage.fetch_gate.clear()
        client = await zone.connect()
        client.send({0: 0}, replica_id=-1)
        await zone.agents.until(lambda: zone.record_bytes("linked") > 0)
        client.writer.close()
        await zone.gateway.until(lambda: zone.gateway.connections("gateway") == zone.gateway.connections("broker") == 0)
        zone.agents.storage.fetch_gate.set()
        assert zone.agents.leader_budget.used == 0
        await zone.agents.until(lambda: zone.agents.follower_budget.used == 0)


async def test_memory_that_is_short_at_the_gateway_holds_up_no_consumer_for_good() -> None:
    async with consumers(hydration_timeout_s=0.05, follower_budget=MemoryBudget(1000)) as zone:
        zone.agents.append({0: FIRST})
        clients = [await zone.connect() for _ in range(4)]
        fetched = await asyncio.gather(*(zone.fetch(client, 0) for client in clients))
        assert fetched == [client.expected({0: FIRST}) for client in clients]


async def test_the_first_consumer_where_nobody_else_wants_links_gets_what_was_stored_from_the_store(
    tmp_path: Path,
) -> None:
    async with missed_much(tmp_path, read_bytes=2**20) as missed, consumers_of(missed.agents) as zone:
        missed.agents.led.mode = LinkMode.INLINE
        client, log = await zone.connect(), missed.agents.broker.logs[0]
        assert await zone.fetch(client, 0) == client.expected({0: log})
        assert (zone.record_bytes("linked"), zone.record_bytes("inline")) == (len(log), 0)


async def test_what_an_agent_before_this_one_stored_is_found_again_for_consumers(tmp_path: Path) -> None:
    async with missed_much(tmp_path) as missed, consumers_of(missed.agents) as zone:
        client, offset, log = await zone.connect(), 0, missed.agents.broker.logs[0]
        while offset < OBJECTS * OBJECT_BATCHES:
            answer = await zone.fetch(client, offset)
            left = [written.raw for written in missed.log.writer.batches if written.base_offset >= offset]
            ends = range(len(left), 0, -1)
            offset += next(end for end in ends if answer == client.expected({0: b"".join(left[:end])}))
        assert zone.record_bytes("linked") == len(log)
        assert zone.record_bytes("inline") == zone.record_bytes("original") == 0
