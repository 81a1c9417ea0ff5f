"""Keeps what one partition's broker last showed to consumers, as far as it was read without a gap. Sans-IO.

The broker answers read-committed Fetch requests, one behind the other, that insist on the leader epoch. So what is kept
is what a consumer of that broker would have read: whole batches below the last stable offset of that epoch, which no
election within the epoch takes back. It serves a consumer's Fetch as long as the newest answer is not older than
`CURRENT_S`, counted from when the question was sent, so that no clock of another host matters.

A batch that does not follow the one before, as in a log that was compacted, ends this: `take` returns False.
"""

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from gateway.serve.fetch_frames import AbortedTransaction, ResponsePartition
from kafka_log.record_batch import BatchSpan, CorruptBatchError, scan_batches

CURRENT_S: Final = 1.0
"""How long an answer of the broker says what is visible."""

_PRODUCED = struct.Struct(">h20xq")  # attributes, producer id
_ATTRIBUTES_AT: Final = 21
_CONTROL: Final = 0x20


class Marker(NamedTuple):
    """A marker of a producer's transaction: where it ended."""

    offset: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The records of one of the broker's answers."""

    begin: int
    """The offset that was asked for."""
    end: int
    records: memoryview
    batches: tuple[BatchSpan, ...]
    aborted: tuple[AbortedTransaction, ...]
    """All that have an offset in the chunk, and perhaps some above it."""
    markers: tuple[Marker, ...]


class Found(NamedTuple):
    """What a consumer gets from an offset on: batches, aborted transactions, and offsets."""

    records: list[memoryview]
    size: int
    aborted: list[AbortedTransaction]


class VisibleLog:
    """The records of one partition that consumers may see, in one leader epoch. All times are monotonic seconds."""

    def __init__(self, epoch: int, offset: int) -> None:
        """The first request to the broker asks from `offset` on."""
        self.epoch = epoch
        self.next_offset = offset
        """The offset to ask for next: all below, from `begin` on, is held."""
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1
        self.size = 0
        """Bytes of records held."""
        self._chunks: deque[_Chunk] = deque()
        self._as_of_s = float("-inf")

    @property
    def begin(self) -> int:
        """The lowest offset whose record is held."""
        return self._chunks[0].begin if self._chunks else self.next_offset

    def current_until_s(self) -> float:
        """Return until when the broker's last response counts as current."""
        return self._as_of_s + CURRENT_S

    def take(self, told: ResponsePartition, asked_s: float) -> bool:
        """Take the broker's response to a request from `next_offset` on that was sent at `asked_s`.

        Returns False if what is visible is no longer known, so that the log must be dropped.
        """
        if told.error or told.preferred_replica >= 0 or min(told.last_stable_offset, told.log_start_offset) < 0:
            return False
        try:
            batches = tuple(scan_batches(told.records, 0, len(told.records)))
        except CorruptBatchError:
            return False
        expected = self.next_offset
        for index, batch in enumerate(batches):
            is_around = index == 0 and not self._chunks and batch.base_offset <= expected <= batch.last_offset
            if batch.base_offset != expected and not is_around:
                return False
            expected = batch.last_offset + 1
        if batches:
            self._append(told, batches)
        # The broker notes its offsets before it reads, so its records may reach beyond them.
        self.last_stable_offset = max(told.last_stable_offset, expected if batches else 0)
        self.high_watermark = max(told.high_watermark, self.last_stable_offset)
        self.log_start_offset, self._as_of_s = told.log_start_offset, asked_s
        return True

    def _append(self, told: ResponsePartition, batches: tuple[BatchSpan, ...]) -> None:
        records = memoryview(bytes(told.records[: batches[-1].end]))
        markers = []
        for batch in batches:
            attributes, producer_id = _PRODUCED.unpack_from(records, batch.start + _ATTRIBUTES_AT)
            if attributes & _CONTROL:
                markers.append(Marker(batch.base_offset, producer_id))
        end = batches[-1].last_offset + 1
        self._chunks.append(_Chunk(self.next_offset, end, records, batches, told.aborted, tuple(markers)))
        self.next_offset = end
        self.size += len(records)

    def drop_oldest(self) -> None:
        """Drop the oldest held records."""
        self.size -= len(self._chunks.popleft().records)

    def holds(self, offset: int) -> bool:
        """Whether all visible records from this offset on are held; at `next_offset` there are none yet."""
        return max(self.begin, self.log_start_offset) <= offset <= self.next_offset

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> Found:
        """Return complete batches, from the one that has this offset; `holds` must be True for it.

        `at_least_one`: the first batch comes even if it is larger than `max_bytes` (KIP-74).
        """
        found = Found([], 0, [])
        records, size, aborted = found.records, 0, dict.fromkeys(found.aborted)
        index = bisect_right(self._chunks, offset, key=lambda one: one.end)
        while index < len(self._chunks):
            chunk = self._chunks[index]
            first = bisect_left(chunk.batches, offset, key=lambda one: one.last_offset)
            start = chunk.batches[first].start
            end = bisect_right(chunk.batches, start + max_bytes - size, key=lambda one: one.end)
            if end <= first and not records and at_least_one:
                end = first + 1
            if end <= first:
                break
            records.append(chunk.records[start : chunk.batches[end - 1].end])
            size += len(records[-1])
            aborted |= dict.fromkeys(_aborted_from(chunk, offset))
            if end < len(chunk.batches):
                break
            offset, index = chunk.end, index + 1
        return Found(records, size, list(aborted))


def _aborted_from(chunk: _Chunk, offset: int) -> list[AbortedTransaction]:
    """Return the chunk's aborted transactions without those that ended below `offset`.

    A consumer that is told of an aborted transaction and does not see its end would skip the producer's next one.
    """
    ended = [marker for marker in chunk.markers if marker.offset < offset]
    return [
        one
        for one in chunk.aborted
        if not any(marker.producer_id == one.producer_id and marker.offset >= one.first_offset for marker in ended)
    ]
