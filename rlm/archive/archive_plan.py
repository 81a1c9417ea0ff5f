"""Plans what of a partition is archived next. Sans-IO.

A log is archived from its start on, range by range. The next range begins at the first offset that is in a finished
combined segment and not archived. It has no holes: each part begins where the one before ended, in the epoch that the
log's leader epoch chain gives to that offset. So records that a failover made dead never get in, whatever is still in
object storage, and only one of several copies of a range is taken.

The range is archived when it holds `min_bytes`, or when its oldest part is `max_age_ms` old. It ends at a hole (removed
by retention before upload, compacted, or late metadata), at what is archived already, before it would exceed
`max_bytes`, and before what was stored less than `settled_ms` ago: a power cut may yet take that from the leader's log,
and the archive keeps what a log lost until the topic is deleted (`metadata_topic.store.held_records`). Only one range
is looked at at a time. So what lies behind a hole waits until the range before it is large or old enough, which gives
late metadata time.

A published commit counts as archived at once, although the store learns of it only from the topic. A planner keeps the
parts that it found, so that a round costs what is new and not everything.

Not for several threads at once; one planner for each partition.
"""

from dataclasses import dataclass
from typing import Final

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.states import STARTED
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import RemoteWalLogSegmentMetadata

HIGHEST_OFFSET: Final = 2**62
PREPARED_TTL_MS: Final = 3_600_000
"""After this time an archive object that was never committed is deleted (guessed)."""


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """How large and how old a range must be before it is archived, and how large an object becomes."""

    max_bytes: int
    max_age_ms: int
    min_bytes: int = 16 * 1024 * 1024
    """Guessed."""
    settled_ms: int = 600_000
    """At most `max_age_ms`. Longer than appends stay in the leader's memory alone: Linux writes them after 30 s
    (guessed)."""
    max_parts: int = 16_384
    """Bounds the time and the memory that one object takes (guessed)."""


@dataclass(frozen=True, slots=True)
class LogView:
    """A led partition's log, as its directory shows it."""

    start_offset: int
    epochs: tuple[tuple[int, int], ...]
    """(leader epoch, its first offset), ascending."""
    end_offset: int = HIGHEST_OFFSET
    """Nothing from here on is archived: the high watermark, if known."""


@dataclass(frozen=True, slots=True)
class SourcePart:
    """Offsets of one leader epoch, and the combined segments that hold all of them."""

    leader_epoch: int
    first_offset: int
    last_offset: int
    """Inclusive. The sources may reach further on both sides."""
    sources: tuple[RemoteWalLogSegmentMetadata, ...]
    """Any one of them is enough; the best is first."""

    @property
    def size_bytes(self) -> int:
        """Bytes to read from the first source: its whole entry, because the checksum covers that."""
        entry = self.sources[0].entry
        return entry.end_file_position - entry.start_file_position


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """The parts of one archive object, in order and without holes."""

    topic_id_partition: TopicIdPartition
    parts: tuple[SourcePart, ...]

    @property
    def first_offset(self) -> int:
        return self.parts[0].first_offset

    @property
    def last_offset(self) -> int:
        return self.parts[-1].last_offset


