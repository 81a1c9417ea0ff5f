"""Batches that a zone gateway stored on their way to this leader, kept until the log shows what became of them.

Sans-IO. The code that splices a routed Produce request offers its batches before the broker gets them. When an object
is made of the log's appends, a batch that equals an offered one, except for base offset and leader epoch, which the
broker sets, is named in the object instead of its bytes (`plugin.adopted_records`).

- The log decides. Its bytes are compared with those from the gateway's object, all but those twelve; so batches that
  the broker changed, refused or never got, and repetitions by an idempotent producer, are never adopted.
- Nothing waits: an object is made when it would be made anyway, with bytes where no offer matches. A failed upload
  leaves its offers unchanged for the next one.
- Each offer has one outcome, reported once: whether an object that names the gateway's was published. It comes when all
  of its batches are in such objects, else `wait_max_s` after the broker's answer, or `age_max_s` after the offer; never
  while an upload under way names it, or while the topic has not acknowledged one. After that it is not adopted any
  more.
- What is kept for comparing is bounded: an offer beyond `kept_bytes` is refused.

Use it in the event loop.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from kafka_log.crc32c import Buffer
from kafka_log.record_batch import CorruptBatchError, scan_batches
from plugin.adopted_records import MAX_SOURCES, STAMPS, AdoptedBatch, AdoptedRecords, BatchSource
from rlm.write_path.uploads.segment_queue import MetaQueueItem

MIN_BATCH_BYTES: Final = 512
"""Naming a batch takes 26 bytes; smaller ones are stored again."""
NAMED_WITHIN_MS: Final = 600_000
"""How long after a gateway began with an object others may be stored that name it. This is far longer than offers are
kept and uploads take, because deleting the object relies on it."""
Records = memoryview | AdoptedRecords


@dataclass(frozen=True, slots=True)
class AdoptionLimits:
    """How many bytes gateways may offer for adoption, and how long an offer is kept."""

    kept_bytes: int = 64 * 1024 * 1024
    wait_max_s: float = 5.0
    age_max_s: float = 60.0


DEFAULT_LIMITS: Final = AdoptionLimits()


@dataclass(slots=True, eq=False)
class Offer:
    """The batches of one producer's request that a gateway offers for adoption."""

    source: BatchSource
    start_position: int
    """Position of the content in the gateway's object."""
    content: memoryview
    tell: Callable[[bool], None]
    until_s: float
    left: set[int]
    """Positions in the content of the batches that no published object names yet."""
    is_adopted: bool = False
    under_way: int = 0
    """How many uploads name it."""
    unpublished: list[Callable[[], bool]] = field(default_factory=list)
    """For objects that name it, whether the topic has not acknowledged them."""


class _Piece(NamedTuple):
    offer: Offer
    start: int
    end: int


_Key = tuple[int, int]
"""A batch's size and CRC, as its header has them."""


