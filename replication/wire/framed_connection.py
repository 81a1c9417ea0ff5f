"""A TCP connection that carries frames: four bytes of size, then so many bytes (Kafka's framing, and our peers').

Holds true: a size is judged before anything is allocated for it, and memory grows with what really arrived. Reading
stops while the owner lags, or while all connections together hold more than their `MemoryBudget`, so a fast sender
waits in TCP and not in our memory. Large frames are received straight into their own buffer. Used from the event loop
alone.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from kafka_log.crc32c import Buffer
from replication.wire.memory_budget import MemoryBudget

SIZE_PREFIX = struct.Struct(">i")
DEFAULT_MAX_FRAME_BYTES = 100 * 1024 * 1024
"""As the broker's socket.request.max.bytes, which bounds requests alone."""
RESPONSE_FACTOR = 2
"""Responses may be so many times larger."""

MAX_QUEUED_FRAMES = 8
MAX_QUEUED_BYTES = 16 * 1024 * 1024
_STAGING_BYTES = 64 * 1024
_FIRST_ALLOCATION_BYTES = 128 * 1024
_WRITE_HIGH_WATER_BYTES = 1024 * 1024


class FrameSizeError(ConnectionError):
    """A size prefix that no honest peer sends. `reason` labels the counter."""

    def __init__(self, reason: str, size: int) -> None:
        self.reason = reason
        super().__init__(f"frame size {size}: {reason}")


