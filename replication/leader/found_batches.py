"""Batches that were found again for followers that are far behind, kept beside the link index. Sans-IO.

A batch is found here only if it was proved against the leader's own log and its object was finished then. The object is
checked again whenever the connection links another object, and after a second at the latest; objects whose deletion was
started are not linked. (An object still stays for a grace time, far longer than a second.) Bounded: the oldest batches
are forgotten first.

A follower can also be far behind while the link index still has its batches, in objects that are not among the newest,
or while they were found for another follower.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from kafka_log.topic_partition import TopicIdPartition
from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
from plugin.segment_metadata import CombinedSegmentId
from replication.leader.link_index import LinkIndex, StoredBatch, stored_batches
from rlm.write_path.core.led_views import FoundRuns, ProvedRun, StoredLog

_LIVING_FOR_S = 1.0
_NEWEST_OBJECTS = 40
"""Links to one of so many newest objects do not mean that a follower is far behind; a second at the usual interval."""


class StoredLogs(Protocol):
    """The led logs and what metadata says about their objects."""

    def stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        """Return the log; None when the partition is not led here, or not known yet."""

    def runs(self, log: StoredLog, offset: int, max_bytes: int, archive: bool) -> FoundRuns:
        """Find runs, see `rlm.archive.stored_runs`; `archive` allows archive objects. Called in a thread."""

    def is_living(self, object_id: StoredObjectId) -> bool:
        """Whether the object is finished and its deletion was not started, according to the metadata."""


class FoundBatches:
    """Shared by all connections of a leader's agent."""

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
        """Whether it is among the newest objects of this agent; archive objects never are."""
        newest = self._newest
        if newest is None or isinstance(object_id, ArchiveObjectId) or object_id[:2] != newest[:2]:
            return False
        return newest.sequence - object_id.sequence < _NEWEST_OBJECTS

    def behind(self, partition: TopicIdPartition, offset: int) -> StoredLog | None:
        """Return the log, if its batch at `offset` was uploaded, and not just now."""
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
        """List a run's batches.

        Those found in a living combined segment keep that entry, which every follower can read.
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
        """Forget what was found at `offset` and above: the log was truncated there."""
        self._found.drop_from(partition, offset)

    def drop(self, partition: TopicIdPartition) -> None:
        """Forget a partition that is not led here any more."""
        self._found.drop(partition)

    def drop_object(self, object_id: StoredObjectId) -> None:
        """Forget an object whose deletion was started."""
        self._found.drop_object(object_id)
        self._looked_at = None
