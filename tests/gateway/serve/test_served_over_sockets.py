"""Consumers whose gateway answers them, over real sockets, with a broker that waits as Kafka does.

consumer -> ZoneGateway (agent 2) -> LeaderProxy, ClientHandler (agent 1) -> the model broker
               BrokerTail         -> LeaderProxy, TailHandler   (agent 1) ->
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from kafka.protocol.consumer import FetchResponse
from prometheus_client import CollectorRegistry

from gateway.broker_pipe import ConsumerContext
from gateway.consume.consumer_links import ReadCosts
from gateway.gateway_pipe import ServingParts
from gateway.metrics import ConsumeMetrics, ServeMetrics
from gateway.serve.tail_handler import TailHandler
from gateway.serve.tails import TailContext, Tails
from replication.follower.follower_context import FollowerContext
from replication.leader.leader_context import LeaderContext
from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities
from rlm.write_path.commit.link_policy import LinkMode
from rlm.write_path.metrics import StageTimes
from tests.gateway.gateway_rig import GatewayRig
from tests.gateway.gateway_rig import started as started_gateway
from tests.gateway.routed_rig import started as started_routing
from tests.gateway.serve.model_broker import ModelBroker, ModelConsumer
from tests.gateway.serve.test_fetch_serving import Clear
from tests.replication.two_agents import Agents, framed, read_frame, two_agents

BOTH = PeerCapabilities.CLIENTS | PeerCapabilities.LINKED_FETCH
VISIBLE = PeerCapabilities.VISIBLE


class WaitingBroker:
    """The model broker behind a listener."""

    def __init__(self) -> None:
        self.model = ModelBroker(1)
        self.changed = asyncio.Condition()
        self.connections: list[int] = []
        """Fetch requests of each connection."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.connections)
        self.connections.append(0)
        while (frame := await read_frame(reader)) is not None:
            self.connections[number] += 1
            answer = self.model.fetch(frame)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2), self.changed:
                    while not _has_records(answer):
                        await self.changed.wait()
                        answer = self.model.fetch(frame)
            writer.write(framed(answer))

    async def append(self, records: int) -> None:
        async with self.changed:
            log = self.model.logs[0]
            log.append(records)
            log.high_watermark = log.end
            self.changed.notify_all()


def _has_records(answer: bytes) -> bool:
    response: Any = FetchResponse.decode(answer, version=13, header=True)  # no version differs where this looks
    return any(one.records or one.error_code for topic in response.responses for one in topic.partitions)


class Zone:
    """Consumers of az2."""

    def __init__(self, broker: WaitingBroker, gateway: GatewayRig, registry: CollectorRegistry) -> None:
        self.broker, self.gateway, self._registry = broker, gateway, registry

    async def fetch(self, stream: Any, consumer: ModelConsumer) -> Any:
        reader, writer = stream
        writer.write(framed(consumer.request()))
        async with asyncio.timeout(60):
            frame = await read_frame(reader)
        assert frame is not None
        return consumer.take(frame)

    def served(self, way: str = "served") -> float:
        return self._registry.get_sample_value("remote_wal_gateway_fetch_serve_total", {"way": way}) or 0.0


@asynccontextmanager
async def zone(granted: PeerCapabilities = VISIBLE) -> AsyncIterator[Zone]:
    async with two_agents() as agents, started_routing() as routed:
        agents.led.mode = LinkMode.INLINE
        broker, registry = WaitingBroker(), CollectorRegistry()
        untold, hello = StageTimes(CollectorRegistry()), Hello("cluster", 2, 22, BOTH)
        leader = _leader(agents, untold)
        reading = FollowerContext(
            hello, agents.follower_limits, agents.follower_metrics, lambda: None, lambda: agents.now_s,
            agents.follower_budget, agents.hydration, untold, agents.catch_up_reads,
        )  # fmt: skip
        peers: dict[int, Address] = {}
        context = TailContext(
            replace(reading, hello=replace(hello, capabilities=VISIBLE)),
            peers,
            lambda _broker: (lambda _size: None, lambda _size: None),
            1 << 20,
        )
        tails, consumers = Tails(context), ConsumerContext(leader, ConsumeMetrics(registry), ReadCosts(1, 0.025))

        async def dial(connection: FramedConnection) -> None:
            await connect_framed(gateway.listener, connection)

        gateway = GatewayRig(
            serve=broker.serve,
            granted=CAPABILITIES | BOTH | granted,
            asked=hello,
            routing=replace(routed.routing, links=reading),
            splicing=routed.splicing,
            consumers=consumers,
            serving=ServingParts(tails, Clear(), ServeMetrics(registry), 60.0),
            handlers={VISIBLE: TailHandler(consumers, dial)},
        )
        async with started_gateway(gateway):
            peers[1] = gateway.agent.addresses[0]
            try:
                yield Zone(broker, gateway, registry)
            finally:
                await tails.close()


def _leader(agents: Agents, untold: StageTimes) -> LeaderContext:
    return LeaderContext(
        agents.leader_hello, agents.limits, agents.broker_address, agents.led, untold, agents.leader_metrics,
        clock=lambda: agents.now_s, index=agents.index, uploads=agents.uploads, budget=agents.leader_budget,
    )  # fmt: skip


async def test_consumers_are_answered_by_their_gateway_as_soon_as_records_are_visible() -> None:
    async with zone() as az2:
        await az2.broker.append(3)
        connected = [(await az2.gateway.connect(), ModelConsumer(1, 17, is_committed=True, max_bytes=1 << 20))
                     for _ in range(3)]  # fmt: skip
        for one in connected:
            await az2.fetch(*one)

        async def read_on() -> None:
            await az2.broker.append(2)
            await asyncio.gather(*(az2.fetch(*one) for one in connected))

        async with asyncio.timeout(60):
            while not az2.served():  # the first few are the broker's to answer
                await read_on()
        before = az2.served()
        for _ in range(5):
            await read_on()
        assert az2.served() > before
        async with asyncio.timeout(60):
            while any(len(consumer.read[0]) < az2.broker.model.logs[0].end for _, consumer in connected):
                await asyncio.gather(*(az2.fetch(*one) for one in connected))
        assert all(consumer.read[0] == list(range(az2.broker.model.logs[0].end)) for _, consumer in connected)


async def test_where_the_brokers_agent_does_not_serve_it_the_broker_answers() -> None:
    async with zone(granted=PeerCapabilities.NONE) as az2:
        await az2.broker.append(3)
        connected = await az2.gateway.connect(), ModelConsumer(1, 17, is_committed=True, max_bytes=1 << 20)
        for _ in range(5):
            await az2.broker.append(1)
            await az2.fetch(*connected)
        assert connected[1].read[0] == list(range(8))
        assert az2.served() == 0
