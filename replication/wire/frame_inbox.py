"""Assembles the frames that one connection receives, counts their memory, and queues them. Sans-IO.

A size prefix is checked before anything is allocated for it, and memory grows only with the bytes that really arrived.
Large frames are received straight into their own buffer.
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
    """A frame's size prefix is one that no correct peer sends. `reason` labels the counter."""

    def __init__(self, reason: str, size: int) -> None:
        self.reason = reason
        super().__init__(f"frame size {size}: {reason}")


class FrameAssembler:
    """Provides the buffer for a connection's next bytes, and cuts complete frames out of what arrived."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._staging = bytearray(STAGING_BYTES)
        self.staging = memoryview(self._staging)
        """The buffer that the next bytes go to, from its beginning, unless a frame is partial."""
        self._staged = 0
        self._large_bytes = 0
        self._received_bytes = 0
        self.large: bytearray | None = None
        """The buffer of a frame that is larger than the staging buffer, as far as it is allocated."""
        self.is_large = False
        """Whether a large frame is being received."""
        self.is_partial = False
        """Whether a frame has begun and is not complete."""
        self.fault: FrameSizeError | None = None
        """The fault after which the stream cannot be read further."""

    def buffer(self) -> memoryview:
        """Return the buffer for the next bytes of the stream."""
        if self.large is None:
            return self.staging[self._staged :]
        return memoryview(self.large)[self._received_bytes :]

    def received_large(self, nbytes: int) -> bytearray | None:
        """Count bytes that were written into the buffer of a large frame. Returns the frame once it is complete."""
        self._received_bytes += nbytes
        if self.large is None or self._received_bytes < self._large_bytes:
            return None
        frame, self.large, self.is_large = self.large, None, False
        self.is_partial = False
        return frame

    def received(self, nbytes: int, frames: deque[Buffer]) -> int:
        """Count bytes written into the buffer while no large frame is being received; append the complete frames.

        Returns the size of the appended frames. Afterwards a large frame may have begun, or `fault` be set.
        """
        end = self._staged + nbytes
        position = whole_bytes = 0
        while end - position >= SIZE_PREFIX.size:
            (size,) = SIZE_PREFIX.unpack_from(self._staging, position)
            if not 0 < size <= self.max_frame_bytes:
                self.fault = FrameSizeError("negative" if size < 0 else "zero" if size == 0 else "too_large", size)
                break
            start = position + SIZE_PREFIX.size
            if start + size <= end:
                position = start + size
                frames.append(bytes(self.staging[start:position]))
                whole_bytes += size
                continue
            if size > STAGING_BYTES - SIZE_PREFIX.size:
                self.large, self.is_large = self._staging[start:end], True
                self._large_bytes, self._received_bytes = size, end - start
                position = end
            break
        if position and position < end:
            self.staging[: end - position] = self.staging[position:end]
        self._staged = end - position
        self.is_partial = self._staged > 0 or self.is_large
        return whole_bytes

    @property
    def room_wanted(self) -> int:
        """The bytes by which the large frame's buffer must grow before more can be read; 0 if there is room."""
        if self.large is None or self._received_bytes < len(self.large):
            return 0
        return min(self._large_bytes, max(2 * len(self.large), _FIRST_ALLOCATION_BYTES)) - len(self.large)

    def grow(self, more: int) -> None:
        """Enlarge the large frame's buffer by this number of bytes."""
        if self.large is not None:
            grown = bytearray(len(self.large) + more)
            grown[: self._received_bytes] = memoryview(self.large)[: self._received_bytes]
            self.large = grown


class FrameInbox:
    """The frames that one connection has received and not yet passed on, all counted in the memory budget."""

    def __init__(self, max_frame_bytes: int, budget: MemoryBudget, on_room: Callable[[], None]) -> None:
        """`on_room` is called when reading may continue after `is_full`."""
        self._budget = budget
        self._on_room = on_room
        self._queued_bytes = 0
        self._held_bytes = 0
        """Bytes taken from the budget: frames being received, queued frames, and the frame taken last."""
        self._lags = False
        self._is_stalled = False
        self._waits_for_memory = False
        self._ticket = 0
        self.bytes_received = 0
        self.assembler = FrameAssembler(max_frame_bytes)
        self.frames: deque[Buffer] = deque()
        self.is_full = False
        """Whether reading must pause: the owner lags, or a large frame waits for memory."""
        self.last_bytes = 0
        """Size of the frame that was taken last and is not released yet, and of what it unpacks to."""
        self.waits_to_hold = False
        """Whether what that frame unpacks to waits for memory."""

    def received(self, nbytes: int) -> bool:
        """Count bytes written into the assembler's buffer. Returns whether a frame is complete."""
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
        if taken_bytes:  # for bytes that have already arrived
            self._held_bytes += taken_bytes
            self._budget.take(taken_bytes)
        if assembler.is_large and (more := assembler.room_wanted):
            self._make_room(more)
        if not whole_bytes:
            return False
        self._queued_bytes += whole_bytes
        if (
            self._is_stalled
            or len(frames) >= MAX_QUEUED_FRAMES
            or self._queued_bytes >= MAX_QUEUED_BYTES
            or self._budget.is_spent
        ):
            self._lags = self.is_full = True
        return True

    def stall(self) -> None:
        """Note that no frames are taken until `go_on`: at most one more large frame is queued meanwhile."""
        self._is_stalled = True
        self._budget.stall(self, lambda: self._held_bytes)

    def go_on(self) -> None:
        """Note that the owner takes frames again, after `stall`."""
        self._is_stalled = False
        self._budget.go_on(self)

    def hold_more(self, size: int) -> bool:
        """Take memory for what the last taken frame unpacks to, until that frame is released.

        Small frames never wait. Returns False if nothing is received until there is memory (`waits_to_hold`).
        """
        if size <= STAGING_BYTES:
            self._budget.take(size)
        elif not self._budget.try_take(size):
            self.waits_to_hold = self.is_full = True
            ticket, held = self._budget.ticket(), self._held_bytes  # of a large frame, too, which waits no longer
            self._budget.wait(self, ticket, size, held, lambda: self._holds_more(size))
            return not self.waits_to_hold
        self._hold(size)
        return True

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self.last_bytes += size

    def _holds_more(self, size: int) -> None:
        self._hold(size)
        self.waits_to_hold, self.is_full = False, self._lags
        if self._waits_for_memory:
            self._make_room(self.assembler.room_wanted)
        self._on_room()

    def _make_room(self, more: int) -> None:
        """Enlarge the large frame's buffer as soon as the budget allows it."""
        if self._budget.try_take(more):
            self._grown(more)
            self._waits_for_memory, self.is_full = False, self._lags
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
        """Remove and return the first queued frame."""
        frame = self.frames.popleft()
        self.last_bytes = len(frame)
        self._queued_bytes -= len(frame)
        if self._lags and not self.frames:
            self._lags, self.is_full = False, self._waits_for_memory
            self._on_room()
        return frame

    def done_with_last(self) -> None:
        """Release the memory of the frame that was taken last."""
        size, self.last_bytes = self.last_bytes, 0
        if self._held_bytes:
            self._held_bytes -= size
            self._budget.give_back(size)

    def close(self) -> None:
        """Release the memory of all queued frames; nothing more is received."""
        self._budget.forget(self)
        size, self._held_bytes = self._held_bytes, 0
        self._budget.give_back(size)
