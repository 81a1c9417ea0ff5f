"""The frames of one connection as they arrive: put together, counted against memory, and queued. Sans-IO.

Holds true: a size is judged before anything is allocated for it, and memory grows with what really arrived. Large
frames are received straight into their own buffer.
"""

import struct
from collections import deque
from collections.abc import Callable

from kafka_log.crc32c import Buffer
from replication.wire.memory_budget import MemoryBudget

SIZE_PREFIX = struct.Struct(">i")
STAGING_BYTES = 64 * 1024
"""Smaller frames are read many at a time."""
MAX_QUEUED_FRAMES = 8
MAX_QUEUED_BYTES = 16 * 1024 * 1024
_FIRST_ALLOCATION_BYTES = 128 * 1024


class FrameSizeError(ConnectionError):
    """A size prefix that no honest peer sends. `reason` labels the counter."""

    def __init__(self, reason: str, size: int) -> None:
        self.reason = reason
        super().__init__(f"frame size {size}: {reason}")


class FrameAssembler:
    """Where the stream's next bytes go, and the whole frames that come out of it."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._staging = bytearray(STAGING_BYTES)
        self._view = memoryview(self._staging)
        self._staged = 0
        self._large_bytes = 0
        self._received_bytes = 0
        self.large: bytearray | None = None
        """As much of a frame that is larger than the staging buffer as there is room for by now."""
        self.is_large = False
        """Whether such a frame is under way."""
        self.fault: FrameSizeError | None = None
        """The stream's end, as far as it can be read."""

    @property
    def is_partial(self) -> bool:
        """Whether a frame has begun and is not whole."""
        return self._staged > 0 or self.is_large

    def buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self.large is None:
            return self._view[self._staged :]
        return memoryview(self.large)[self._received_bytes :]

    def received_large(self, nbytes: int) -> bytearray | None:
        """So many bytes of the large frame were written into the buffer; the frame, if it is whole now."""
        self._received_bytes += nbytes
        if self.large is None or self._received_bytes < self._large_bytes:
            return None
        frame, self.large, self.is_large = self.large, None, False
        return frame

    def received(self, nbytes: int, frames: deque[Buffer]) -> int:
        """So many bytes were written into the buffer, and no large frame is under way: append those that are whole.

        Gives their size. A large one may begin, or a `fault` be found.
        """
        end = self._staged + nbytes
        position = whole_bytes = 0
        while end - position >= SIZE_PREFIX.size:
            (size,) = SIZE_PREFIX.unpack_from(self._staging, position)
            if not 0 < size <= self._max_frame_bytes:
                self.fault = FrameSizeError("negative" if size < 0 else "zero" if size == 0 else "too_large", size)
                break
            start = position + SIZE_PREFIX.size
            if start + size <= end:
                position = start + size
                frames.append(bytes(self._view[start:position]))
                whole_bytes += size
                continue
            if size > STAGING_BYTES - SIZE_PREFIX.size:
                self.large, self.is_large = self._staging[start:end], True
                self._large_bytes, self._received_bytes = size, end - start
                position = end
            break
        if position and position < end:
            self._view[: end - position] = self._view[position:end]
        self._staged = end - position
        return whole_bytes

    @property
    def room_wanted(self) -> int:
        """By how many bytes the large frame's buffer must grow before more of it is read; 0: there is room."""
        if self.large is None or self._received_bytes < len(self.large):
            return 0
        return min(self._large_bytes, max(2 * len(self.large), _FIRST_ALLOCATION_BYTES)) - len(self.large)

    def grow(self, more: int) -> None:
        """Make so much room."""
        if self.large is not None:
            grown = bytearray(len(self.large) + more)
            grown[: self._received_bytes] = memoryview(self.large)[: self._received_bytes]
            self.large = grown


class FrameInbox:
    """What one connection has received and not yet passed on, all of it counted in the budget."""

    def __init__(self, max_frame_bytes: int, budget: MemoryBudget, on_room: Callable[[], None]) -> None:
        """`on_room` is called when what kept reading has gone: see `is_full`."""
        self._budget = budget
        self._on_room = on_room
        self._queued_bytes = 0
        self._held_bytes = 0
        """Taken from the budget: frames that are being received, that are queued, and the one taken last."""
        self._lags = False
        self._waits_for_memory = False
        self._ticket = 0
        self.bytes_received = 0
        self.assembler = FrameAssembler(max_frame_bytes)
        self.frames: deque[Buffer] = deque()
        self.is_full = False
        """Whether nothing more is to be read now: the owner lags, or a large frame waits for memory."""
        self.last_bytes = 0
        """Of the frame that was taken last, and is not done with."""

    def received(self, nbytes: int) -> bool:
        """So many bytes were written into the assembler's buffer. Whether a frame is whole."""
        self.bytes_received += nbytes
        assembler, frames = self.assembler, self.frames
        if assembler.is_large:
            frame = assembler.received_large(nbytes)
            whole_bytes, taken_bytes = len(frame or b""), 0  # its memory was taken as it grew
            if frame is not None:
                frames.append(frame)
        else:
            whole_bytes = taken_bytes = assembler.received(nbytes, frames)
            if assembler.large is not None:
                self._ticket = self._budget.ticket()
                taken_bytes += len(assembler.large)
        if taken_bytes:  # of what is there already
            self._held_bytes += taken_bytes
            self._budget.take(taken_bytes)
        if assembler.is_large and (more := assembler.room_wanted):
            self._make_room(more)
        if not whole_bytes:
            return False
        self._queued_bytes += whole_bytes
        if len(frames) >= MAX_QUEUED_FRAMES or self._queued_bytes >= MAX_QUEUED_BYTES or self._budget.is_spent:
            self._lags = self.is_full = True
        return True

    def _make_room(self, more: int) -> None:
        """For what comes next of a large frame, as soon as the budget has it."""
        if self._budget.try_take(more):
            self._grown(more)
            return
        self._waits_for_memory = self.is_full = True
        held = len(self.assembler.large or b"")
        self._budget.wait(self, self._ticket, more, held, lambda: self._may_grow(more))

    def _may_grow(self, more: int) -> None:
        self._grown(more)
        self._waits_for_memory, self.is_full = False, self._lags
        self._on_room()

    def _grown(self, more: int) -> None:
        self._held_bytes += more
        self.assembler.grow(more)

    def take(self) -> Buffer:
        """The first of `frames`."""
        frame = self.frames.popleft()
        self.last_bytes = len(frame)
        self._queued_bytes -= len(frame)
        if self._lags and not self.frames:
            self._lags, self.is_full = False, self._waits_for_memory
            self._on_room()
        return frame

    def done_with_last(self) -> None:
        """The frame that was taken last is not held any more."""
        size, self.last_bytes = self.last_bytes, 0
        if self._held_bytes:
            self._held_bytes -= size
            self._budget.give_back(size)

    def close(self) -> None:
        """Nothing more arrives, and what is queued is not counted any more."""
        self._budget.forget(self)
        size, self._held_bytes = self._held_bytes, 0
        self._budget.give_back(size)
