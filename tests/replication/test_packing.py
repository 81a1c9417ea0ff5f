"""Which topics' records are packed, and between which agents."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from replication.leader.zones import Zones
from replication.wire.framed_connection import DEFAULT_MAX_FRAME_BYTES, FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.memory_budget import MemoryBudget
from replication.wire.metrics import PackingMetrics
from replication.wire.packed_message import MAX_STREAMED_BYTES, TopicRecords
from replication.wire.packing import REST_S, SAMPLE_BYTES, Packing
from replication.wire.peer_channel import PeerChannel
from replication.wire.peer_connection import Address, connect_framed, exchange_hellos
from replication.wire.peer_protocol import CAPABILITIES, Hello, MessageKind, PeerCapabilities
from rlm.write_path.commit.link_policy import LinkMode
from tests.kafka_log.batches import batch
from tests.replication.fetch_frames import TOPIC_ID
from tests.replication.two_agents import two_agents

PATIENCE_S = 60
TOPIC, RANDOM = "events", "random"
PACKS = CAPABILITIES | PeerCapabilities.PACKED


def events(size: int, seed: int = 1) -> bytes:
    source = random.Random(seed)
    told = [{"user": source.randrange(10**6), "page": "/shop/shoes", "agent": "Mozilla/5.0"} for _ in range(size // 40)]
    return json.dumps(told).encode()[:size].ljust(size)


class Rig:
    def __init__(self, *, is_allowed: bool = True) -> None:
        self.now_s = 0.0
        self.metrics = PackingMetrics(CollectorRegistry())
        self.packing = Packing(lambda: self.now_s, self.metrics, lambda _topic: is_allowed)


def of_one(topic: str, body: bytes) -> list[TopicRecords]:
    return [TopicRecords(topic, 0, len(body))]


@dataclass
class Ends:
    sender: PeerChannel
    receiver: PeerChannel
    sent: FramedConnection
    received: FramedConnection

    async def came(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.receiver.receive()
        assert message is not None
        return bytes(message[1])


@asynccontextmanager
async def ends(
    packing: Packing | None,
    crosses: Callable[[], bool] = lambda: True,
    budget: MemoryBudget | None = None,
    first_bytes: int = DEFAULT_MAX_FRAME_BYTES,
) -> AsyncIterator[Ends]:
    accepted: asyncio.Queue[FramedConnection] = asyncio.Queue()

    def accept() -> FramedConnection:
        connection = FramedConnection(first_bytes, budget=budget)
        accepted.put_nowait(connection)
        return connection

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    sent = await connect_framed(Address(*server.sockets[0].getsockname()[:2]), FramedConnection())
    received = await accepted.get()
    sent.agreed = received.agreed = PeerCapabilities.PACKED if packing is not None else PeerCapabilities.NONE
    try:
        yield Ends(PeerChannel(sent, packing, crosses), PeerChannel(received, packing), sent, received)
    finally:
        sent.close()
        received.close()
        server.close()


async def test_records_of_events_cross_as_a_quarter_and_random_ones_are_soon_not_packed() -> None:
    rig = Rig()
    async with ends(rig.packing) as peers:
        source = random.Random(7)
        for number in range(40):
            for topic, body in ((TOPIC, events(20_000, number)), (RANDOM, source.randbytes(20_000))):
                peers.sender.send(MessageKind.KAFKA, body, records=of_one(topic, body))
                await peers.sender.drain()
                assert await peers.came() == body
        assert rig.packing.ratio_of(TOPIC) > 4
        assert rig.packing.ratio_of(RANDOM) == 1.0 == rig.packing.ratio_of("never sent")
        assert rig.metrics.rests.value == 1
        plain_bytes = rig.metrics.plain_bytes.value
        assert plain_bytes == 40 * 20_000 - (SAMPLE_BYTES // 20_000 + 1) * 20_000
        rig.now_s = REST_S
        peers.sender.send(MessageKind.KAFKA, body := source.randbytes(2 * SAMPLE_BYTES), records=of_one(RANDOM, body))
        assert await peers.came() == body
        assert (rig.metrics.rests.value, rig.metrics.plain_bytes.value) == (2, plain_bytes)


@pytest.mark.parametrize("why_plain", ["own zone", "not agreed", "not known where records are", "off"])
async def test_what_is_not_to_be_packed_crosses_as_it_is(why_plain: str) -> None:
    rig, body = Rig(is_allowed=why_plain != "off"), events(30_000)
    records: Sequence[TopicRecords] | None = of_one(TOPIC, body)
    if why_plain == "not known where records are":
        records = None
    packing = rig.packing if why_plain != "not agreed" else None
    async with ends(packing, lambda: why_plain != "own zone") as peers:
        peers.sender.send(MessageKind.KAFKA, body, records=records)
        assert await peers.came() == body
        assert peers.sent.bytes_sent == len(body) + 5


async def test_a_connection_whose_first_frame_is_small_takes_large_packed_messages_later() -> None:
    # As a leader's agent, which accepts no more than a hello before it.
    async with ends(Rig().packing, first_bytes=1000) as peers:
        peers.received.accept_frames(300_000)
        peers.receiver = PeerChannel(peers.received, Rig().packing)
        peers.sender.send(MessageKind.KAFKA, body := events(200_000), records=of_one(TOPIC, body))
        assert await peers.came() == body


async def test_a_packed_message_that_was_not_agreed_on_is_malformed() -> None:
    rig = Rig()
    async with ends(rig.packing) as peers:
        peers.sender.send(MessageKind.KAFKA, b"x" * 100)
        peers.received.agreed = PeerCapabilities.NONE
        with pytest.raises(MalformedFrameError):
            await PeerChannel(peers.received, rig.packing).receive()


async def test_messages_come_in_the_order_in_which_they_were_sent_however_large() -> None:
    rig, sizes = Rig(), [100, 3_000_000, 10, 40_000, MAX_STREAMED_BYTES + 1, 500_000, 20]
    async with ends(rig.packing) as peers:
        bodies = [events(size, size) for size in sizes]
        for body in bodies:
            peers.sender.send(MessageKind.KAFKA, body, records=of_one(TOPIC, body))
        assert [await peers.came() for _ in bodies] == bodies
        assert peers.sent.bytes_sent < sum(sizes) / 3


async def test_what_a_message_unpacks_to_is_counted_before_and_waited_for() -> None:
    waits = asyncio.Event()
    rig, budget, body = Rig(), MemoryBudget(1_000_000, waits.set), events(800_000)
    async with ends(rig.packing, budget=budget) as peers:
        budget.take(500_000)
        peers.sender.send(MessageKind.KAFKA, body, records=of_one(TOPIC, body))
        receiving = asyncio.create_task(peers.came())
        async with asyncio.timeout(PATIENCE_S):
            await waits.wait()
        assert not receiving.done()
        budget.give_back(500_000)
        assert await receiving == body
        assert budget.used >= len(body)
        peers.received.abort()
        assert await peers.receiver.receive() is None
        assert budget.used == 0


async def test_two_connections_whose_messages_need_all_memory_do_not_wait_for_each_other() -> None:
    rig, budget, body = Rig(), MemoryBudget(300_000), events(400_000)
    async with ends(rig.packing, budget=budget) as one, ends(rig.packing, budget=budget) as other:
        for peers in (one, other):
            for _ in range(3):
                peers.sender.send(MessageKind.KAFKA, body, records=of_one(TOPIC, body))

        async def came(peers: Ends) -> None:
            for _ in range(3):
                assert await peers.came() == body
            peers.received.abort()

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(came(one), came(other))


def zones(own: str) -> Zones:
    made = Zones(own)
    made.learned({2: "az2"})
    return made


@pytest.mark.parametrize(
    ("own", "follower", "is_packed"),
    [
        ("az1", Hello("cluster", 2, 22, PACKS), True),
        ("az2", Hello("cluster", 2, 22, PACKS), False),
        ("az1", Hello("cluster", 2, 22), False),
        ("az1", Hello("cluster", 2, 22, PACKS, version=2), False),
    ],
    ids=["elsewhere", "leader's zone", "off there", "another version"],
)
async def test_a_follower_elsewhere_gets_records_packed_and_any_other_plain(
    own: str, follower: Hello, is_packed: bool
) -> None:
    rig = Rig()
    raw = batch(0, 1, 0, events(20_000))
    hellos = {"leader_hello": Hello("cluster", 1, 11, PACKS), "follower_hello": follower}
    async with two_agents(zones=zones(own), packing=rig.packing, **hellos) as agents:
        agents.led.mode = LinkMode.INLINE
        agents.append({0: raw}, stored=False)
        client = await agents.connect()
        assert await client.fetch({0: 0}) == client.expected({0: raw})
        crossed = agents.leader_metrics.traffic.by_follower[2].peer_bytes
        assert (crossed < len(raw) / 3) is is_packed
        moved = agents.leader_metrics.traffic.by_topic[TOPIC_ID, 2]
        assert moved.inline_bytes == len(raw)
        assert (moved.note_crossed() < len(raw) / 3) is is_packed
        moved.packed_away_bytes += len(raw)
        assert (moved.note_crossed() < len(raw) / 3) is is_packed
        assert moved.note_crossed() > 0
        assert rig.packing.describe({TOPIC_ID: "orders"}).keys() == ({"orders"} if is_packed else set())


async def test_a_message_that_unpacks_to_something_else_ends_its_connection_and_is_counted() -> None:
    rig = Rig()
    hello = Hello("cluster", 1, 11, PACKS)
    async with two_agents(packing=rig.packing, leader_hello=hello) as agents:
        connection = await connect_framed(agents.leader_address, FramedConnection())
        await exchange_hellos(connection, Hello("cluster", 2, 22, PACKS), 1)
        connection.write_frame(b"\x80\x00\x10no stream")
        assert await asyncio.wait_for(connection.read_frame(), PATIENCE_S) is None
        assert agents.leader_faults("peer_refused") == 1
        connection.close()
