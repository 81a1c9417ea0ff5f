"""Questions to another agent over one connection: each is told its own answer, or why there is none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from replication.wire.framed_connection import FramedConnection
from replication.wire.kafka_frame import MalformedFrameError
from replication.wire.peer_channel import NumberedQuestions, PeerChannel
from replication.wire.peer_connection import Address, connect_framed
from replication.wire.peer_protocol import MessageKind

KIND, PATIENCE_S = MessageKind.RANGE_REQUEST, 60
REFUSED = b"refused"


class Asked:
    """The other agent: connections to it, and what came there."""

    def __init__(self) -> None:
        self.connections: list[PeerChannel] = []
        self.came: asyncio.Queue[tuple[PeerChannel, int]] = asyncio.Queue()
        self._transports: list[FramedConnection] = []
        self.may_connect = asyncio.Event()
        self.may_connect.set()

    async def serve(self, connection: FramedConnection) -> None:
        self._transports.append(connection)
        channel = PeerChannel(connection)
        self.connections.append(channel)
        while (message := await channel.receive()) is not None:
            self.came.put_nowait((channel, int(bytes(message[1]))))

    async def hears(self, count: int) -> dict[int, PeerChannel]:
        """So many questions, by number."""
        async with asyncio.timeout(PATIENCE_S):
            found = [await self.came.get() for _ in range(count)]
        return {number: channel for channel, number in found}

    def end(self) -> None:
        for one in self._transports:
            one.close()


def read(kind: MessageKind, body: memoryview) -> tuple[int, bytes | Exception]:
    if kind is not MessageKind.RANGE:
        raise MalformedFrameError(0, f"{kind.name}")
    number, _, told = bytes(body).partition(b" ")
    return int(number), ValueError(told.decode()) if told == REFUSED else told


def answer(channel: PeerChannel, number: int, told: bytes) -> None:
    channel.send(MessageKind.RANGE, b"%d %s" % (number, told))


@asynccontextmanager
async def questions() -> AsyncIterator[tuple[Asked, NumberedQuestions[bytes]]]:
    asked = Asked()
    serving: set[asyncio.Task[None]] = set()

    def accepted() -> FramedConnection:
        connection = FramedConnection()
        serving.add(loop.create_task(asked.serve(connection)))
        return connection

    loop = asyncio.get_running_loop()
    server = await loop.create_server(accepted, "127.0.0.1", 0)

    async def connect() -> FramedConnection:
        await asked.may_connect.wait()
        return await connect_framed(Address(*server.sockets[0].getsockname()[:2]), FramedConnection(), None)

    made = NumberedQuestions(connect, read)
    try:
        yield asked, made
    finally:
        await made.close()
        asked.end()
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


def asking(made: NumberedQuestions[bytes]) -> asyncio.Task[bytes]:
    return asyncio.get_running_loop().create_task(made.ask(KIND, lambda number: b"%d" % number))


async def test_those_who_ask_at_once_share_a_connection_and_each_is_told_its_own_answer() -> None:
    async with questions() as (asked, made):
        tasks = [asking(made) for _ in range(3)]
        channels = await asked.hears(3)
        for number in (2, 0, 1):
            answer(channels[number], number, REFUSED if number == 0 else b"%d" % (10 * number))
        assert await asyncio.gather(*tasks[1:]) == [b"10", b"20"]
        with pytest.raises(ValueError, match="refused"):
            await tasks[0]
        assert len(asked.connections) == 1


async def test_who_gives_up_takes_nothing_from_others() -> None:
    async with questions() as (asked, made):
        asked.may_connect.clear()
        impatient, patient = asking(made), asking(made)
        await asyncio.sleep(0)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        asked.may_connect.set()
        ((number, channel),) = (await asked.hears(1)).items()
        late = asking(made)
        ((late_number, _),) = (await asked.hears(1)).items()
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        answer(channel, late_number, b"too late")
        answer(channel, number, b"told")
        assert await patient == b"told"
        assert len(asked.connections) == 1


@pytest.mark.parametrize("is_malformed", [False, True])
async def test_when_the_connection_ends_all_who_wait_are_told_and_the_next_one_makes_another(
    is_malformed: bool,
) -> None:
    async with questions() as (asked, made):
        tasks = [asking(made), asking(made)]
        channels = await asked.hears(2)
        if is_malformed:
            channels[0].send(MessageKind.KAFKA, b"0")
        else:
            asked.end()
        told = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in told] == [MalformedFrameError if is_malformed else ConnectionResetError] * 2
        again = asking(made)
        ((number, channel),) = (await asked.hears(1)).items()
        answer(channel, number, b"told")
        assert await again == b"told"
        assert len(asked.connections) == 2


async def test_who_waits_when_it_is_closed_is_told() -> None:
    async with questions() as (asked, made):
        task = asking(made)
        await asked.hears(1)
        await made.close()
        with pytest.raises(ConnectionResetError):
            await task
