"""Frames over real sockets: whatever the pieces they come in, and whoever sends them."""

import asyncio
import itertools
import struct
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.wire.frame_inbox import MAX_QUEUED_FRAMES, STAGING_BYTES, FrameInbox, FrameSizeError
from replication.wire.framed_connection import FramedConnection
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_connection import Address, connect_framed

PATIENCE_S = 60


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


class Ends:
    """A framed connection, and the bare stream at its other end."""

    def __init__(
        self, connection: FramedConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connection, self.reader, self.writer = connection, reader, writer

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def next_frame(self) -> bytes | None:
        frame = await asyncio.wait_for(self.connection.read_frame(), PATIENCE_S)
        return None if frame is None else bytes(frame)

    async def arrived(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.connection.bytes_received < count:  # noqa: ASYNC110 - nothing tells of single reads
                await asyncio.sleep(0)


@asynccontextmanager
async def ends(max_frame_bytes: int = 100 * 1024 * 1024, frame_timeout_s: float = 30.0) -> AsyncIterator[Ends]:
    accepted: asyncio.Future[FramedConnection] = asyncio.get_running_loop().create_future()
    server = await asyncio.get_running_loop().create_server(
        lambda: FramedConnection(max_frame_bytes, frame_timeout_s, accepted.set_result), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    connection = await accepted
    try:
        yield Ends(connection, reader, writer)
    finally:
        connection.abort()
        writer.close()
        server.close()
        await server.wait_closed()


sizes = st.sampled_from([1, 2, 60, 1000, 65_531, 65_532, 65_533, 65_536, 70_000, 200_000])


@given(st.lists(sizes, min_size=1, max_size=6), st.lists(st.floats(0, 1), max_size=8))
def test_frames_come_out_whole_wherever_the_stream_is_cut(lengths: list[int], cuts: list[float]) -> None:
    frames = [bytes((index + 1,)) * length for index, length in enumerate(lengths)]
    stream = framed(*frames)
    positions = sorted({0, len(stream), *(round(cut * len(stream)) for cut in cuts)})
    asyncio.run(_fed_through_the_protocol(frames, [stream[a:b] for a, b in itertools.pairwise(positions)]))


async def _fed_through_the_protocol(frames: Sequence[bytes], chunks: Sequence[bytes]) -> None:
    """As the event loop feeds it, so that each chunk arrives exactly as cut."""
    connection = FramedConnection()
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            buffer = connection.get_buffer(-1)
            taken = min(len(buffer), len(rest))
            assert taken > 0
            buffer[:taken] = rest[:taken]
            connection.buffer_updated(taken)
            rest = rest[taken:]
    assert [bytes(await connection.read_frame() or b"") for _ in frames] == list(frames)
    assert connection.bytes_received == sum(map(len, chunks))


async def test_frames_in_pieces_over_a_socket() -> None:
    frames = [b"first", b"x" * 300_000, b"last"]
    async with ends() as pair:
        stream = framed(*frames)
        for start in range(0, len(stream), 7919):
            await pair.send(stream[start : start + 7919])
        assert [await pair.next_frame() for _ in frames] == frames


async def test_what_is_written_is_framed_small_or_large_from_any_buffers() -> None:
    async with ends() as pair:
        pair.connection.write_frame(b"small", memoryview(b" one"))
        pair.connection.write_frame(b"L" * 70_000, bytearray(b"M" * 70_000))
        expected = framed(b"small one", b"L" * 70_000 + b"M" * 70_000)
        assert await asyncio.wait_for(pair.reader.readexactly(len(expected)), PATIENCE_S) == expected
        assert pair.connection.bytes_sent == len(expected)


@pytest.mark.parametrize(
    ("size", "reason"),
    [(0, "zero"), (-1, "negative"), (-(2**31), "negative"), (1001, "too_large"), (2**31 - 1, "too_large")],
)
async def test_sizes_that_no_honest_peer_sends_close_the_connection_with_the_reason(size: int, reason: str) -> None:
    async with ends(max_frame_bytes=1000) as pair:
        tracemalloc.start()
        try:
            await pair.send(framed(b"fine") + struct.pack(">i", size) + b"more")
            assert await pair.next_frame() == b"fine"
            assert await pair.next_frame() is None
            assert tracemalloc.get_traced_memory()[1] < 512 * 1024
        finally:
            tracemalloc.stop()
        assert isinstance(pair.connection.error, FrameSizeError)
        assert pair.connection.error.reason == reason
        with pytest.raises(ConnectionError):
            pair.connection.write_frame(b"x")


async def test_memory_grows_with_what_arrives_and_not_with_what_is_announced() -> None:
    async with ends() as pair:
        tracemalloc.start()
        try:
            await pair.send(struct.pack(">i", 100 * 1024 * 1024) + b"a few bytes")
            await pair.arrived(15)
            assert tracemalloc.get_traced_memory()[1] < 3 * 1024 * 1024
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("begun", [b"\0", b"\0\0\0\x09half", struct.pack(">i", 500_000) + b"h" * 100_000])
async def test_a_frame_that_does_not_go_on_times_out(begun: bytes) -> None:
    async with ends(frame_timeout_s=0.05) as pair:
        await pair.send(begun)
        assert await pair.next_frame() is None
        assert isinstance(pair.connection.error, TimeoutError)


async def test_an_idle_connection_does_not_time_out() -> None:
    async with ends(frame_timeout_s=0.02) as pair:
        await pair.send(framed(b"one"))
        assert await pair.next_frame() == b"one"
        await asyncio.sleep(0.06)  # three times the limit: nothing is to happen in it
        await pair.send(framed(b"two"))
        assert await pair.next_frame() == b"two"


async def test_a_sender_is_not_timed_out_for_a_frame_that_we_do_not_read() -> None:
    async with ends(frame_timeout_s=0.02) as pair:
        frames = [b"%d" % number for number in range(MAX_QUEUED_FRAMES)]
        stream = framed(*frames, b"the last one")
        await pair.send(stream[:-5])
        await pair.arrived(len(stream) - 5)
        await asyncio.sleep(0.06)  # three times the limit, in which the owner lags
        assert pair.connection.error is None
        await pair.send(stream[-5:])
        assert [await pair.next_frame() for _ in range(9)] == [*frames, b"the last one"]


async def test_a_half_frame_before_the_end_is_discarded() -> None:
    async with ends() as pair:
        await pair.send(framed(b"whole") + framed(b"not whole")[:-1])
        pair.writer.close()
        assert await pair.next_frame() == b"whole"
        assert await pair.next_frame() is None
        assert await pair.next_frame() is None


async def test_reading_stops_while_the_owner_lags() -> None:
    frame = b"f" * 1_000_000
    async with ends() as pair:
        sending = asyncio.create_task(pair.send(framed(frame) * 100))
        await pair.arrived(MAX_QUEUED_FRAMES * 1_000_000)
        for _ in range(50):
            await asyncio.sleep(0)
        assert pair.connection.bytes_received <= (MAX_QUEUED_FRAMES + 1) * (4 + len(frame)) + STAGING_BYTES
        assert not sending.done()
        for _ in range(100):
            assert await pair.next_frame() == frame
        await asyncio.wait_for(sending, PATIENCE_S)


async def test_a_peer_that_does_not_read_holds_the_writer_and_is_given_up_in_time() -> None:
    async with ends(frame_timeout_s=0.1) as pair:
        pair.writer.transport.pause_reading()  # type: ignore[attr-defined]
        with pytest.raises(ConnectionError):
            await _write_for_ever(pair.connection)
        assert isinstance(pair.connection.error, TimeoutError)
        assert pair.connection.bytes_sent < 100_000_000


async def test_a_writer_goes_on_when_the_peer_reads_again() -> None:
    async with ends() as pair:
        for _ in range(30):
            pair.connection.write_frame(b"w" * 1_000_000)
        assert not pair.connection.is_writable
        draining = asyncio.create_task(pair.connection.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        await asyncio.wait_for(pair.reader.readexactly(30 * 1_000_004), PATIENCE_S)
        await asyncio.wait_for(draining, PATIENCE_S)
        assert pair.connection.is_writable


async def test_a_writer_that_has_patience_outlasts_a_peer_that_does_not_read_for_a_while() -> None:
    async with ends(frame_timeout_s=0.05) as pair:
        for _ in range(30):
            pair.connection.write_frame(b"w" * 1_000_000)
        draining = asyncio.create_task(pair.connection.drain(PATIENCE_S))
        await asyncio.sleep(0.2)
        assert not draining.done()
        await asyncio.wait_for(pair.reader.readexactly(30 * 1_000_004), PATIENCE_S)
        await asyncio.wait_for(draining, PATIENCE_S)
        assert pair.connection.error is None


async def test_a_connection_that_is_refused_raises() -> None:
    async with ends() as pair:
        address = pair.writer.get_extra_info("peername")
    with pytest.raises(OSError, match="Connect"):
        await connect_framed(Address(address[0], address[1]), FramedConnection(), timeout_s=5)


async def _write_for_ever(connection: FramedConnection) -> None:
    while True:
        connection.write_frame(b"w" * 1_000_000)
        await connection.drain()


def fed(inbox: FrameInbox, stream: bytes) -> None:
    """As much as the inbox has room for at a time."""
    rest = memoryview(stream)
    while rest:
        buffer = inbox.assembler.buffer()
        taken = min(len(buffer), len(rest))
        assert taken > 0
        buffer[:taken] = rest[:taken]
        inbox.received(taken)
        rest = rest[taken:]


@given(st.lists(sizes, min_size=1, max_size=6), st.lists(st.integers(1, 100_000), max_size=8))
def test_all_that_a_connection_holds_is_counted_until_it_is_done_with(lengths: list[int], chunks: list[int]) -> None:
    budget = MemoryBudget()
    inbox = FrameInbox(1_000_000, budget, lambda: None)
    stream, whole = framed(*(b"f" * length for length in lengths)), 0
    for size in [*chunks, len(stream)]:
        fed(inbox, stream[:size])
        stream = stream[size:]
        whole = sum(map(len, inbox.frames))
        assert budget.used == whole + len(inbox.assembler.large or b"")
    assert [len(frame) for frame in inbox.frames] == lengths
    assert not inbox.assembler.is_partial
    for length in lengths:
        assert len(inbox.take()) == length
        assert budget.used == whole
        inbox.done_with_last()
        whole -= length
    assert budget.used == 0


def test_a_large_frame_waits_for_memory_and_goes_on_when_there_is_some() -> None:
    budget, went_on = MemoryBudget(300_000), list[bool]()
    inbox = FrameInbox(1_000_000, budget, lambda: went_on.append(inbox.is_full))
    budget.take(150_000)
    stream = framed(b"l" * 400_000)
    fed(inbox, stream[:131_076])  # the first 128 KiB: twice as much does not fit
    was_full = inbox.is_full
    budget.give_back(150_000)
    assert (was_full, went_on) == (True, [False])
    fed(inbox, stream[131_076:])  # nobody else holds anything, so it may pass the bound
    assert len(inbox.take()) == 400_000
    inbox.done_with_last()
    assert budget.used == 0


@pytest.mark.parametrize("close_first", [True, False])
def test_what_is_queued_at_the_end_is_given_back_once(close_first: bool) -> None:
    budget = MemoryBudget()
    inbox = FrameInbox(1000, budget, lambda: None)
    fed(inbox, framed(b"one", b"two") + b"\0\0")
    inbox.take()
    if close_first:
        inbox.close()
    inbox.done_with_last()
    inbox.close()
    assert budget.used == 0
    assert inbox.take() == b"two"
    inbox.done_with_last()
    assert budget.used == 0
