"""A TCP connection that carries frames:

a four-byte size, then so many bytes (Kafka's framing, and that between agents).

Reading pauses while the owner lags, or while all connections together hold more than their `MemoryBudget`. So a fast
sender waits in TCP and not in our memory (`FrameInbox`). Used from the event loop only.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import cast

from kafka_log.crc32c import Buffer
from replication.wire.frame_inbox import SIZE_PREFIX, STAGING_BYTES, FrameInbox
from replication.wire.memory_budget import MemoryBudget
from replication.wire.peer_protocol import PeerCapabilities

DEFAULT_MAX_FRAME_BYTES = 100 * 1024 * 1024
"""Kafka's default of socket.request.max.bytes, which bounds requests only."""
RESPONSE_FACTOR = 2
"""Responses may be larger than requests by this factor."""

_WRITE_HIGH_WATER_BYTES = 1024 * 1024
MAX_LONE_BYTES = 256


class FramedConnection(asyncio.BufferedProtocol):
    """Reads and writes whole frames as an asyncio protocol of one connection."""

    def __init__(
        self,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        frame_timeout_s: float = 30.0,
        on_connected: Callable[["FramedConnection"], None] | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        """A frame that has begun must be complete within `frame_timeout_s`, or the connection is closed."""
        self.max_frame_bytes = max_frame_bytes
        self.agreed = PeerCapabilities.NONE
        """What two agents have agreed on by their hellos."""
        self.bytes_sent = 0
        self.frames_sent = 0
        self.error: Exception | None = None
        self._inbox = FrameInbox(max_frame_bytes, budget or MemoryBudget(), self._go_on)
        self._frame_timeout_s = frame_timeout_s
        self._frame_timer: asyncio.TimerHandle | None = None
        """Fails the connection when a frame that has begun is not completed in time."""
        self._on_connected = on_connected
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """Kept from `connection_made` on, because Python 3.11 makes a system call each time it looks for the running
        loop."""
        self._reader: asyncio.Future[None] | None = None
        self._awaits_frame = False
        """Whether the owner waits for a frame, and for nothing else."""
        self.on_lone_frame: Callable[[memoryview], bool] | None = None
        """Gets a frame of up to MAX_LONE_BYTES that comes alone while the owner waits for one. Returns whether that is
        all that is to be done with it; else the owner gets it. For the shortest way of frames that come without load.
        """
        self._reading_paused = False
        self._peer_lags = False
        """Whether the peer does not keep up; read for each frame."""
        self._caught_up = asyncio.Event()
        """Set while the peer keeps up."""
        self._closed = False

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)
        if self._on_connected is not None:
            self._on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        assembler = self._inbox.assembler
        return assembler.buffer() if assembler.is_partial else assembler.staging

    def buffer_updated(self, nbytes: int) -> None:
        inbox = self._inbox
        if self.on_lone_frame is not None and self._awaits_frame and SIZE_PREFIX.size < nbytes <= MAX_LONE_BYTES:
            staging = inbox.assembler.staging
            is_lone = (
                not inbox.assembler.is_partial and SIZE_PREFIX.unpack_from(staging)[0] == nbytes - SIZE_PREFIX.size
            )
            try:
                if is_lone and self.on_lone_frame(staging[SIZE_PREFIX.size : nbytes]):
                    inbox.bytes_received += nbytes
                    return
            except ConnectionError as error:  # it cannot be passed on, as the other connection has ended
                self._fail(error)
                return
        if inbox.received(nbytes):
            self._awaits_frame = False
            if self._frame_timer is not None:
                self._stop_frame_timer()
            self._wake_reader()
        if inbox.assembler.fault is not None:
            self._fail(inbox.assembler.fault)
        elif inbox.is_full is not self._reading_paused or inbox.assembler.is_partial:
            self._update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop; an incomplete frame is discarded."""
        self._closed = True
        self.error = self.error or exc
        self._stop_frame_timer()
        self._inbox.close()
        self._wake_reader()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._peer_lags = True
        self._caught_up.clear()

    def resume_writing(self) -> None:
        self._peer_lags = False
        self._caught_up.set()

    def _update_reading(self) -> None:
        """Pause or resume reading. While we do not read, an incomplete frame is not the peer's fault."""
        if self._closed:
            return
        pause = self._inbox.is_full
        if pause is not self._reading_paused:
            self._reading_paused = pause
            if pause:
                self._stop_frame_timer()
            if self._transport is not None:
                self._transport.pause_reading() if pause else self._transport.resume_reading()
        if not pause and self._frame_timer is None and self._inbox.assembler.is_partial:
            error = TimeoutError("a frame did not arrive whole in time")
            self._frame_timer = asyncio.get_running_loop().call_later(self._frame_timeout_s, self._fail, error)

    def _go_on(self) -> None:
        self._update_reading()
        self._wake_reader()

    def _stop_frame_timer(self) -> None:
        if self._frame_timer is not None:
            self._frame_timer.cancel()
            self._frame_timer = None

    def _fail(self, error: Exception) -> None:
        self.error = error
        self.abort()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # The owner's side.

    def accept_frames(self, max_frame_bytes: int) -> None:
        """Accept frames up to this size from now on; larger ones end the connection."""
        self.max_frame_bytes = self._inbox.assembler.max_frame_bytes = max_frame_bytes

    async def read_frame(self) -> Buffer | None:
        """Return the next frame without its size prefix, or None when the connection ended (`error` may say why).

        This releases the frame before it.
        """
        if self._inbox.last_bytes:
            self._inbox.done_with_last()
        return self._inbox.take() if await self.frame_is_there() else None

    async def frame_is_there(self) -> bool:
        """Wait until a frame can be read without waiting. Returns False if the connection ended."""
        while not self._inbox.frames:
            if self._closed:
                return False
            self._awaits_frame = True
            try:
                await self._woken()
            finally:
                self._awaits_frame = False
        return True

    @property
    def next_frame(self) -> Buffer:
        """The frame that `read_frame` returns next, if one is complete."""
        return self._inbox.frames[0]

    async def _woken(self) -> None:
        self._reader = (self._loop or asyncio.get_running_loop()).create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    async def hold_unpacked(self, size: int) -> None:
        """Count in the memory budget the bytes that the last frame unpacks to, and wait for memory if necessary."""
        if not self._closed and not self._inbox.hold_more(size):
            self._update_reading()
            while self._inbox.waits_to_hold and not self._closed:
                await self._woken()

    def write_frame(self, *buffers: Buffer) -> None:
        """Send one frame made of these buffers, which must not change until they are sent."""
        if self._closed or self._transport is None:
            raise ConnectionResetError("the connection is closed")
        size = sum(map(len, buffers))
        self.bytes_sent += SIZE_PREFIX.size + size
        self.frames_sent += 1
        framed = (SIZE_PREFIX.pack(size), *buffers)
        if size <= STAGING_BYTES:  # one small copy beats a scatter-gather call
            self._transport.write(b"".join(framed))
        else:
            self._transport.writelines(cast(Sequence[bytes], framed))

    async def drain(self, patience_s: float | None = None, source: "FramedConnection | None" = None) -> None:
        """Wait until the peer keeps up again, for at most `patience_s`; None means `frame_timeout_s`.

        `source` is the connection whose frames are passed on here: it is `stalled` meanwhile. Raises ConnectionError
        when the peer is gone or too slow.
        """
        if self._peer_lags:
            try:
                with source.stalled() if source is not None else nullcontext():
                    async with asyncio.timeout(self._frame_timeout_s if patience_s is None else patience_s):
                        await self._caught_up.wait()
            except TimeoutError:
                self._fail(TimeoutError("the peer does not read"))
        if self._closed:
            raise ConnectionResetError("the connection is closed")

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """While the context lasts, let this connection's frames count as stuck, so that their memory blocks no other
        connection."""
        self._inbox.stall()
        try:
            yield
        finally:
            self._inbox.go_on()

    @property
    def bytes_received(self) -> int:
        """Bytes received, size prefixes included."""
        return self._inbox.bytes_received

    @property
    def is_writable(self) -> bool:
        """Whether the connection is open and the peer keeps up."""
        return not self._peer_lags and not self._closed and self._transport is not None

    @property
    def peer_certificate(self) -> dict[str, object] | None:
        """The peer's certificate as `ssl.SSLSocket.getpeercert` gives it; None without TLS."""
        return self._transport.get_extra_info("peercert") if self._transport is not None else None

    def close(self) -> None:
        """Send what is buffered, within `frame_timeout_s`, then close. Idempotent."""
        if self._transport is not None:
            unsent_bytes = 0 if self._closed else self._transport.get_write_buffer_size()  # asyncio's TLS tells before
            self._transport.close()
            if unsent_bytes:
                asyncio.get_running_loop().call_later(self._frame_timeout_s, self._transport.abort)
        self._closed = True
        self._wake_reader()

    def abort(self) -> None:
        """Close at once. The peer sees a broken connection and never half a frame that looks complete."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()
        self._wake_reader()
        self.resume_writing()


async def until_idle(connections: Sequence[FramedConnection], idle_s: float) -> None:
    """Wait until none of these connections has received a byte for a whole interval of `idle_s`: one or two
    intervals."""
    before, received = -1, sum(one.bytes_received for one in connections)
    while received != before:
        await asyncio.sleep(idle_s)
        before, received = received, sum(one.bytes_received for one in connections)


async def run_until_one_ends(*relays: Coroutine[None, None, None]) -> set[int]:
    """Run these coroutines until one ends, then cancel the others. Returns the indexes of those that ended.

    Raises what an ended one raised, except ConnectionError, which is how connections end.
    """
    tasks = [asyncio.get_running_loop().create_task(each) for each in relays]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            error = task.exception()
            if error is not None and not isinstance(error, ConnectionError):
                raise error
        return {place for place, task in enumerate(tasks) if task in done}
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def reserve(budget: MemoryBudget, size: int) -> None:
    """Take this many bytes of memory from the budget, waiting for them if necessary."""
    if budget.try_take(size):
        return
    granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    is_taken = False

    def go_on() -> None:
        nonlocal is_taken
        is_taken = True
        if not granted.done():  # cancelled in this turn of the event loop: the task does not know it yet
            granted.set_result(None)

    budget.wait(granted, budget.ticket(), size, 0, go_on)
    try:
        await granted
    except asyncio.CancelledError:
        budget.forget(granted)
        if is_taken:
            budget.give_back(size)
        raise
