"""Leaves out what Kafka's consumers with isolation.level=read_committed do not see. Sans-IO.

A transaction's marker stands behind its records and says whether they count. So everything from an open transaction's
first batch on waits for that marker, as Kafka's last stable offset does. Up to `MEMORY_BYTES` of it wait in memory; of
what is behind that only the place is kept, and it is read once more.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from topic_reader.stored_log import LostRange, StoredBatch

MEMORY_BYTES = 64 * 1024 * 1024

_ABORTS, _COMMITS = b"\x00\x00", b"\x00\x01"
"""Types of the markers, behind the version in their keys. As in Kafka, a newer version has the same types."""

Undecided = Callable[[int, int, LostRange | None], None]
"""Is told of a transaction without a marker: where it begins, how many records it has, and what is lost, or left out by
compaction, where the marker may have been; None: what is stored ends before it.
"""


@dataclass(slots=True)
class _Waiting:
    base_offset: int
    record_count: int
    batch: StoredBatch | None
    """None: to be read once more."""
    counts: bool | None
    """Whether its records are committed; None: not known yet."""
    compacted: LostRange | None = None
    """Of a transaction's first batch: the first offsets behind it that compaction left out, maybe with the marker."""


def committed(
    pieces: Iterable[StoredBatch | LostRange],
    read_again: Callable[[int], Iterator[StoredBatch]],
    end: int,
    undecided: Undecided,
) -> Iterator[StoredBatch]:
    """Yield the committed batches that begin below `end`, up to the first one whose marker is not stored yet.

    `pieces` go on behind `end`, for the markers there; they are read only as far as needed. `read_again` reads from an
    offset on. Lost offsets may have held a marker. So no later marker decides about the transactions that are open
    there: `undecided` is called, and if it does not raise, their records are left out. Offsets that compaction left out
    may have held one, too: there, this is about transactions without a later marker.
    """
    queue = _Queue(read_again)
    for compacted, piece in _with_compacted(pieces):
        if compacted is not None:
            queue.note_compacted(compacted)
        if isinstance(piece, LostRange):
            queue.leave_out_open(undecided, piece)
        else:
            is_behind = piece.header.base_offset >= end
            if is_behind and not queue.open_batches:
                break
            if piece.header.is_control:
                queue.decide(piece)
            elif not is_behind:
                queue.put(piece)
        yield from queue.decided()
    queue.leave_out_open(undecided, None)
    yield from queue.decided()


def _with_compacted(
    pieces: Iterable[StoredBatch | LostRange],
) -> Iterator[tuple[LostRange | None, StoredBatch | LostRange]]:
    """Yield each piece with the offsets before it that compaction left out."""
    next_offset = None
    for piece in pieces:
        begin, end = piece if isinstance(piece, LostRange) else (piece.header.base_offset, piece.header.last_offset + 1)
        yield LostRange(next_offset, begin) if next_offset is not None and next_offset < begin else None, piece
        next_offset = end


class _Queue:
    """Batches in their order, from the first one that is not decided on."""

    def __init__(self, read_again: Callable[[int], Iterator[StoredBatch]]) -> None:
        self.open_batches: dict[int, list[_Waiting]] = {}
        """By producer id."""
        self._read_again = read_again
        self._again: Iterator[StoredBatch] | None = None
        self._newest: StoredBatch | None = None
        """That it gave."""
        self._waiting: deque[_Waiting] = deque()
        self._held_bytes = 0

    def put(self, batch: StoredBatch) -> None:
        header = batch.header
        fits = self._held_bytes < MEMORY_BYTES
        self._held_bytes += header.size_bytes if fits else 0
        counts = None if header.is_transactional else True
        one = _Waiting(header.base_offset, header.record_count, batch if fits else None, counts)
        self._waiting.append(one)
        if header.is_transactional:
            self.open_batches.setdefault(header.producer_id, []).append(one)

    def decide(self, marker: StoredBatch) -> None:
        if (fate := _fate(marker)) is not None:
            for one in self.open_batches.pop(marker.header.producer_id, ()):
                one.counts = fate

    def note_compacted(self, compacted: LostRange) -> None:
        for batches in self.open_batches.values():
            batches[0].compacted = batches[0].compacted or compacted

    def leave_out_open(self, undecided: Undecided, lost: LostRange | None) -> None:
        """Leave out open transactions whose markers may have been in what is lost or compacted; others stay open."""
        for batches in self.open_batches.values():
            where = lost or batches[0].compacted
            undecided(batches[0].base_offset, sum(one.record_count for one in batches), where)
            for one in batches if where else ():
                one.counts = False
        self.open_batches.clear()

    def decided(self) -> Iterator[StoredBatch]:
        while self._waiting and self._waiting[0].counts is not None:
            one = self._waiting.popleft()
            if one.batch is not None:
                self._held_bytes -= one.batch.header.size_bytes
            if one.counts and (batch := one.batch or self._found_again(one.base_offset)) is not None:
                yield batch

    def _found_again(self, offset: int) -> StoredBatch | None:
        """Return the batch at the offset; None if it was lost meanwhile, which the reader has reported."""
        if self._again is None:
            self._again = self._read_again(offset)
        while self._newest is None or self._newest.header.base_offset < offset:
            if (newest := next(self._again, None)) is None:
                return None
            self._newest = newest
        return self._newest if self._newest.header.base_offset == offset else None


def stable_end(pieces: Iterable[StoredBatch | LostRange], end: int) -> int:
    """Return the last stable offset: where the first transaction without a marker begins, else `end`.

    Offsets that are lost, or that compaction left out, may have held the markers of the transactions that are open
    there, so these count as ended.
    """
    begun: dict[int, int] = {}
    for compacted, piece in _with_compacted(pieces):
        if compacted is not None or isinstance(piece, LostRange):
            begun.clear()
        if isinstance(piece, LostRange):
            continue
        if piece.header.is_control:
            if _fate(piece) is not None:
                begun.pop(piece.header.producer_id, None)
        elif piece.header.is_transactional:
            begun.setdefault(piece.header.producer_id, piece.header.base_offset)
    return min(begun.values(), default=end)


def _fate(marker: StoredBatch) -> bool | None:
    """Return whether the marker commits; None if it is none of a transaction's."""
    types = [(record.key or b"")[2:4] for record in marker.records()]
    return True if _COMMITS in types else False if _ABORTS in types else None
