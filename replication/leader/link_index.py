"""Lists which record batches of the partitions led here are in object storage, and where.

A batch is listed only after its object was stored durably, together with the first 21 bytes of its header: base offset,
length, leader epoch, magic and the CRC32C of everything that follows. So a batch in a response whose header begins with
the same bytes is the batch that was stored; for instance, an older leader's version of the same offset differs.

Used from the event loop only. Bounded: the oldest objects' batches are dropped first. A batch that is not listed goes
inline, so dropping costs money and never data.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

from kafka_log.crc32c import Buffer
from kafka_log.record_batch import HEADER_PREFIX_BYTES, BatchSpan
from kafka_log.topic_partition import TopicIdPartition
from plugin.format.archive_object_id import StoredObjectId

DEFAULT_MAX_BATCHES = 250_000
"""Some 60 MiB, 80 with digests: ten minutes of 16 KiB batches at 6 MB/s."""


class StoredBatch(NamedTuple):
    """A record batch in object storage."""

    header_prefix: bytes
    """The batch header's first 21 bytes (kafka_log.record_batch.HEADER_PREFIX_BYTES)."""
    object_id: StoredObjectId
    start_position: int
    end_position: int
    custom_metadata: bytes = b""
    """The object's custom metadata, by which its storage manager finds it."""
    sha256: bytes = b""
    """SHA-256 of the batch; empty where none was taken."""


def stored_batches(
    object_id: StoredObjectId,
    start_position: int,
    records: Buffer,
    batches: Iterable[BatchSpan],
    custom_metadata: bytes = b"",
    digests: Sequence[bytes] = (),
) -> list[tuple[int, StoredBatch]]:
    """Return (base offset, batch) pairs for `LinkIndex.add`.

    `records` begin at `start_position` in the object; `digests` are the batches' SHA-256, or empty.
    """
    return [
        (
            batch.base_offset,
            StoredBatch(
                bytes(records[batch.start : batch.start + HEADER_PREFIX_BYTES]),
                object_id,
                start_position + batch.start,
                start_position + batch.end,
                custom_metadata,
                sha256,
            ),
        )
        for batch, sha256 in zip(batches, digests or repeat(b""), strict=bool(digests))
    ]


class LinkIndex:
    """Finds a stored batch by partition and base offset."""

    def __init__(self, max_batches: int = DEFAULT_MAX_BATCHES) -> None:
        self._max_batches = max_batches
        self._partitions: dict[TopicIdPartition, dict[int, StoredBatch]] = {}
        self._oldest_first: deque[tuple[TopicIdPartition, StoredObjectId, Sequence[int]]] = deque()
        self._listed_of: dict[StoredObjectId, list[tuple[TopicIdPartition, Sequence[int]]]] = {}
        self._listed_batches = 0

    def __len__(self) -> int:
        """How many batches are listed; a dropped partition's count until they are forgotten."""
        return self._listed_batches

    def add(self, partition: TopicIdPartition, batches: Iterable[tuple[int, StoredBatch]]) -> None:
        """List (base offset, batch) pairs of one stored object."""
        by_base_offset = dict(batches)
        if not by_base_offset:
            return
        object_id = next(iter(by_base_offset.values())).object_id
        self._partitions.setdefault(partition, {}).update(by_base_offset)
        base_offsets = tuple(by_base_offset)
        self._oldest_first.append((partition, object_id, base_offsets))
        self._listed_of.setdefault(object_id, []).append((partition, base_offsets))
        self._listed_batches += len(by_base_offset)
        while self._listed_batches > self._max_batches:
            self._forget_oldest()

    def find(self, partition: TopicIdPartition, base_offset: int) -> StoredBatch | None:
        """Return the stored batch that begins at this offset. The caller compares the header prefix."""
        batches = self._partitions.get(partition)
        return batches.get(base_offset) if batches is not None else None

    def drop(self, partition: TopicIdPartition) -> None:
        """Forget a partition, for instance when its leadership is lost or its topic deleted."""
        self._partitions.pop(partition, None)

    def drop_from(self, partition: TopicIdPartition, offset: int) -> None:
        """Forget what was stored at `offset` and above, for instance because the log was truncated there."""
        batches = self._partitions.get(partition, {})
        for base_offset in [base for base in batches if base >= offset]:
            del batches[base_offset]

    def drop_object(self, object_id: StoredObjectId) -> None:
        """Forget an object's batches, for instance because its deletion was started."""
        for partition, base_offsets in self._listed_of.pop(object_id, ()):
            self._forget(partition, object_id, base_offsets)

    def _forget_oldest(self) -> None:
        partition, object_id, base_offsets = self._oldest_first.popleft()
        self._listed_batches -= len(base_offsets)
        listed = self._listed_of.get(object_id)
        if listed:  # this is the object's oldest part
            del listed[0]
            if not listed:
                del self._listed_of[object_id]
        self._forget(partition, object_id, base_offsets)

    def _forget(self, partition: TopicIdPartition, object_id: StoredObjectId, base_offsets: Sequence[int]) -> None:
        batches = self._partitions.get(partition)
        if batches is None:
            return
        for base_offset in base_offsets:
            listed = batches.get(base_offset)
            if listed is not None and listed.object_id == object_id:  # the batch was not stored again since
                del batches[base_offset]
        if not batches:
            del self._partitions[partition]
