"""remoteSegmentQ: what RLMWalTasks have read and RLMWalCombineTask has not yet combined (KIP-1176).

Bounded by items and by bytes. When it is full, tasks do not run; nothing is lost, as the log is on disk. The order of a
partition's items is the order of its log, also when a failed upload puts its items back.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from kafka_log.record_batch import BatchSpan
from kafka_log.topic_partition import TopicIdPartition
from plugin.segment_metadata import UNKNOWN_POSITION, RemoteLogSegmentMetadataEntry


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
        """Inclusive."""
        return self.batches[-1].last_offset

    @property
    def leader_epoch(self) -> int:
        """The epoch in which all of the batches were appended."""
        return self.batches[0].leader_epoch

    def metadata_entry(self) -> RemoteLogSegmentMetadataEntry:
        """The item as an entry of a combined segment that is not written yet."""
        return RemoteLogSegmentMetadataEntry(
            self.topic_id_partition,
            self.leader_epoch,
            self.first_offset,
            self.last_offset,
            UNKNOWN_POSITION,
            UNKNOWN_POSITION,
            0,
        )


class RemoteSegmentQueue:
    """Holds items until they are combined. Used from the event loop alone."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items: deque[MetaQueueItem] = deque()
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

    def put(self, items: Iterable[MetaQueueItem]) -> None:
        """Append items. The caller has looked at the room; a single batch that exceeds it is taken all the same."""
        for item in items:
            self._items.append(item)
            self.size_bytes += len(item.records)

    def put_back(self, items: Iterable[MetaQueueItem]) -> None:
        """Return items whose upload failed, in their order, before all others."""
        returned = list(items)
        self._items.extendleft(reversed(returned))
        self.size_bytes += sum(len(item.records) for item in returned)

    def drain(self, upload_bytes: int) -> list[MetaQueueItem]:
        """Take items from the front until they hold `upload_bytes`, one at least if there is any."""
        drained: list[MetaQueueItem] = []
        size = 0
        while self._items and (not drained or size + len(self._items[0].records) <= upload_bytes):
            item = self._items.popleft()
            size += len(item.records)
            drained.append(item)
        self.size_bytes -= size
        return drained

    def discard(self, partition: TopicIdPartition, from_offset: int = 0) -> None:
        """Drop a partition's items that reach `from_offset` or beyond: truncated, or not ours any more."""
        kept = [item for item in self._items if item.topic_id_partition != partition or item.last_offset < from_offset]
        self._items = deque(kept)
        self.size_bytes = sum(len(item.records) for item in kept)
