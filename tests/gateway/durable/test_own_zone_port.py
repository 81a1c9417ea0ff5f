"""Clients of the own zone, and of gateways, over real sockets: their answers are held, and nothing else is changed."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from gateway.broker_pipe import HoldingContext
from gateway.client_listeners import ClientAccess
from gateway.client_port import BrokerListener, FramePort
from gateway.metrics import DurableMetrics, GatewayMetrics
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_connection import Address
from tests.gateway.durable.test_held_responses import NO_ERROR, TOPIC, Rig
from tests.gateway.produce.produce_frames import produce, records

PATIENCE_S = 60
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        size = int.from_bytes(await reader.readexactly(4), "big")
        return await reader.readexactly(size)


class Connected:
    """A client, the broker that it reaches, and what is known of logs."""

    def __init__(self, answers_bytes: float = math.inf, requests_bytes: float = math.inf) -> None:
        self.rig = Rig()
        self.registry = CollectorRegistry()
        budgets = MemoryBudget(requests_bytes), MemoryBudget(answers_bytes), MemoryBudget()
        self.holding = HoldingContext(self.rig.logs, DurableMetrics(self.registry, self.rig.logs), *budgets)
        self.broker: asyncio.Queue[Stream] = asyncio.Queue()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[Stream, Stream]]:
        server = await asyncio.start_server(lambda *stream: self.broker.put_nowait(stream), "127.0.0.1", 0)
        where = Address(*server.sockets[0].getsockname()[:2])
        access = ClientAccess(10, 10, GatewayMetrics(CollectorRegistry()))
        by_zone = {"az1": BrokerListener("az1", where)}
        budgets = self.holding.requests_budget, self.holding.responses_budget
        port = FramePort(1, by_zone, budgets, access, holding=self.holding)
        await port.open(Address("127.0.0.1", 0))
        self.address = port.address
        client, broker = await self.connect()
        try:
            yield client, broker
        finally:
            client[1].close()
            broker[1].close()
            await port.stop()
            server.close()

    async def connect(self) -> tuple[Stream, Stream]:
        client = await asyncio.open_connection(self.address.host, self.address.port)
        return client, await self.broker.get()

    def counted(self, outcome: str) -> float:
        labels = {"outcome": outcome}
        return self.registry.get_sample_value("remote_wal_gateway_durable_answers_total", labels) or 0.0

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - what it looks at is behind sockets
                await asyncio.sleep(0.001)

    async def until_it_stands_still(self, value: Callable[[], int]) -> None:
        """Wait until it is not 0 and does not change any more. All ends are on this loop, so some of its turns tell."""
        before, turns = 0, 0
        async with asyncio.timeout(PATIENCE_S):
            while turns < 100:
                before, turns = value(), turns + 1 if value() and value() == before else 0
                await asyncio.sleep(0.002)


async def test_an_answer_reaches_the_client_once_its_records_are_published() -> None:
    connected = Connected()
    rig = connected.rig
    async with connected.running() as (client, broker):
        asked = rig.request(1)
        client[1].write(framed(asked) + framed(other := b"\0\3\0\0\0\0\0\x02"))
        assert await read_frame(broker[0]) == asked
        assert await read_frame(broker[0]) == other
        answer = rig.made(1, (TOPIC, NO_ERROR, 100))
        broker[1].write(framed(answer) + framed(b"\0\0\0\x02other"))
        await connected.until(lambda: rig.logs.waiting == 1)
        await connected.until(lambda: connected.holding.held_budget.used > 0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client[0].readexactly(1)
        rig.publish(105)
        assert await read_frame(client[0]) == answer
        assert await read_frame(client[0]) == b"\0\0\0\x02other"
        assert connected.counted("stored") == 1
    await connected.until(lambda: connected.holding.held_budget.used == connected.holding.responses_budget.used == 0)


async def test_a_large_answer_reaches_its_client_while_others_answers_are_held() -> None:
    connected = Connected(answers_bytes=256 * 1024)
    rig = connected.rig
    async with connected.running() as (client, broker):
        client[1].write(framed(rig.request(1)))
        await read_frame(broker[0])
        broker[1].write(framed(rig.made(1, (TOPIC, NO_ERROR, 100))))
        await connected.until(lambda: rig.logs.waiting == 1)
        consumer, its_broker = await connected.connect()
        consumer[1].write(framed(b"\0\1\0\0\0\0\0\x07"))
        await read_frame(its_broker[0])
        fetched = b"\0\0\0\x07" + bytes(1024 * 1024)
        its_broker[1].write(framed(fetched))
        assert await read_frame(consumer[0]) == fetched
        assert rig.logs.waiting == 1
        for stream in (consumer, its_broker):
            stream[1].close()


async def test_a_large_request_reaches_the_broker_while_it_reads_nothing_from_other_clients() -> None:
    connected = Connected(requests_bytes=1024 * 1024)
    budget = connected.holding.requests_budget
    content = {0: records(300_000)}

    async def send_always(writer: asyncio.StreamWriter) -> None:
        for number in count():
            writer.write(framed(produce(content, correlation_id=number, acks=1)))
            await writer.drain()

    async with connected.running() as (client, broker):
        throttled: list[Stream] = []
        for _ in range(2):
            producer, its_broker = await connected.connect()
            its_broker[1].transport.pause_reading()  # type: ignore[attr-defined]
            throttled += [producer, its_broker]
        sending = [asyncio.create_task(send_always(producer[1])) for producer in throttled[::2]]
        await connected.until_it_stands_still(lambda: budget.used)
        request = produce(content, correlation_id=1, acks=1)
        client[1].write(framed(request))
        assert len(await read_frame(broker[0])) >= len(request)
        for task in sending:
            task.cancel()
        for stream in throttled:
            stream[1].transport.abort()
        await connected.until(lambda: budget.used == 0)


async def test_what_is_held_ends_with_the_brokers_connection() -> None:
    connected = Connected()
    async with connected.running() as (client, broker):
        client[1].write(framed(connected.rig.request(1)))
        await read_frame(broker[0])
        broker[1].write(framed(connected.rig.made(1, (TOPIC, NO_ERROR, 100))))
        await connected.until(lambda: connected.rig.logs.waiting == 1)
        broker[1].close()
        async with asyncio.timeout(PATIENCE_S):
            assert await client[0].read() == b""
        assert connected.rig.logs.waiting == 0


async def test_a_produce_request_that_is_not_understood_ends_the_connection_and_does_not_reach_the_broker() -> None:
    connected = Connected()
    async with connected.running() as (client, broker):
        client[1].write(framed(b"\0\0\0\x63" + bytes(30)))
        async with asyncio.timeout(PATIENCE_S):
            assert await client[0].read() == b""
            assert await broker[0].read() == b""
        assert connected.counted("refused") == 1
