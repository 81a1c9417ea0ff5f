"""Leaves out what Kafka's consumers with isolation.level=read_committed do not see. Sans-IO.

A transaction's marker stands behind its records and says whether they count. So everything from an open transaction's
first batch on waits for that marker, as Kafka's last stable offset does. Up to `MEMORY_BYTES` of it wait in memory; of
what is behind that only the place is kept, and it is read once more.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from recovery.errors import RecoveryError
from topic_reader.stored_log import StoredBatch

MEMORY_BYTES = 64 * 1024 * 1024

_ABORT, _COMMIT = b"\x00\x00\x00\x00", b"\x00\x00\x00\x01"
"""Keys of the markers: version 0, then the type."""


class UndecidedTransactionError(RecoveryError):
    """A transaction has no marker, though the range to read ends where none was open."""


@dataclass(slots=True)
class _Waiting:
    base_offset: int
    batch: StoredBatch | None
    """None: to be read once more."""
    counts: bool | None
    """Whether its records are committed; None: not known yet."""


def uncommitted(batches: Iterable[StoredBatch]) -> Iterator[StoredBatch]:
    """Yield all batches except for markers."""
    return (batch for batch in batches if not batch.header.is_control)


def committed(
    batches: Iterable[StoredBatch],
    read_again: Callable[[int], Iterator[StoredBatch]],
    end: int,
    name: str,
    *,
    is_end_stable: bool,
) -> Iterator[StoredBatch]:
    """Yield the committed batches that begin below `end`, up to the first one whose marker is missing.

    `batches` go on behind `end`, for the markers there; they are read only as far as needed. `read_again` reads from an
    offset on. `is_end_stable`: whoever chose `end` found no open transaction below it, and reads the next range from
    there on. So a missing marker raises UndecidedTransactionError, with the log's `name`.
    """
    queue = _Queue(read_again)
    for batch in batches:
        is_behind = batch.header.base_offset >= end
        if is_behind and not queue.open_batches:
            break
        if batch.header.is_control:
            queue.decide(batch)
        elif not is_behind:
            queue.put(batch)
        yield from queue.decided()
    if is_end_stable and queue.open_batches:
        first = min(waiting[0].base_offset for waiting in queue.open_batches.values())
        hint = "retry when it has ended; to continue without its marker, read with read_uncommitted"
        raise UndecidedTransactionError("read", name, f"the transaction at offset {first} has no marker yet", hint)


class _Queue:
    """Batches in their order, from the first one that is not decided on."""

    def __init__(self, read_again: Callable[[int], Iterator[StoredBatch]]) -> None:
        self.open_batches: dict[int, list[_Waiting]] = {}
        """By producer id."""
        self._read_again = read_again
        self._again: Iterator[StoredBatch] | None = None
        self._waiting: deque[_Waiting] = deque()
        self._held_bytes = 0

    def put(self, batch: StoredBatch) -> None:
        header = batch.header
        fits = self._held_bytes < MEMORY_BYTES
        self._held_bytes += header.size_bytes if fits else 0
        one = _Waiting(header.base_offset, batch if fits else None, None if header.is_transactional else True)
        self._waiting.append(one)
        if header.is_transactional:
            self.open_batches.setdefault(header.producer_id, []).append(one)

    def decide(self, marker: StoredBatch) -> None:
        if (fate := _fate(marker)) is not None:
            for one in self.open_batches.pop(marker.header.producer_id, ()):
                one.counts = fate

    def decided(self) -> Iterator[StoredBatch]:
        while self._waiting and self._waiting[0].counts is not None:
            one = self._waiting.popleft()
            if one.batch is not None:
                self._held_bytes -= one.batch.header.size_bytes
            if one.counts:
                yield one.batch if one.batch is not None else self._found_again(one.base_offset)

    def _found_again(self, offset: int) -> StoredBatch:
        if self._again is None:
            self._again = self._read_again(offset)
        return next(batch for batch in self._again if batch.header.base_offset == offset)


def stable_end(batches: Iterable[StoredBatch], end: int) -> int:
    """Return the last stable offset: where the first transaction without a marker begins, else `end`."""
    begun: dict[int, int] = {}
    for batch in batches:
        producer_id = batch.header.producer_id
        if batch.header.is_transactional and not batch.header.is_control:
            begun.setdefault(producer_id, batch.header.base_offset)
        elif batch.header.is_control and _fate(batch) is not None:
            begun.pop(producer_id, None)
    return min(begun.values(), default=end)


def _fate(marker: StoredBatch) -> bool | None:
    """Return whether the marker commits; None if it is none of a transaction's."""
    keys = [record.key for record in marker.records()]
    return True if _COMMIT in keys else False if _ABORT in keys else None