class PartitionPlanner:
    """Chooses the next range of one partition to archive."""

    def __init__(
        self,
        topic_id_partition: TopicIdPartition,
        wal: RemoteWalMetadataStore,
        archive: ArchiveStore,
        limits: ArchiveLimits,
    ) -> None:
        self._partition = topic_id_partition
        self._wal = wal
        self._archive = archive
        self._limits = limits
        self._epochs: tuple[tuple[int, int], ...] = ()
        self._chain = LeaderEpochs(())
        self._parts: list[SourcePart] = []
        self._size_bytes = 0
        self._oldest_ms = 0
        """When the first of them was stored."""
        self._pending: list[ArchiveObjectId] = []
        self._holes: list[tuple[int, int]] = []

    def plan(self, log: LogView, now_ms: int) -> ArchivePlan | None:
        """Return what to archive now; None when nothing is large or old enough. Repeated calls give the same plan."""
        self._pending = [named for named in self._pending if self._archive.state_of(named) in (None, STARTED)]
        if log.epochs != self._epochs:
            self._epochs, self._chain, self._pending = log.epochs, LeaderEpochs(log.epochs), []
            self._holes = []
            self.reset()
        self._holes = [hole for hole in self._holes if hole[1] >= log.start_offset]
        if self._is_outdated(log):
            self.reset()
        start = self._parts[-1].last_offset + 1 if self._parts else self._first_to_archive(log)
        if start is None:
            return None
        is_full = self._extend(start, log.end_offset, now_ms)
        if not self._parts:
            return None
        if is_full or self._size_bytes >= self._limits.min_bytes or now_ms - self._oldest_ms >= self._limits.max_age_ms:
            return ArchivePlan(self._partition, tuple(self._parts))
        return None

    def published(self, object_id: ArchiveObjectId) -> None:
        """Record that the planned range was written to this object, and its commit published."""
        self._pending.append(object_id)
        self.reset()

    def found_empty(self, plan: ArchivePlan) -> None:
        """Record that the planned offsets have no batches: a hole, as compaction leaves it."""
        self._holes.append((plan.first_offset, plan.last_offset))
        self.reset()

    def reset(self) -> None:
        """Forget the sources found so far and search again, because some could not be read."""
        self._parts = []
        self._size_bytes = 0

    def _is_outdated(self, log: LogView) -> bool:
        """Whether the log's start passed the range, or another agent archived some of it."""
        if not self._parts:
            return False
        archived = self._archived_from(self._parts[0].first_offset)
        return self._parts[0].first_offset < log.start_offset or (
            archived is not None and archived[0] <= self._parts[-1].last_offset
        )

    def _first_to_archive(self, log: LogView) -> int | None:
        offset = log.start_offset
        while offset < log.end_offset:
            archived = self._archived_from(offset)
            if archived is not None and archived[0] <= offset:
                offset = archived[1] + 1
                continue
            if self._wal.entries_covering(self._partition, offset, self._chain):
                return offset
            # A hole: the range after it is archived, or in a combined segment, or there is none.
            following = [first for first, _ in self._wal.stored_ranges(self._partition, self._chain, offset + 1)[:1]]
            if archived is not None:
                following.append(archived[0])
            if not following or min(following) <= offset:
                return None
            offset = min(following)
        return None

    def _extend(self, offset: int, end_offset: int, now_ms: int) -> bool:
        """Add what follows from `offset` on. Returns whether the range is as large as an object may be."""
        archived = self._archived_from(offset)
        before = archived[0] if archived is not None else HIGHEST_OFFSET
        while offset < before:
            part = self._part_at(offset, before)
            if part is None or part.last_offset >= end_offset:
                return False
            source = self._wal.published_segment(part.sources[0].combined_segment_id)
            stored_ms = now_ms if source is None else source.event_timestamp_ms
            if now_ms - stored_ms < min(self._limits.settled_ms, self._limits.max_age_ms):
                return False
            if not self._parts:
                self._oldest_ms = stored_ms
            too_large = self._size_bytes + part.size_bytes > self._limits.max_bytes
            if self._parts and (too_large or len(self._parts) >= self._limits.max_parts):
                return True
            self._parts.append(part)
            self._size_bytes += part.size_bytes
            offset = part.last_offset + 1
        return False

    def _part_at(self, offset: int, before: int) -> SourcePart | None:
        found = self._wal.entries_covering(self._partition, offset, self._chain)
        if not found:
            return None
        epoch = found[0].entry.leader_epoch
        end = self._chain.end_of(epoch)
        last = min(found[0].entry.last_offset, before - 1, HIGHEST_OFFSET if end is None else end - 1)
        return SourcePart(epoch, offset, last, tuple(source for source in found if source.entry.last_offset >= last))

    def _archived_from(self, offset: int) -> tuple[int, int] | None:
        """Return the first range [first, last] at or above `offset` that needs no archiving:

        archived, published, or a hole.
        """
        ranges: list[tuple[int, int]] = [(max(first, offset), last) for first, last in self._holes if last >= offset]
        ranges += [
            (max(named.first_offset, offset), named.last_offset)
            for named in self._pending
            if named.last_offset >= offset
        ]
        known = self._archive.archived_range(self._partition, self._chain, offset)
        return min([*ranges, known] if known is not None else ranges, default=None)
