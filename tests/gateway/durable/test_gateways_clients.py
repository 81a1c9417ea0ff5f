"""Answers to clients that come by the gateway of another zone are held at the agent beside the broker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from gateway.broker_pipe import HoldingContext
from gateway.metrics import DurableMetrics
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_protocol import CAPABILITIES, Hello, PeerCapabilities
from tests.gateway import routed_rig
from tests.gateway.durable.test_held_responses import NO_ERROR, TOPIC, Rig
from tests.gateway.durable.test_own_zone_port import PATIENCE_S, framed, read_frame
from tests.gateway.gateway_rig import GatewayRig, started

CLIENTS = PeerCapabilities.CLIENTS | PeerCapabilities.ROUTED_PRODUCE
by_either_way = pytest.mark.parametrize("is_routed", [False, True], ids=["as they are", "by object storage"])


class Broker:
    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.asked: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self.asked.append(await read_frame(reader))
                writer.write(framed(self.answer))
        except asyncio.IncompleteReadError:
            return


@asynccontextmanager
async def running(held: Rig, broker: Broker, is_routed: bool) -> AsyncIterator[GatewayRig]:
    metrics = DurableMetrics(CollectorRegistry(), held.logs)
    holding = HoldingContext(held.logs, metrics, MemoryBudget(), MemoryBudget(), MemoryBudget())
    if not is_routed:
        async with started(GatewayRig(broker.serve, holding=holding)) as rig:
            yield rig
        return
    async with routed_rig.started() as routed:
        rig = GatewayRig(
            broker.serve,
            granted=CAPABILITIES | CLIENTS,
            asked=Hello("cluster", routed_rig.GATEWAY_ID, routed_rig.INCARNATION, CLIENTS),
            routing=routed.routing,
            splicing=routed.splicing,
            holding=holding,
        )
        async with started(rig):
            yield rig


@by_either_way
async def test_what_gateways_bring_is_held_at_the_brokers_agent(is_routed: bool) -> None:
    held = Rig()
    asked, answer = held.request(1), held.made(1, (TOPIC, NO_ERROR, 100))
    broker = Broker(answer)
    async with running(held, broker, is_routed) as rig:
        reader, writer = await rig.connect()
        writer.write(framed(asked))
        await rig.until(lambda: held.logs.waiting == 1)
        assert broker.asked == [asked]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.readexactly(1)
        held.publish(105)
        assert await read_frame(reader) == answer


@by_either_way
async def test_a_request_that_is_not_understood_ends_the_connection(is_routed: bool) -> None:
    held = Rig()
    broker = Broker(b"")
    async with running(held, broker, is_routed) as rig:
        reader, writer = await rig.connect()
        writer.write(framed(b"\0\0\0\x63" + bytes(30)))
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
    assert broker.asked == []
