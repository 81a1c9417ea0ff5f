"""What elections cut off is not recovered while its objects are still there, from when on anybody could know.

A recovery's plan is held against the logs in the midst of a run: at the end, all that is dead is deleted. It is known
that a batch was cut off where each object that holds it is named by a declaration, or where what is stored of a newer
epoch begins at it or before. Where neither is told yet, no recovery can know.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import chain
from typing import Protocol

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.states import DELETED, DELETING, FINISHED
from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from tests.kafka_log.log_writer import BatchKey
from tests.simulation.invariants import Invariants
from tests.simulation.led_log import LedLog
from tests.simulation.object_invariants import ObjectInvariants
from tests.simulation.recovery_check import TopicReader, planned
from tests.simulation.recovery_check import WorldParts as RecoveryWorldParts

ArchivedBatches = dict[ArchiveObjectId, list[tuple[TopicIdPartition, BatchKey]]]
EVERY_LOOKS = 24
CHECKS_MAX = 8
"""In a run, as each looks at all objects."""


class WorldParts(RecoveryWorldParts, Protocol):
    invariants: Invariants
    objects: ObjectInvariants

    def unfailing(self) -> AbstractContextManager[None]: ...

    def batches_archived(self) -> ArchivedBatches: ...


class CutOffCheck:
    """Looks from time to time, and whenever something was declared dead."""

    def __init__(self, world: WorldParts) -> None:
        self._world = world
        self._looks = self._declared = 0
        self._checks_left = CHECKS_MAX
        self._topic = TopicReader()

    def look(self) -> None:
        self._looks += 1
        declarations = self._world.objects.declarations
        if not self._checks_left or (self._looks % EVERY_LOOKS and declarations == self._declared):
            return
        self._declared = declarations
        known = {log.partition: keys for log in self._world.living_logs() if (keys := self._known_dead(log))}
        if known:
            self._checks_left -= 1
            with self._world.unfailing():
                self._check(known)

    def _check(self, known: dict[TopicIdPartition, set[BatchKey]]) -> None:
        world = self._world
        world.hit("cut off and stored")
        inventory = self._topic.inventory(world)
        batches: dict[StoredObjectId, list[tuple[TopicIdPartition, BatchKey]]] = dict(
            chain(world.invariants.batches_in.items(), world.batches_archived().items())
        )
        for log in world.living_logs():
            if log.partition not in known:
                continue
            _, plan, _ = planned(world, inventory, log)
            taken = {
                key
                for extent in plan.extents
                for partition, key in batches[extent.run.stored_in.object_id]
                if partition == log.partition
                and key.leader_epoch == extent.run.leader_epoch
                and extent.first_offset <= key.base_offset <= extent.last_offset
            }
            dead = sorted(taken & known[log.partition])
            assert not dead, f"{dead[:5]} of partition {log.partition.partition} would be recovered, and were cut off"

    def _known_dead(self, log: LedLog) -> set[BatchKey]:
        if not log.cut_off:
            return set()
        archived = chain.from_iterable(self._world.batches_archived().values())
        held = {key for of, key in archived if of == log.partition}
        newer: list[tuple[int, int]] = []
        dead: set[BatchKey] = set()
        for segment_id, entry in self._entries(log):
            is_finished = self._world.objects.states.get(segment_id) is FINISHED
            dead_from = self._world.objects.dead_from(segment_id, entry) if is_finished else entry.last_offset + 1
            if is_finished and dead_from > entry.first_offset:
                newer.append((entry.leader_epoch, entry.first_offset))
            for of, key in self._world.invariants.batches_in[segment_id]:
                if of == log.partition and key.leader_epoch == entry.leader_epoch:
                    (dead if key.base_offset >= dead_from else held).add(key)
        return {
            key
            for key in (dead | held) & log.cut_off
            if key not in held or any(epoch > key.leader_epoch and first <= key.base_offset for epoch, first in newer)
        }

    def _entries(self, log: LedLog) -> Iterator[tuple[CombinedSegmentId, RemoteLogSegmentMetadataEntry]]:
        """Of objects that are not about to go."""
        for segment_id in self._world.storage.objects:
            if self._world.objects.states.get(segment_id) not in (DELETING, DELETED):
                for entry in self._world.storage.entries[segment_id]:
                    if entry.topic_id_partition == log.partition:
                        yield segment_id, entry
