"""Finds what an election killed: entries of older leaders beyond the end of the new leader's log (KIP-1176).

The KIP's example: the old leader B1 had uploaded up to offset 10, the new leader B2's log ends at 5; B2 publishes
DELETE events for 6 to 10, "since they are no longer valid". A log's leader epochs say where each epoch ends, so an
entry is dead from the end of its own epoch on, whichever agent uploaded it and whenever. One comparison finds what was
there at the election, what earlier elections left over, and what a stale leader uploads afterwards with its own, lower
epoch.

Each death is published once: the store leaves out what it knows as dead, and this module remembers what was published
and has not come back through the topic yet. After a restart the store remembers.

Dead stays dead. An unclean election may bring a log back that was declared dead. Its leader then finds that nothing of
it is stored (`stored_ranges` leaves dead entries out) and uploads it again as other entries, even where archive
objects, which have no marks, hold it (`rlm.write_path.reading.resume_point`).

An election must have happened, and only Kafka can say so: the broker's copy of the controllers' log tells who led in
each epoch (`kafka_log.broker_files.cluster_metadata.read_leaders`). An entry is dead if from its epoch up to the one
that cut it off all leaders are known, and none led twice: then another replica was elected that lacks it. If a broker
led twice, it may have lost the records in between (a power cut took its page cache, its disk was replaced); then, or
if a leader is not known, or if there is no other replica, the objects may be the only copies, whichever leader stored
them. Then nothing dies, and the loss is declared instead (`metadata_topic.store.held_records`), also of what the
archive alone has. It does not matter who stored what: a later leader's agent stores what an earlier one's did not.

The caller must lead the partition. A broker that no longer leads and does not know it yet does no harm: its leader
epochs end before its successors', about which it says nothing.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import cache

import structlog

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs, read_leader_epochs
from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.offset_ranges import OffsetRange, joined_ranges, ranges_missing
from metadata_topic.records.publishable import MetadataPublisher, Publishable
from metadata_topic.records.records import RemoteWalLogSegmentMetadataUpdate
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.held_records import is_held
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry, RemoteWalLogSegmentMetadata
from rlm.write_path.assignment import Assignment
from rlm.write_path.metrics import LifecycleMetrics

log = structlog.get_logger(__name__)

_ToldKey = tuple[CombinedSegmentId, int]
"""Segment and leader epoch, within one partition."""


Leaders = Mapping[int, int]
"""Who led a partition, by leader epoch; -1: nobody. An epoch that is not known is absent."""


class FailoverPlanner:
    """Finds the entries that a leader must declare dead, or hold as local losses. For one thread at a time."""

    def __init__(
        self,
        broker_id: int,
        store: RemoteWalMetadataStore,
        declare_loss: Callable[[DeclaredGap], object] = lambda _loss: None,
        archive: ArchiveStore | None = None,
    ) -> None:
        """`declare_loss` is called with records that the log lost without an election, repeatedly until the store
        knows the loss."""
        self._broker_id = broker_id
        self._store = store
        self._declare_loss = declare_loss
        self._archive = archive or ArchiveStore()
        self._told: dict[TopicIdPartition, dict[_ToldKey, int]] = {}

    def plan(
        self,
        partition: TopicIdPartition,
        epochs: LeaderEpochs,
        now_ms: int,
        leaders: Callable[[], Leaders],
        *,
        is_only_replica: bool = False,
    ) -> list[RemoteWalLogSegmentMetadataUpdate]:
        """Return the records to publish now, one for each combined segment.

        `epochs` are those of the leader's checkpoint; `leaders` is called only if the elected leaders matter.
        """
        leader_epoch = epochs.newest_epoch
        if leader_epoch is None:
            return []
        told = self._told.get(partition, {})
        outside: dict[_ToldKey, int] = {}
        dead: dict[CombinedSegmentId, list[RemoteLogSegmentMetadataEntry]] = {}
        lost: dict[int, list[tuple[int, int]]] = {}
        for run, dead_from, cut_by in self._cut_off(partition, epochs):
            lost_from = max(dead_from, epochs.start_offset(cut_by) or 0)
            is_tail = lost_from <= run.entry.last_offset  # else a longer log of older epochs took its place
            if is_tail and (is_only_replica or not _was_elected(run.entry.leader_epoch, cut_by, leaders())):
                lost.setdefault(cut_by, []).append((lost_from, run.entry.last_offset + 1))
                continue
            if is_only_replica:
                continue
            key = (run.combined_segment_id, run.entry.leader_epoch)
            outside[key] = min(dead_from, outside.get(key, dead_from))
            if dead_from < told.get(key, run.entry.last_offset + 1):
                dead.setdefault(run.combined_segment_id, []).append(replace(run.entry, first_offset=dead_from))
        for cut_by, offsets in self._lost_but_archived(partition, epochs, None if is_only_replica else leaders):
            lost.setdefault(cut_by, []).append(offsets)
        for cut_by, ranges in lost.items():
            for begin, end in joined_ranges(ranges):
                self._declare_loss(DeclaredGap(partition, begin, end, cut_by, GapReason.LOST_LOCALLY))
        self._told.pop(partition, None)
        if outside:
            self._told[partition] = {key: min(offset, told.get(key, offset)) for key, offset in outside.items()}
        return [
            RemoteWalLogSegmentMetadataUpdate(segment_id, tuple(entries), self._broker_id, leader_epoch, now_ms)
            for segment_id, entries in dead.items()
        ]

    def _cut_off(
        self, partition: TopicIdPartition, epochs: LeaderEpochs
    ) -> Iterator[tuple[RemoteWalLogSegmentMetadata, int, int]]:
        """Yield what the log lacks and is not held: run, first such offset, the epoch that cut it off."""
        losses = self._store.local_losses()
        for run, dead_from in self._store.outside_of(partition, epochs):
            if not is_held(replace(run.entry, first_offset=dead_from), losses):
                yield run, dead_from, _cut_by(run.entry.leader_epoch, epochs)

    def _lost_but_archived(
        self, partition: TopicIdPartition, epochs: LeaderEpochs, leaders: Callable[[], Leaders] | None
    ) -> Iterator[tuple[int, OffsetRange]]:
        """Yield offsets that the log lost and the archive has, and that are not held, with the epoch that cut them off.

        Without `leaders` there is no other replica.
        """
        losses = self._store.local_losses().get(partition, ())
        for epoch, first, end in self._archive.outside_of(partition, epochs):
            cut_by, held = _cut_by(epoch, epochs), [one[1:3] for one in losses if epoch < one.leader_epoch]
            lost = max(first, epochs.start_offset(cut_by) or 0), min(end, self._store.declared_end(partition, epoch))
            for offsets in ranges_missing(held, lost):
                if leaders is None or not _was_elected(epoch, cut_by, leaders()):
                    yield cut_by, offsets

    def stored_partitions(self) -> frozenset[TopicIdPartition]:
        """Return the partitions of which objects hold records."""
        return frozenset((*self._store.topic_id_partitions(), *self._archive.topic_id_partitions()))

    def plan_again(self, update: RemoteWalLogSegmentMetadataUpdate) -> None:
        """Plan this record again: it could not be published."""
        for entry in update.entries:
            told = self._told.get(entry.topic_id_partition, {})
            told.pop((update.combined_segment_id, entry.leader_epoch), None)

    def keep_only(self, led: Iterable[TopicIdPartition]) -> None:
        """Forget all partitions but these, which are led here."""
        wanted = set(led)
        for partition in [known for known in self._told if known not in wanted]:
            del self._told[partition]


def _cut_by(leader_epoch: int, epochs: LeaderEpochs) -> int:
    """Return the epoch that follows in the log."""
    return min(epoch for epoch in epochs.newest_first() if epoch > leader_epoch)


_NOBODY = -1


def _was_elected(leader_epoch: int, cut_by: int, leaders: Leaders) -> bool:
    """Whether another replica is known to have been elected without records of `leader_epoch`."""
    if not 0 < cut_by - leader_epoch < len(leaders):
        return False
    led = [leaders.get(epoch) for epoch in range(leader_epoch, cut_by + 1)]
    brokers = [broker for broker in led if broker != _NOBODY]
    return None not in led and _NOBODY not in (led[0], led[-1]) and len(set(brokers)) == len(brokers)


_PARTITIONS_AT_ONCE = 100


class FailoverTask:
    """Runs a `FailoverPlanner` from time to time and publishes what it finds. For the event loop; reads files on
    `threads`.

    `rlm.lifecycle.failover` plans it.
    """

    def __init__(
        self,
        planner: FailoverPlanner,
        publisher: MetadataPublisher[Publishable],
        wall_ms: Callable[[], int],
        metrics: LifecycleMetrics,
        threads: Executor,
        read_leaders: Callable[[Collection[TopicId]], Mapping[TopicIdPartition, Leaders]],
    ) -> None:
        """`planner` runs on `threads`.

        `read_leaders` is `kafka_log.broker_files.cluster_metadata.read_leaders` for this broker.
        """
        self._planner = planner
        self._publisher = publisher
        self._wall_ms = wall_ms
        self._metrics = metrics
        self._threads = threads
        self._read_leaders = read_leaders
        self._led: Sequence[Assignment] = ()
        self.led_changed = asyncio.Event()

    def set_led(self, assignments: Sequence[Assignment]) -> None:
        """Set the partitions that are led here from now on."""
        if [a.topic_id_partition for a in assignments] != [a.topic_id_partition for a in self._led]:
            self.led_changed.set()
        self._led = tuple(assignments)

    async def run_once(self) -> bool:
        """Check every led partition that has objects. Always returns True: unreadable logs are logged, and checked
        again next time."""
        loop, led = asyncio.get_running_loop(), self._led
        self._planner.keep_only(assignment.topic_id_partition for assignment in led)
        stored = await loop.run_in_executor(self._threads, self._planner.stored_partitions)
        wanted = [assignment for assignment in led if assignment.topic_id_partition in stored]
        leaders = cache(lambda: self._leaders({one.topic_id_partition.topic_id for one in wanted}))
        for start in range(0, len(wanted), _PARTITIONS_AT_ONCE):
            some = wanted[start : start + _PARTITIONS_AT_ONCE]
            await loop.run_in_executor(self._threads, self._declare_dead_of_all, some, leaders)
        return True

    def _leaders(self, topics: Collection[TopicId]) -> Mapping[TopicIdPartition, Leaders]:
        try:
            return self._read_leaders(topics)
        except (LogDirectoryError, MalformedFileError) as error:
            log.error("leaders_unknown", error=str(error), consequence="what logs lack of their objects is held")
            return {}

    def _declare_dead_of_all(
        self, assignments: Sequence[Assignment], leaders: Callable[[], Mapping[TopicIdPartition, Leaders]]
    ) -> None:
        for assignment in assignments:
            self._declare_dead_of(assignment, leaders)

    def _declare_dead_of(
        self, assignment: Assignment, leaders: Callable[[], Mapping[TopicIdPartition, Leaders]]
    ) -> None:
        partition = assignment.topic_id_partition
        try:
            epochs = read_leader_epochs(assignment.directory)
        except (OSError, MalformedFileError) as error:
            log.warning("leader_epochs_not_read", partition=str(partition), error=str(error))
            return
        planned = self._planner.plan(
            partition,
            epochs,
            self._wall_ms(),
            lambda: leaders().get(partition, {}),
            is_only_replica=assignment.is_only_replica,
        )
        for update in planned:
            try:
                self._publisher.publish(update)
            except PublicationBacklogFullError:
                self._planner.plan_again(update)
                continue
            self._metrics.dead_entries.inc(len(update.entries))
            log.info(
                "dead_entries_published",
                partition=str(partition),
                segment=str(update.combined_segment_id),
                leader_epoch=update.leader_epoch,
                from_offset=min(entry.first_offset for entry in update.entries),
                to_offset=max(entry.last_offset for entry in update.entries) + 1,
            )