class FramedConnection(asyncio.BufferedProtocol):
    """Reads and writes whole frames: the protocol of one connection, which the event loop's own calls begin."""

    def __init__(
        self,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        frame_timeout_s: float = 30.0,
        on_connected: Callable[["FramedConnection"], None] | None = None,
        budget: MemoryBudget | None = None,
    ) -> None:
        """A frame that began must be complete within `frame_timeout_s`, or the connection is closed."""
        self._budget = budget or MemoryBudget()
        self._held_bytes = 0
        """What was taken from the budget: frames that are being received, that are queued, and the one read last."""
        self._waits_for_memory = False
        self._ticket = 0
        self._lags = False
        self.max_frame_bytes = max_frame_bytes
        self.bytes_received = 0
        self.bytes_sent = 0
        self.error: Exception | None = None
        self._frame_timeout_s = frame_timeout_s
        self._on_connected = on_connected
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._staging = bytearray(_STAGING_BYTES)
        self._staged = 0
        self._frame: bytearray | None = None
        self._frame_size = 0
        self._frame_received = 0
        self._frame_timer: asyncio.TimerHandle | None = None
        self._frames: deque[Buffer] = deque()
        self._queued_bytes = 0
        self._read_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = False

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)
        if self._on_connected is not None:
            self._on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the event loop: where the next bytes go."""
        if self._frame is None:
            return memoryview(self._staging)[self._staged :]
        return memoryview(self._frame)[self._frame_received :]

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the event loop: so many bytes were written into the buffer."""
        self.bytes_received += nbytes
        if self._frame is not None:
            self._frame_received += nbytes
            if self._frame_received == self._frame_size:
                frame, self._frame = self._frame, None
                self._frame_done(frame)
            elif self._frame_received == len(self._frame):
                self._grow_frame(2 * len(self._frame))
        else:
            self._staged += nbytes
            self._take_frames_from_staging()

    def eof_received(self) -> bool:
        """Called by the event loop; a frame that is not complete is discarded."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._closed = True
        self.error = self.error or exc
        self._stop_frame_timer()
        self._budget.forget(self)
        self._give_back(self._held_bytes)
        self._wake_reader()
        self._writable.set()

    def pause_writing(self) -> None:
        """Called by the event loop: the peer does not keep up."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self._writable.set()

    def _take_frames_from_staging(self) -> None:
        position = 0
        while self._staged - position >= SIZE_PREFIX.size:
            (size,) = SIZE_PREFIX.unpack_from(self._staging, position)
            if not 0 < size <= self.max_frame_bytes:
                self._fail(FrameSizeError("negative" if size < 0 else "zero" if size == 0 else "too_large", size))
                return
            start = position + SIZE_PREFIX.size
            if start + size <= self._staged:
                self._take(size)
                self._frame_done(bytes(self._staging[start : start + size]))
                position = start + size
                continue
            if size > _STAGING_BYTES - SIZE_PREFIX.size:
                self._begin_large_frame(size, start)
                position = self._staged
            break
        remaining = self._staged - position
        if position and remaining:
            self._staging[:remaining] = self._staging[position : self._staged]
        self._staged = remaining
        if remaining:
            self._start_frame_timer()

    def _begin_large_frame(self, size: int, start: int) -> None:
        received = self._staged - start
        self._frame = self._staging[start : self._staged]
        self._ticket = self._budget.ticket()
        self._take(received)
        self._frame_size = size
        self._frame_received = received
        self._start_frame_timer()
        self._grow_frame(_FIRST_ALLOCATION_BYTES)

    def _grow_frame(self, to_bytes: int) -> None:
        """Make room for what comes next of a large frame, as soon as the budget has it."""
        if self._frame is None:
            return
        size = min(self._frame_size, max(to_bytes, len(self._frame)))
        more = size - len(self._frame)
        if self._budget.try_take(more):
            self._grown(size)
            return
        self._waits_for_memory = True
        self._update_reading()
        self._budget.wait(self, self._ticket, more, len(self._frame), lambda: self._may_grow(size))

    def _may_grow(self, size: int) -> None:
        self._grown(size)
        self._may_read()

    def _grown(self, size: int) -> None:
        if self._frame is not None:
            self._held_bytes += size - len(self._frame)
            grown = bytearray(size)
            grown[: self._frame_received] = memoryview(self._frame)[: self._frame_received]
            self._frame = grown

    def _take(self, size: int) -> None:
        """Memory of what is there already."""
        self._budget.take(size)
        self._held_bytes += size

    def _may_read(self) -> None:
        self._waits_for_memory = False
        self._update_reading()

    def _give_back(self, size: int) -> None:
        self._held_bytes -= size
        self._budget.give_back(size)

    def _frame_done(self, frame: Buffer) -> None:
        self._stop_frame_timer()
        self._frames.append(frame)
        self._queued_bytes += len(frame)
        is_full = len(self._frames) >= MAX_QUEUED_FRAMES or self._queued_bytes >= MAX_QUEUED_BYTES
        if is_full or self._budget.is_spent:
            self._lags = True
            self._update_reading()
        self._wake_reader()

    def _update_reading(self) -> None:
        """Stop reading, or go on with it."""
        pause = self._lags or self._waits_for_memory
        if pause is self._reading_paused or self._closed:
            return
        self._reading_paused = pause
        if pause:
            self._stop_frame_timer()
        elif self._staged or self._frame is not None:
            self._start_frame_timer()
        if self._transport is not None:
            self._transport.pause_reading() if pause else self._transport.resume_reading()

    def _start_frame_timer(self) -> None:
        """For the frame that began; while we do not read, its sender is not to blame."""
        if self._frame_timer is not None or self._reading_paused:
            return
        self._frame_timer = self._loop.call_later(
            self._frame_timeout_s, self._fail, TimeoutError("a frame did not arrive whole in time")
        )

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

    async def read_frame(self) -> Buffer | None:
        """The next frame without its size prefix, or None when the connection ended (`error` may say why).

        The frame before it is done with.
        """
        if self._read_bytes:
            size, self._read_bytes = self._read_bytes, 0
            if not self._closed:
                self._give_back(size)
        while not self._frames:
            if self._closed:
                return None
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        frame = self._frames.popleft()
        self._queued_bytes -= len(frame)
        self._read_bytes = len(frame)
        if self._lags and not self._frames:
            self._lags = False
            self._update_reading()
        return frame

    def write_frame(self, *buffers: Buffer) -> None:
        """Send one frame made of these buffers, which must not change until they are sent."""
        if self._closed or self._transport is None:
            raise ConnectionResetError("the connection is closed")
        size = sum(map(len, buffers))
        self.bytes_sent += SIZE_PREFIX.size + size
        if size <= _STAGING_BYTES:  # one small copy beats a scatter-gather call
            self._transport.write(b"".join((SIZE_PREFIX.pack(size), *buffers)))
        else:
            self._transport.writelines(cast(Sequence[bytes], (SIZE_PREFIX.pack(size), *buffers)))

    async def drain(self) -> None:
        """Wait until the peer keeps up again. Raises ConnectionError when it is gone or too slow."""
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(self._frame_timeout_s):
                    await self._writable.wait()
            except TimeoutError:
                self._fail(TimeoutError("the peer does not read"))
        if self._closed:
            raise ConnectionResetError("the connection is closed")

    @property
    def is_writable(self) -> bool:
        """Whether the connection is open and the peer keeps up."""
        return self._writable.is_set() and not self._closed and self._transport is not None

    @property
    def peer_certificate(self) -> dict[str, object] | None:
        """The peer's certificate as `ssl.SSLSocket.getpeercert` gives it; None without TLS."""
        return self._transport.get_extra_info("peercert") if self._transport is not None else None

    def close(self) -> None:
        """Send what is buffered, within `frame_timeout_s`, then close. Idempotent."""
        if self._transport is not None:
            self._transport.close()
            if not self._closed and self._transport.get_write_buffer_size():
                self._loop.call_later(self._frame_timeout_s, self._transport.abort)
        self._closed = True
        self._wake_reader()

    def abort(self) -> None:
        """Close at once; the peer sees a broken connection and no half of a frame that looks whole."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()
        self._wake_reader()
        self._writable.set()
