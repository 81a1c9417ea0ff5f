"""What must hold of objects after their upload: nothing that is wanted goes, and nothing goes before its time.

It judges by itself, from what the topic was told and what agents knew of the cluster, in the words of
`rlm.lifecycle.expiration`'s theory.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.publishable import Publishable
from metadata_topic.records.records import PublishedSegment, RemoteWalLogSegmentMetadataUpdate
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from rlm.lifecycle.release import NEVER, ClusterView
from tests.kafka_log.log_writer import BatchKey
from tests.simulation.agent_model import wall_ms_at
from tests.simulation.invariants import Invariants
from tests.simulation.life_of_objects import GRACE_MS, LAGGING_MS, TOPIC_GONE_MS, Cluster, LifeOfObjects
from tests.simulation.metadata_topic_model import TopicRecord
from tests.simulation.seeded_storage import SeededStorage


class Archive(Protocol):
    """What is kept elsewhere."""

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        """Whether the entry's records can be read there."""


class ObjectInvariants:
    """Is told of all that happens to objects, and raises AssertionError."""

    def __init__(
        self, invariants: Invariants, storage: SeededStorage, cluster: Cluster, wall_ms: Callable[[], int]
    ) -> None:
        self._invariants, self._storage, self._cluster, self._wall_ms = invariants, storage, cluster, wall_ms
        self.states: dict[CombinedSegmentId, RemoteLogSegmentState] = {}
        """As the topic tells."""
        self._deleting_ms: dict[CombinedSegmentId, int] = {}
        self._were_finished: set[CombinedSegmentId] = set()
        self._holders: Counter[tuple[TopicIdPartition, BatchKey]] = Counter()
        """How many finished objects hold a batch, those of an archive too."""
        self._dead: dict[CombinedSegmentId, dict[tuple[TopicIdPartition, int], int]] = {}
        self.archive: Archive | None = None
        self.declarations = 0
        """How many records told of dead entries."""
        storage.on_delete = self._deleted

    def published(self, life: LifeOfObjects, record: Publishable) -> None:
        """A deletion is begun, of what nobody wants."""
        if not isinstance(record, RemoteWalCombinedLogSegmentMetadata) or record.state is not DELETING:
            return
        segment_id = record.combined_segment_id
        if self.states.get(segment_id) is FINISHED:
            assert segment_id in self._storage.objects, f"{segment_id} is taken for lost, and it is"
            assert self.may_go(segment_id, life), f"the deletion of {segment_id} begins, and it is wanted"

    def acknowledged(self, record: TopicRecord) -> None:
        if isinstance(record, RemoteWalLogSegmentMetadataUpdate):
            self._declared_dead(record)
        if not isinstance(record, PublishedSegment):
            return
        segment_id, before = record.combined_segment_id, self.states.get(record.combined_segment_id)
        if record.state is FINISHED and before in (None, STARTED):
            self._were_finished.add(segment_id)
            self.holds(self._invariants.batches_in[segment_id])
            self._invariants.acknowledged(record)
        if record.state in (DELETING, DELETED):
            since_ms = self._deleting_ms.get(segment_id, record.event_timestamp_ms)
            self._deleting_ms[segment_id] = min(since_ms, record.event_timestamp_ms)
            if before is FINISHED:
                self._released(segment_id)
            elif before not in (DELETING, DELETED):
                self._invariants.not_stored_any_more(segment_id, self._batches_held_nowhere(segment_id))
        if before is None or record.state > before:
            self.states[segment_id] = record.state

    def dead_from(self, segment_id: CombinedSegmentId, entry: RemoteLogSegmentMetadataEntry) -> int:
        """From which offset on it was declared dead; behind its end, if it was not."""
        dead = self._dead.get(segment_id, {})
        return dead.get((entry.topic_id_partition, entry.leader_epoch), entry.last_offset + 1)

    def _declared_dead(self, record: RemoteWalLogSegmentMetadataUpdate) -> None:
        self.declarations += 1
        for entry in record.entries:
            if entry.leader_epoch < record.leader_epoch:
                dead = self._dead.setdefault(record.combined_segment_id, {})
                key = (entry.topic_id_partition, entry.leader_epoch)
                dead[key] = min(entry.first_offset, dead.get(key, entry.first_offset))

    def _released(self, segment_id: CombinedSegmentId) -> None:
        """Nobody looks for it any more."""
        self.lets_go(self._invariants.batches_in[segment_id])
        for entry in self._storage.entries[segment_id]:
            living_end = min(entry.last_offset + 1, self.dead_from(segment_id, entry))
            if living_end > entry.first_offset:
                released = self._invariants.log(entry.topic_id_partition).released
                released[entry.leader_epoch] = max(released.get(entry.leader_epoch, 0), living_end)

    def holds(self, batches: Sequence[tuple[TopicIdPartition, BatchKey]]) -> None:
        self._holders.update(batches)

    def lets_go(self, batches: Sequence[tuple[TopicIdPartition, BatchKey]]) -> None:
        """One of the objects that hold these is about to go."""
        self._holders.subtract(batches)
        for partition, key in batches:
            if self._holders[partition, key] <= 0:
                self._invariants.released(partition, key)

    def _batches_held_nowhere(self, segment_id: CombinedSegmentId) -> list[tuple[TopicIdPartition, BatchKey]]:
        return [held for held in self._invariants.batches_in.get(segment_id, ()) if self._holders[held] <= 0]

    def _deleted(self, segment_id: CombinedSegmentId) -> None:
        """It goes now, by whoever calls."""
        state, life = self.states.get(segment_id), self._storage.caller
        assert state in (DELETING, DELETED), f"{segment_id} is deleted, and the topic does not tell"
        age_ms = self._wall_ms() - self._deleting_ms[segment_id]
        assert age_ms >= GRACE_MS, f"{segment_id} is deleted {age_ms} ms after that was told"
        if segment_id in self._were_finished:
            assert isinstance(life, LifeOfObjects)
            assert self.may_go(segment_id, life), f"{segment_id} is deleted, and it is wanted"

    def may_go(self, segment_id: CombinedSegmentId, life: LifeOfObjects) -> bool:
        """Whether nothing of it was wanted, as one of the agent's late views of the cluster had it."""
        return any(self._may_go(segment_id, view) for _, view in life.views)

    def _may_go(self, segment_id: CombinedSegmentId, view: ClusterView) -> bool:
        return all(self._is_free(segment_id, entry, view) for entry in self._storage.entries[segment_id])

    def _is_free(self, segment_id: CombinedSegmentId, entry: RemoteLogSegmentMetadataEntry, view: ClusterView) -> bool:
        partition, now_ms = entry.topic_id_partition, self._wall_ms()
        gone_s = self._cluster.gone.get(partition.topic_id)
        if gone_s is not None and now_ms - wall_ms_at(gone_s) >= TOPIC_GONE_MS:
            return True
        dead_from = self.dead_from(segment_id, entry)
        if min(entry.last_offset, dead_from - 1) < view.log_start.get(partition, 0) or dead_from <= entry.first_offset:
            return True
        if self.archive is not None:
            return self.archive.holds(entry)
        retention_ms = view.retention_ms.get(partition.topic_id, NEVER)
        if retention_ms != NEVER and partition.partition in view.lagging.get(partition.topic_id, ()):
            retention_ms = max(retention_ms, LAGGING_MS)
        return retention_ms != NEVER and now_ms - self._storage.created_ms[segment_id] >= retention_ms
