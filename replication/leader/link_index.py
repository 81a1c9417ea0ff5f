"""Lists which record batches of the partitions led here are in object storage, and where.

A batch is listed only after its object was stored durably, together with the first 21 bytes of its header: base offset,
length, leader epoch, magic and the CRC32C of everything that follows. So a batch in a response whose header begins with
the same bytes is the batch that was stored; for instance, an older leader's version of the same offset differs.

Used from the event loop only. Bounded: the oldest objects' batches are dropped first. A batch that is not listed goes
inline, so dropping costs money and never data.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol

from kafka_log.crc32c import Buffer
from kafka_log.record_batch import HEADER_PREFIX_BYTES, BatchSpan
from kafka_log.topic_partition import TopicIdPartition
from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.core.led_views import FoundRuns, ProvedRun, StoredLog

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
    """Finds by partition and base offset where a batch of a led log is in object storage."""

    def __init__(self, max_batches: int = DEFAULT_MAX_BATCHES) -> None:
        self._max_batches = max_batches
        self._partitions: dict[TopicIdPartition, dict[int, StoredBatch]] = {}
        self._oldest_first: deque[tuple[TopicIdPartition, StoredObjectId, Sequence[int]]] = deque()
        self._listed_of: dict[StoredObjectId, list[tuple[TopicIdPartition, Sequence[int]]]] = {}
        self._listed_batches = 0

    def __len__(self) -> int:
        """Return how many batches are listed; those of a dropped partition count until they are forgotten."""
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


_LIVING_FOR_S = 1.0
_NEWEST_OBJECTS = 40
"""Links to one of so many newest objects do not mean that a follower is far behind; a second at the usual interval."""


class StoredLogs(Protocol):
    """The led logs, and what the metadata says about their objects."""

    def stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        """Return the partition's log and how far it is stored; None when it is not led here, or not known yet."""

    def runs(self, log: StoredLog, offset: int, max_bytes: int, archive: bool) -> FoundRuns:
        """Return the log's runs from `offset` on that objects hold; `archive`: archive objects, too. Blocks."""

    def is_living(self, object_id: StoredObjectId) -> bool:
        """Whether the object is finished and not being deleted, according to the metadata."""


class FoundBatches:
    """Batches found in objects for followers that are far behind, kept beside the link index.

    A batch is found here only if it was proved against the leader's own log and its object was finished then. The
    object is checked again whenever the connection links another object, and after a second at the latest; objects
    whose deletion was started are not linked. (An object still stays for a grace time, far longer than a second.)
    Bounded: the oldest batches are forgotten first.

    A follower can also be far behind while the link index still has its batches, in objects that are not among the
    newest, or while they were found for another follower.
    """

    def __init__(self, index: LinkIndex, logs: StoredLogs, max_batches: int, clock: Callable[[], float]) -> None:
        """`index` is the agent's link index."""
        self._index = index
        self._logs = logs
        self._clock = clock
        self._found = LinkIndex(max_batches)
        self._newest: CombinedSegmentId | None = None
        self._looked_at: tuple[StoredObjectId, float] | None = None

    def uploaded(self, segment: CombinedSegmentId) -> None:
        """Record that this agent has stored an object."""
        self._newest = segment

    def is_new(self, object_id: StoredObjectId) -> bool:
        """Whether the object is among the newest of this agent; archive objects never are."""
        newest = self._newest
        if newest is None or isinstance(object_id, ArchiveObjectId) or object_id[:2] != newest[:2]:
            return False
        return newest.sequence - object_id.sequence < _NEWEST_OBJECTS

    def find_log(self, partition: TopicIdPartition, offset: int) -> StoredLog | None:
        """Return the log if its batch at `offset` is in an object that is not among the newest; else None."""
        known = self._logs.stored_log(partition)
        if known is None or offset >= known.uploaded_offset:
            return None
        listed = self._index.find(partition, offset)
        return None if listed is not None and self.is_new(listed.object_id) else known

    def find(self, partition: TopicIdPartition, base_offset: int) -> StoredBatch | None:
        """Return the batch at this offset, in an object that is not being deleted.

        The caller compares its header prefix.
        """
        stored = self._found.find(partition, base_offset)
        if stored is None:
            return None
        object_id, now_s = stored.object_id, self._clock()
        if self._looked_at is None or self._looked_at[0] != object_id or now_s - self._looked_at[1] >= _LIVING_FOR_S:
            if not self._logs.is_living(object_id):
                self.drop_object(object_id)
                return None
            self._looked_at = (object_id, now_s)
        return stored

    def list_run(self, partition: TopicIdPartition, run: ProvedRun) -> None:
        """List the batches of a run that was found.

        A batch that is already listed in a living combined segment stays there, because every follower can read it.
        """
        batches: Sequence[tuple[int, StoredBatch]] = stored_batches(
            run.object_id, run.entry.start_file_position, run.records, run.batches, run.custom_metadata, run.digests
        )
        if isinstance(run.object_id, ArchiveObjectId):
            batches = [each for each in batches if not self._is_in_segment(partition, *each)]
        self._found.add(partition, batches)

    def _is_in_segment(self, partition: TopicIdPartition, base_offset: int, stored: StoredBatch) -> bool:
        """Whether the batch of an archive object was found in a combined segment before."""
        listed = self.find(partition, base_offset)
        if listed is None or isinstance(listed.object_id, ArchiveObjectId):
            return False
        return listed.header_prefix == stored.header_prefix

    def drop_from(self, partition: TopicIdPartition, offset: int) -> None:
        """Forget batches found at `offset` and above, because the log was truncated there."""
        self._found.drop_from(partition, offset)

    def drop(self, partition: TopicIdPartition) -> None:
        """Forget a partition that is no longer led here."""
        self._found.drop(partition)

    def drop_object(self, object_id: StoredObjectId) -> None:
        """Forget an object whose deletion was started."""
        self._found.drop_object(object_id)
        self._looked_at = None