class AdoptableRecords:
    """The offers of zone gateways, kept until the log shows what became of them. All times are monotonic seconds."""

    def __init__(self, limits: AdoptionLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._offers: dict[Offer, list[_Key]] = {}
        self._pieces: dict[_Key, deque[_Piece]] = {}
        self._kept_bytes = 0

    def offer(
        self,
        source: BatchSource,
        start_position: int,
        content: Buffer,
        lengths: Iterable[int],
        now_s: float,
        tell: Callable[[bool], None],
    ) -> Offer | None:
        """Offer records of these lengths, one after the other; `tell` is called with whether any were adopted.

        Returns None if nothing can be adopted; `tell` is not called then.
        """
        view = memoryview(content)
        pieces = [
            (crc, start, end)
            for start, end in _spans(lengths)
            if (crc := _crc_of_one_batch(view[start:end])) is not None
        ]
        if not pieces or self._kept_bytes + len(view) > self._limits.kept_bytes:
            return None
        offer = Offer(source, start_position, view, tell, now_s + self._limits.age_max_s, {at for _, at, _ in pieces})
        self._kept_bytes += len(view)
        keys = self._offers[offer] = [(end - start, crc) for crc, start, end in pieces]
        for key, (_, start, end) in zip(keys, pieces, strict=True):
            self._pieces.setdefault(key, deque()).append(_Piece(offer, start, end))
        return offer

    def answered(self, offer: Offer, now_s: float) -> None:
        """Record that the broker responded to the request, or never will: its batches are in the log by now, or
        never will be."""
        offer.until_s = min(offer.until_s, now_s + self._limits.wait_max_s)

    @property
    def deadline_s(self) -> float:
        """The latest time at which an offer's outcome is due; inf without offers."""
        return min((offer.until_s for offer in self._offers), default=math.inf)

    @property
    def kept_bytes(self) -> int:
        """Bytes of offered batches that are kept for comparison."""
        return self._kept_bytes

    def look_again(self, now_s: float) -> None:
        """Report outcomes that are due, because time has passed or the topic has acknowledged a record."""
        for offer in list(self._offers):
            self._end_if_done(offer, now_s)

    # What the log has.

    def adopt(self, items: Sequence[MetaQueueItem], wall_ms: int) -> tuple[list[Records], "Adoption"]:
        """Return the items' records for an object, with names of gateways' objects in place of their bytes. `Adoption`
        must be ended later.

        If clocks differ by minutes nothing is adopted, because a late publication could not be noticed.
        """
        if not self._pieces:
            return [item.records for item in items], Adoption(self, ())
        found = [[self._found(item, index, wall_ms) for index in range(len(item.batches))] for item in items]
        weights: Counter[BatchSource] = Counter()
        for piece in (one for of_item in found for one in of_item if one is not None):
            weights[piece.offer.source] += piece.end - piece.start
        named = {source for source, _ in weights.most_common(MAX_SOURCES)}
        records: list[Records] = []
        used: list[_Piece] = []
        for item, pieces in zip(items, found, strict=True):
            kept = [
                (batch, piece)
                for batch, piece in zip(item.batches, pieces, strict=True)
                if piece is not None and piece.offer.source in named
            ]
            used += [piece for _, piece in kept]
            adopted = tuple(
                AdoptedBatch(
                    batch.start, batch.end - batch.start, piece.offer.source, piece.offer.start_position + piece.start
                )
                for batch, piece in kept
            )
            records.append(AdoptedRecords(item.records, adopted) if adopted else item.records)
        return records, Adoption(self, used)

    def _found(self, item: MetaQueueItem, index: int, wall_ms: int) -> _Piece | None:
        batch = item.batches[index]
        pieces = self._pieces.get((batch.end - batch.start, batch.crc))
        if pieces is None:
            return None
        log = item.records[batch.start : batch.end]
        since_ms = wall_ms - NAMED_WITHIN_MS // 2
        return next(
            (
                one
                for one in pieces
                if one.offer.source.object_id.begun_until_ms > since_ms
                and _equal(log, one.offer.content[one.start : one.end])
            ),
            None,
        )

    def ended(self, pieces: Sequence[_Piece], is_pending: Callable[[], bool] | None) -> None:
        """End an `Adoption` of these pieces; `is_pending`: whether its object is not published yet, None: it failed."""
        for offer in dict.fromkeys(piece.offer for piece in pieces):
            offer.under_way -= 1
            if is_pending is not None:
                offer.is_adopted = True
                offer.unpublished.append(is_pending)
        if is_pending is not None:
            for offer, start, _ in pieces:
                offer.left.discard(start)

    def _end_if_done(self, offer: Offer, now_s: float) -> None:
        offer.unpublished = [is_pending for is_pending in offer.unpublished if is_pending()]
        if offer.under_way or offer.unpublished or (offer.left and now_s < offer.until_s):
            return
        self._kept_bytes -= len(offer.content)
        for key in dict.fromkeys(self._offers.pop(offer)):  # partitions of a request may get equal batches
            left = deque(piece for piece in self._pieces[key] if piece.offer is not offer)
            if left:
                self._pieces[key] = left
            else:
                self._pieces.pop(key)
        offer.tell(offer.is_adopted)


class Adoption:
    """What one upload adopts of gateways' objects. Call `stored` or `failed` once."""

    def __init__(self, registry: AdoptableRecords, pieces: Sequence[_Piece]) -> None:
        self._registry = registry
        self._pieces = pieces
        for offer in dict.fromkeys(piece.offer for piece in pieces):
            offer.under_way += 1

    @property
    def size_bytes(self) -> int:
        """Bytes that the upload need not store, because gateways have."""
        return sum(piece.end - piece.start for piece in self._pieces)

    @property
    def until_ms(self) -> float:
        """When the upload must have ended to be published, by wall clocks; inf if it names no gateway's object."""
        begun_until_ms = (piece.offer.source.object_id.begun_until_ms for piece in self._pieces)
        return min(begun_until_ms, default=math.inf) + NAMED_WITHIN_MS

    def stored(self, is_pending: Callable[[], bool]) -> None:
        """Record that the object is stored and given to the publisher; `is_pending` says whether the topic lacks it."""
        self._registry.ended(self._pieces, is_pending)

    def failed(self) -> None:
        """Record a failed or unknown upload: its number is never used again, and its bytes are in no object yet."""
        self._registry.ended(self._pieces, None)


def _spans(lengths: Iterable[int]) -> list[tuple[int, int]]:
    ends = list(accumulate(lengths))
    return list(zip([0, *ends[:-1]], ends, strict=True)) if ends else []


def _crc_of_one_batch(records: memoryview) -> int | None:
    """Return the CRC in the header; None if it is not exactly one batch, or too small to be named."""
    if len(records) < MIN_BATCH_BYTES:
        return None
    try:
        spans = scan_batches(records, 0, len(records))
    except CorruptBatchError:
        return None
    return spans[0].crc if len(spans) == 1 and spans[0].end == len(records) else None


def _equal(log: memoryview, stored: memoryview) -> bool:
    """Compare two batches, except for what the leader sets."""
    position = 0
    for start, size in (*STAMPS, (len(log), 0)):
        if log[position:start].tobytes() != stored[position:start].tobytes():
            return False
        position = start + size
    return True
