"""What stands for TCP in simulations does what TCP does: the same tests on loopback and in virtual time."""

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from replication.wire.framed_connection import FramedConnection
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.peer_listener import PeerListener, shake_hands
from tests.simulation.network import PROCESS, ListeningSocket
from tests.simulation.virtual_time import VirtualTimeLoop, run

Scenario = Callable[[], Awaitable[None]]


@pytest.fixture(params=["kernel", 0, 1, 2])
def play(request: pytest.FixtureRequest) -> Callable[[Scenario], None]:
    """Runs it over the kernel's sockets, or by a seed over those of the simulation."""
    if request.param == "kernel":
        return lambda scenario: asyncio.run(cast(Any, scenario()))
    loop = VirtualTimeLoop()
    loop.network.rng = random.Random(request.param)
    loop.network.splits = 0.5
    return lambda scenario: run(loop, scenario())


class Side:
    def __init__(self) -> None:
        self.accepted: asyncio.Queue[FramedConnection] = asyncio.Queue()

    async def open(self) -> None:
        self.server = await asyncio.get_running_loop().create_server(
            lambda: FramedConnection(on_connected=self.accepted.put_nowait), "127.0.0.1", 0
        )
        self.address = Address(*self.server.sockets[0].getsockname()[:2])

    async def connected(self) -> tuple[FramedConnection, FramedConnection]:
        """(client's end, server's end)."""
        client = await connect_framed(self.address, FramedConnection())
        return client, await self.accepted.get()


def over(scenario: Callable[[Side], Awaitable[None]]) -> Scenario:
    async def opened() -> None:
        side = Side()
        await side.open()
        try:
            async with asyncio.timeout(20):
                await scenario(side)
        finally:
            side.server.close()

    return opened


def test_frames_of_all_sizes_arrive_whole_and_in_order(play: Callable[[Scenario], None]) -> None:
    sizes = [1, 5000, 3, 100_000, 2_000_000, 7]

    async def echo(end: FramedConnection) -> None:
        while (frame := await end.read_frame()) is not None:
            end.write_frame(frame)
            await end.drain()

    async def scenario(side: Side) -> None:
        client, end = await side.connected()
        echoing = asyncio.ensure_future(echo(end))
        for size in sizes:
            client.write_frame(bytes([size % 251]) * size)
        for size in sizes:
            assert await client.read_frame() == bytes([size % 251]) * size
        client.close()
        await echoing
        assert await client.read_frame() is None
        end.close()

    play(over(scenario))


def test_who_closes_has_sent_all_and_the_other_side_is_told(play: Callable[[Scenario], None]) -> None:
    async def scenario(side: Side) -> None:
        client, end = await side.connected()
        client.write_frame(b"the last words")
        client.close()
        assert await end.read_frame() == b"the last words"
        assert await end.read_frame() is None
        assert end.error is None
        with pytest.raises(ConnectionError):
            end.write_frame(b"to nobody")

    play(over(scenario))


def test_who_aborts_ends_it_for_both(play: Callable[[Scenario], None]) -> None:
    async def scenario(side: Side) -> None:
        client, end = await side.connected()
        client.abort()
        assert await client.read_frame() is None
        assert await end.read_frame() is None
        end.close()

    play(over(scenario))


def test_who_does_not_read_stops_who_writes(play: Callable[[Scenario], None]) -> None:
    async def scenario(side: Side) -> None:
        client, end = await side.connected()
        written = 0
        while client.is_writable:
            client.write_frame(bytes(1_000_000))
            written += 1
            assert written < 200
            await asyncio.sleep(0.001)
        for _ in range(written):
            frame = await end.read_frame()
            assert frame is not None
            assert len(frame) == 1_000_000
        await client.drain()
        client.close()
        end.close()

    play(over(scenario))


def test_where_nobody_listens_connections_are_refused(play: Callable[[Scenario], None]) -> None:
    async def scenario(side: Side) -> None:
        client, end = await side.connected()
        side.server.close()
        with pytest.raises(ConnectionRefusedError):
            await connect_framed(side.address, FramedConnection())
        client.write_frame(b"those that are open stay so")
        assert await end.read_frame() == b"those that are open stay so"
        client.close()
        end.close()

    play(over(scenario))


def test_a_listener_takes_connections_one_by_one(play: Callable[[Scenario], None]) -> None:
    def handed_over() -> socket.socket:
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualTimeLoop):
            return cast(socket.socket, ListeningSocket(loop.network, ("127.0.0.1", 0)))
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        return bound

    async def scenario() -> None:
        accepted = asyncio.Queue[socket.socket]()
        listener = PeerListener(lambda one, _address: accepted.put_nowait(one), lambda: None)
        await listener.start(handed_over())
        address = Address(*listener.sockets[0].getsockname()[:2])
        client, unwanted = FramedConnection(), FramedConnection()
        await connect_framed(address, client)
        client.write_frame(b"before anybody listens")
        end = FramedConnection()
        await shake_hands(await accepted.get(), end, None)
        assert await end.read_frame() == b"before anybody listens"
        await connect_framed(address, unwanted)
        (await accepted.get()).close()
        assert await unwanted.read_frame() is None
        client.close()
        assert await end.read_frame() is None
        await listener.close()
        with pytest.raises(ConnectionRefusedError):
            await connect_framed(address, FramedConnection())

    play(scenario)


async def _two_zones(loop: VirtualTimeLoop) -> tuple[FramedConnection, FramedConnection]:
    loop.network.zone_of = {"a": 1, "b": 2}
    PROCESS.set("a")
    side = Side()
    await side.open()
    PROCESS.set("b")
    return await side.connected()


def test_between_zones_that_are_cut_apart_all_waits() -> None:
    loop = VirtualTimeLoop()

    async def scenario() -> None:
        client, end = await _two_zones(loop)
        loop.network.cut_apart(1, 2)
        client.write_frame(b"late")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await end.read_frame()
        loop.network.join()
        assert await end.read_frame() == b"late"

    run(loop, scenario())


@pytest.mark.parametrize("seed", range(5))
def test_of_who_is_killed_or_cut_off_a_part_of_what_was_sent_arrives_at_most(seed: int) -> None:
    loop = VirtualTimeLoop()
    loop.network.rng = random.Random(seed)

    async def scenario() -> None:
        client, end = await _two_zones(loop)
        client.write_frame(b"a frame that breaks")
        if seed % 2:
            loop.network.kill("b")
        else:
            loop.network.cut(loop.network.connections("b")[0])
        assert await end.read_frame() in (None, b"a frame that breaks")
        assert await end.read_frame() is None
        assert isinstance(end.error, ConnectionResetError)

    run(loop, scenario())


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_to_a_connection_that_is_cut_already_never_arrives(seed: int) -> None:
    """Something before it is lost, and TCP keeps the order."""
    loop = VirtualTimeLoop()
    loop.network.rng = random.Random(seed)

    async def scenario() -> None:
        client, end = await _two_zones(loop)
        client.write_frame(b"a frame that breaks")
        loop.network.cut(loop.network.connections("a")[0])
        client.write_frame(b"a frame that follows")
        assert await end.read_frame() in (None, b"a frame that breaks")
        assert await end.read_frame() is None

    run(loop, scenario())
