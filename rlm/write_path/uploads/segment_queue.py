"""remoteSegmentQ: what RLMWalTasks have read and RLMWalCombineTask has not yet combined (KIP-1176).

Bounded by items and by bytes. When it is full, tasks do not run; nothing is lost, because the log is on disk. A failed
upload puts its items back even if the queue is full, so memory holds the limits plus what uploads carry. A partition's
items keep the order of its log then, too.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from kafka_log.record_batch import BatchSpan
from kafka_log.topic_partition import TopicIdPartition
from plugin.segment_metadata import UNKNOWN_POSITION, CombinedSegmentId, RemoteLogSegmentMetadataEntry

ReadingOrder = tuple[tuple[int, ...], TopicIdPartition]


def reading_order(partition: TopicIdPartition, readers: Collection[int] | None) -> ReadingOrder:
    """Return a sort key for partitions in an object. `readers` are the brokers that follow the partition; None if
    unknown.

    Partitions have the same order in every object, because the metadata topic's compression depends on that.

    Each broker that follows a partition reads its bytes, and no others. So partitions with the same followers are put
    side by side. With 20 brokers that follow 1,000 partitions, two each, 118 ranges are read then, instead of 1,784 in
    the order of partitions. No order has fewer ranges than there are pairs of followers, because only partitions of one
    pair adjoin for both.
    """
    return tuple(sorted(readers or ())), partition


def ranges_read(readers: Sequence[Collection[Hashable]], max_gap: float = 0) -> tuple[int, int]:
    """Return how many ranges are read of an object, and how many unwanted entries are read along.

    The object has an entry for each of `readers`, in this order, all of one size. Gaps of up to `max_gap` entries are
    read along.
    """
    last: dict[Hashable, int] = {}
    ranges = along = 0
    for position, of_entry in enumerate(readers):
        for reader in of_entry:
            gap = position - last.get(reader, -1) - 1
            if reader in last and gap <= max_gap:
                along += gap
            else:
                ranges += 1
            last[reader] = position
    return ranges, along


MAX_ITEMS_PER_SEGMENT = 12_288
"""Limits a combined segment's metadata to one record of 900,000 bytes: an entry takes 72 at most."""


@dataclass(frozen=True, slots=True)
class MetaQueueItem:
    """A run of whole batches of one partition and one leader epoch, read from its active segment."""

    topic_id_partition: TopicIdPartition
    batches: tuple[BatchSpan, ...]
    """Positions are relative to `records`."""
    records: memoryview
    seen_s: float
    """When the append was noticed, monotonic."""
    queued_s: float

    @property
    def first_offset(self) -> int:
        """The first batch's base offset."""
        return self.batches[0].base_offset

    @property
    def last_offset(self) -> int:
        """The last record's offset, inclusive."""
        return self.batches[-1].last_offset

    @property
    def leader_epoch(self) -> int:
        """The epoch in which all of the batches were appended."""
        return self.batches[0].leader_epoch

    def keep_below(self, offset: int) -> "MetaQueueItem | None":
        """Return the item without the batches that reach `offset` or beyond; None when none are left."""
        if self.last_offset < offset:
            return self
        batches = tuple(batch for batch in self.batches if batch.last_offset < offset)
        return replace(self, batches=batches, records=self.records[: batches[-1].end]) if batches else None

    def keep_from(self, offset: int) -> "MetaQueueItem | None":
        """Return the item without the batches that begin below `offset`; None when none are left."""
        if self.first_offset >= offset:
            return self
        batches = [batch for batch in self.batches if batch.base_offset >= offset]
        if not batches:
            return None
        start = batches[0].start
        moved = tuple(batch._replace(start=batch.start - start, end=batch.end - start) for batch in batches)
        return replace(self, batches=moved, records=self.records[start:])

    def metadata_entry(self) -> RemoteLogSegmentMetadataEntry:
        """Return the item as an entry of a combined segment that is not written yet."""
        return RemoteLogSegmentMetadataEntry(
            self.topic_id_partition,
            self.leader_epoch,
            self.first_offset,
            self.last_offset,
            UNKNOWN_POSITION,
            UNKNOWN_POSITION,
            0,
        )


def _fitting(items: Iterable[MetaQueueItem], upload_bytes: int) -> tuple[list[MetaQueueItem], int]:
    """Return the first items that hold so much, at least one, and their bytes."""
    fitting: list[MetaQueueItem] = []
    size = 0
    for item in islice(items, MAX_ITEMS_PER_SEGMENT):
        if fitting and size + len(item.records) > upload_bytes:
            break
        fitting.append(item)
        size += len(item.records)
    return fitting, size


