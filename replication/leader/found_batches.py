"""Batches that were found again, beside the link index, for followers that are far behind. Sans-IO.

Holds true: what is found here was proved against the leader's own log, its object was finished when it was proved, and
is looked at again each time another object is linked, at the latest after a second; nothing is linked whose deletion
was started. (An object stays for a grace time after that, far longer than a second.) Bounded: the oldest batches are
forgotten first.

A follower is far behind as well when its batches need not be found again: the link index still has them, in objects
that are not among the newest, or they were found for another follower.
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
"""Links to one of so many are no sign of a follower that is far behind; a second at the usual interval."""


class StoredLogs(Protocol):
    """The led logs beside what metadata tells of their objects."""

    def stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        """None when the partition is not led here, or not known yet."""

    def runs(self, log: StoredLog, offset: int, max_bytes: int, archive: bool) -> FoundRuns:
        """See `rlm.archive.stored_runs`; `archive` is whether archive objects will do. Called in a thread."""

    def is_living(self, object_id: StoredObjectId) -> bool:
        """Whether the object is finished and its deletion was not started, as far as metadata tells."""


class FoundBatches:
    """What all connections of a leader's agent share."""

    def __init__(self, index: LinkIndex, logs: StoredLogs, max_batches: int, clock: Callable[[], float]) -> None:
        """`index` is the agent's link index."""
        self._index = index
        self._logs = logs
        self._clock = clock
        self._found = LinkIndex(max_batches)
        self._newest: CombinedSegmentId | None = None
        self._looked_at: tuple[StoredObjectId, float] | None = None

    def uploaded(self, segment: CombinedSegmentId) -> None:
        """This agent has stored an object."""
        self._newest = segment

    def is_new(self, object_id: StoredObjectId) -> bool:
        """Whether it is among the newest objects of this agent; archive objects never are."""
        newest = self._newest
        if newest is None or isinstance(object_id, ArchiveObjectId) or object_id[:2] != newest[:2]:
            return False
        return newest.sequence - object_id.sequence < _NEWEST_OBJECTS

    def behind(self, partition: TopicIdPartition, offset: int) -> StoredLog | None:
        """The log, if what it has at `offset` was uploaded, and not just now."""
        known = self._logs.stored_log(partition)
        if known is None or offset >= known.uploaded_offset:
            return None
        listed = self._index.find(partition, offset)
        return None if listed is not None and self.is_new(listed.object_id) else known

    def find(self, partition: TopicIdPartition, base_offset: int) -> StoredBatch | None:
        """The batch that begins at this offset, in an object that is not to be deleted; compare its header prefix."""
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
        """What is in a living combined segment too stays listed as that, which each follower's agent understands."""
        batches: Sequence[tuple[int, StoredBatch]] = stored_batches(
            run.object_id, run.entry.start_file_position, run.records, run.batches, run.custom_metadata, run.digests
        )
        if isinstance(run.object_id, ArchiveObjectId):
            batches = [each for each in batches if not self._is_in_segment(partition, *each)]
        self._found.add(partition, batches)

    def _is_in_segment(self, partition: TopicIdPartition, base_offset: int, stored: StoredBatch) -> bool:
        """Whether the batch, of an archive object, was found in a combined segment before."""
        listed = self.find(partition, base_offset)
        if listed is None or isinstance(listed.object_id, ArchiveObjectId):
            return False
        return listed.header_prefix == stored.header_prefix

    def drop_from(self, partition: TopicIdPartition, offset: int) -> None:
        """The log was truncated there."""
        self._found.drop_from(partition, offset)

    def drop(self, partition: TopicIdPartition) -> None:
        """The partition is not led here any more."""
        self._found.drop(partition)

    def drop_object(self, object_id: StoredObjectId) -> None:
        """The object's deletion was started."""
        self._found.drop_object(object_id)
        self._looked_at = None
