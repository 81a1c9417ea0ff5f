"""Who leads clients to the broker while its agent is dead."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from gateway import standby
from gateway.client_listeners import ClientAccess
from gateway.client_port import PassingPort
from gateway.metrics import GatewayMetrics
from gateway.standby import listeners_at, stand_by
from replication.wire.peer_connection import Address
from replication.wire.peer_listener import PeerListener

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "LOOK_S", 0.002)
    monkeypatch.setattr(standby, "ASK_S", 0.004)


class Host:
    """An agent that may listen, a broker, and the standby between them."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.where = Address(host, free.getsockname()[1], is_shared=True)
        self.agent: PeerListener | None = None
        self.by_agent: asyncio.Queue[socket.socket] = asyncio.Queue()
        self.is_any_durable: bool | None = False
        """None: it is not known."""
        self.asked = 0
        self.may_tell = threading.Event()
        self.may_tell.set()

    def tell(self) -> bool:
        self.asked += 1
        assert self.may_tell.wait(PATIENCE_S)
        if self.is_any_durable is None:
            raise OSError("Kafka does not answer")
        return self.is_any_durable

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - neither the kernel nor another thread tells it
                await asyncio.sleep(0.001)

    async def start_agent(self) -> None:
        self.agent = PeerListener(lambda accepted, _: self.by_agent.put_nowait(accepted), lambda: None)
        await self.agent.start(self.where)

    @asynccontextmanager
    async def standing_by(self) -> AsyncIterator[None]:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"broker")
            await reader.read()
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as broker:
            where = Address(*broker.sockets[0].getsockname()[:2])
            port = PassingPort(where, ClientAccess(10, 10, GatewayMetrics(CollectorRegistry())))
            task = asyncio.create_task(stand_by(self.where, port, self.tell))
            try:
                yield
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                if self.agent is not None:
                    await self.agent.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As clients do: again and again."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(ConnectionRefusedError):
                    return await asyncio.open_connection(self.where.host or "127.0.0.1", self.where.port)
                await asyncio.sleep(0.001)


async def test_it_leads_to_the_broker_until_the_agent_listens_again() -> None:
    host = Host()
    await host.start_agent()
    async with host.standing_by(), asyncio.timeout(PATIENCE_S):
        _, to_agent = await host.connect()
        (await host.by_agent.get()).close()
        to_agent.close()
        assert host.agent is not None
        await host.agent.close()
        reader, writer = await host.connect()
        assert await reader.readexactly(6) == b"broker"
        await host.start_agent()
        assert await reader.read() == b"", "what it has led ends"
        writer.close()
        await host.until(lambda: listeners_at(host.where) == 1)
        _, to_agent = await host.connect()
        (await host.by_agent.get()).close()
        to_agent.close()


async def test_its_own_sockets_are_not_the_agents_where_a_name_has_several_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def look(where: Address) -> int:
        nonlocal looks
        looks += 1
        return listeners_at(where)

    monkeypatch.setattr(standby, "listeners_at", look)
    host = Host("")  # all addresses of both families
    async with host.standing_by(), asyncio.timeout(PATIENCE_S):
        reader, writer = await host.connect()
        assert await reader.readexactly(6) == b"broker"
        assert listeners_at(host.where) == 2
        seen = looks
        await host.until(lambda: looks > seen + 3 or reader.at_eof())
        assert not reader.at_eof(), "it goes on"
        await host.start_agent()
        assert await reader.read() == b""
        writer.close()
        await host.until(lambda: listeners_at(host.where) == 2)
        _, to_agent = await host.connect()
        (await host.by_agent.get()).close()
        to_agent.close()


def test_a_host_without_ipv6_has_no_table_of_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as agent:
        where = Address("127.0.0.1", agent.getsockname()[1])
        assert listeners_at(where, (Path("/proc/net/tcp"), tmp_path / "tcp6")) == 1


async def test_at_its_start_it_says_what_it_watches() -> None:
    host = Host()
    await host.start_agent()
    with capture_logs() as told:
        async with host.standing_by():
            await host.until(lambda: bool(told))
    assert (told[0]["event"], told[0]["address"]) == ("standby_watches", str(host.where))


@pytest.mark.parametrize("told", [True, None])
async def test_it_leads_nobody_while_a_topic_is_durable_or_that_is_not_known(told: bool | None) -> None:
    host = Host()
    host.is_any_durable = told
    async with host.standing_by(), asyncio.timeout(PATIENCE_S):
        await host.until(lambda: host.asked >= 3)
        assert listeners_at(host.where) == 0
        host.is_any_durable = False
        _, writer = await host.connect()
        writer.close()


@pytest.mark.parametrize("told", [True, None])
async def test_what_it_leads_ends_when_a_topic_becomes_durable_or_that_is_not_known(told: bool | None) -> None:
    host = Host()
    async with host.standing_by(), asyncio.timeout(PATIENCE_S):
        reader, writer = await host.connect()
        assert await reader.readexactly(6) == b"broker"
        host.is_any_durable = told
        assert await reader.read() == b""
        writer.close()
        await host.until(lambda: not listeners_at(host.where))


async def test_settings_are_not_read_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def look(where: Address) -> int:
        nonlocal looks
        looks += 1
        return listeners_at(where)

    monkeypatch.setattr(standby, "ASK_S", 3600.0)
    monkeypatch.setattr(standby, "listeners_at", look)
    host = Host()
    host.is_any_durable = True
    async with host.standing_by():
        await host.until(lambda: host.asked > 0 and looks > 10)
        assert host.asked == 1
        await host.start_agent()
        seen = looks
        await host.until(lambda: looks > seen + 1)
        assert host.agent is not None
        await host.agent.close()
        await host.until(lambda: host.asked == 2)


async def test_it_rests_when_the_agent_is_back_though_kafka_does_not_tell_of_settings() -> None:
    host = Host()
    async with host.standing_by(), asyncio.timeout(PATIENCE_S):
        reader, writer = await host.connect()
        assert await reader.readexactly(6) == b"broker"
        asked = host.asked
        host.may_tell.clear()
        await host.until(lambda: host.asked > asked)
        await host.start_agent()
        assert await reader.read() == b""
        writer.close()
        host.may_tell.set()


@pytest.mark.parametrize(("bound", "asked"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.2"), ("::1", "::1")])
def test_what_listens_at_an_address_or_at_all_of_them_is_found(bound: str, asked: str) -> None:
    family = socket.AF_INET6 if ":" in bound else socket.AF_INET
    with socket.create_server((bound, 0), family=family) as one:
        port = one.getsockname()[1]
        assert listeners_at(Address(asked, port)) == 1
        assert listeners_at(Address("127.0.0.3", port)) == (bound == "0.0.0.0")
    assert listeners_at(Address(asked, port)) == 0