class RemoteSegmentQueue:
    """Holds runs of batches until they are combined. Used from the event loop only."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items: deque[MetaQueueItem] = deque()
        self.partitions: dict[TopicIdPartition, None] = {}
        """Those of the items, in the order of the first of each."""
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def free_items(self) -> int:
        """How many more items fit."""
        return max(self._max_items - len(self._items), 0)

    @property
    def free_bytes(self) -> int:
        """How many more bytes fit."""
        return max(self._max_bytes - self.size_bytes, 0)

    @property
    def is_full(self) -> bool:
        """Whether nothing more fits, so that reading waits."""
        return not (self.free_items and self.free_bytes)

    def put(self, items: Iterable[MetaQueueItem]) -> None:
        """Append items. The caller checks the free space; a single batch that exceeds it is accepted all the same."""
        for item in items:
            self._items.append(item)
            self.partitions[item.topic_id_partition] = None
            self.size_bytes += len(item.records)

    def put_back(self, items: Iterable[MetaQueueItem]) -> None:
        """Return items whose upload failed, before all others.

        Concurrent uploads may fail in any order, so each partition's items are put in the order of their offsets.
        """
        returned = list(items)
        self._items.extendleft(reversed(returned))
        self.size_bytes += sum(len(item.records) for item in returned)
        ascending: defaultdict[TopicIdPartition, deque[MetaQueueItem]] = defaultdict(deque)
        for item in sorted(self._items, key=lambda item: item.first_offset):
            ascending[item.topic_id_partition].append(item)
        self._keep(ascending[item.topic_id_partition].popleft() for item in self._items)

    def drain(self, upload_bytes: int, order: Callable[[TopicIdPartition], ReadingOrder]) -> list[MetaQueueItem]:
        """Take items for one object, in `order`: all, or until they hold `upload_bytes`, at least one if there is any.

        If more than one object is needed, each has partitions that are adjacent in `order`, so that few brokers read
        it. The first object begins with the item that has waited longest, so that none waits for ever.
        """
        keys = {one: order(one) for one in self.partitions}
        ordered = sorted(self._items, key=lambda item: keys[item.topic_id_partition])
        if self.size_bytes <= upload_bytes and len(ordered) <= MAX_ITEMS_PER_SEGMENT:
            self._keep(())
            self.size_bytes = 0
            return ordered
        oldest = keys[self._items[0].topic_id_partition]
        start = bisect_left(ordered, oldest, key=lambda item: keys[item.topic_id_partition])
        drained, size = _fitting(chain(ordered[start:], ordered[:start]), upload_bytes)
        gone = set(map(id, drained))
        self._keep(item for item in self._items if id(item) not in gone)
        self.size_bytes -= size
        drained.sort(key=lambda item: keys[item.topic_id_partition])
        return drained

    def take_out(self, is_taken: Callable[[MetaQueueItem], bool]) -> list[MetaQueueItem]:
        """Remove the chosen items, and return them."""
        taken = [item for item in self._items if is_taken(item)]
        if taken:
            gone = set(map(id, taken))
            self._keep(item for item in self._items if id(item) not in gone)
            self.size_bytes -= sum(len(item.records) for item in taken)
        return taken

    def discard(self, partition: TopicIdPartition, from_offset: int = 0) -> None:
        """Drop a partition's batches that reach `from_offset` or beyond: the log was truncated, or is no longer led
        here."""
        kept = (item.keep_below(from_offset) if item.topic_id_partition == partition else item for item in self._items)
        self._keep(item for item in kept if item is not None)
        self.size_bytes = sum(len(item.records) for item in self._items)

    def _keep(self, items: Iterable[MetaQueueItem]) -> None:
        self._items = deque(items)
        self.partitions = dict.fromkeys(item.topic_id_partition for item in self._items)


@dataclass(frozen=True, slots=True)
class UploadedSegment:
    """A combined segment that was stored, with its items."""

    combined_segment_id: CombinedSegmentId
    items: tuple[MetaQueueItem, ...]
    entries: tuple[RemoteLogSegmentMetadataEntry, ...]
    """`entries[i]` says where `items[i]` lies in the object."""
    size_bytes: int
    stored_s: float
    """Monotonic."""
    custom_metadata: bytes = b""
    """The storage manager's custom metadata."""
    digests: tuple[tuple[bytes, ...], ...] = ()
    """The SHA-256 of each batch of each item; empty if none are taken."""
