"""The index path: from a partition, a leader epoch and an offset to the object that holds the record.

Theory. It is S3Stream's, on Kafka's terms. S3Stream finds a stream's offset by the stream's range at that offset,
which names the node, and then among the StreamSetObjects of that node. Here a partition's leader epoch chain takes the
place of a stream's ranges: it names the one epoch whose record stands at the offset, whichever broker led. Combined
segments are the StreamSetObjects; `metadata_topic.store.run_index` finds those that hold the offset in that
epoch. StreamObjects are the archive's objects (`metadata_topic.store.archive.archive_store`). A reader asks for
combined segments first, as they are nearer, and for archive objects where there is none (`rlm.archive.stored_runs`).
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap
from metadata_topic.records.offset_ranges import NO_END, joined_ranges
from metadata_topic.records.states import DELETING, FINISHED
from metadata_topic.store.dead_tails import PartitionAndEpoch
from metadata_topic.store.held_records import LocalLosses, is_held
from metadata_topic.store.segment_table import Segment
from metadata_topic.store.store_state import StoreState
from plugin.format import entry_columns
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry, RemoteLogSegmentState, RemoteWalLogSegmentMetadata


class _Run(NamedTuple):
    """One partition's run of offsets [first_offset, last_offset] in one object."""

    first_offset: int
    last_offset: int
    segment: Segment


class PartitionLookups:
    """The lookups of a metadata store by partition, leader epoch and offset."""

    _lock: AbstractContextManager[object]
    _state: StoreState

    def entries_covering(
        self, topic_id_partition: TopicIdPartition, offset: int, leader_epochs: LeaderEpochs | None = None
    ) -> list[RemoteWalLogSegmentMetadata]:
        """Return the finished, living runs that hold `offset`, the best first: newest epoch, then reaching furthest.

        With `leader_epochs` (the chain of the log in question), these are only runs of the epoch whose record stands at
        that offset. A run may reach into offsets that the chain gives to a later epoch; the caller cuts it off at the
        chain's `end_of`. Without a chain, these are runs of every epoch.
        """
        with self._lock:
            if leader_epochs is None:
                wanted = self._state.index.epochs(topic_id_partition)[::-1]
            else:
                epoch_there = leader_epochs.epoch_at(offset)
                wanted = [] if epoch_there is None else [epoch_there]
            found = []
            for epoch in wanted:
                key = (topic_id_partition, epoch)
                runs = [run for run in self._runs(key, offset, offset + 1) if offset < self._end_of_life(run, key)]
                runs.sort(key=lambda run: (-run.last_offset, run.first_offset, run.segment.segment_id))
                found += [self._view(run, key) for run in runs]
            return found

    def stored_ranges(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochs, from_offset: int = 0
    ) -> list[tuple[int, int]]:
        """Return the ranges [from, to) of this log from `from_offset` on that finished objects hold, ascending.

        A hole between two ranges may be one of the log itself, which only the log can tell.
        """
        found: list[tuple[int, int]] = []
        with self._lock:
            index = self._state.index
            known = set(index.epochs(topic_id_partition))
            for epoch in reversed(leader_epochs.newest_first()):
                start, end = leader_epochs.start_offset(epoch), leader_epochs.end_of(epoch)
                bounds = (max(start or 0, from_offset), NO_END if end is None else end)
                if epoch in known and bounds[0] < bounds[1]:
                    dead_from = self._state.dead_from(topic_id_partition, epoch)
                    found += index.ranges(topic_id_partition, epoch, bounds, dead_from)
        return joined_ranges(found)

    def with_older_epochs(self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochs) -> LeaderEpochs:
        """Return the log's chain with the epochs that retention cut from its head, if objects hold records of them.

        An epoch began at the first of its records. One that would begin behind its own end was overwritten (KIP-101, as
        `recovery.logs.log_plan` has it). If the records of an epoch in between were all released, that epoch begins
        where the records of the older ones end.
        """
        if not leader_epochs.entries:
            return leader_epochs
        (head, head_start), *newer = leader_epochs.entries
        with self._lock:
            index = self._state.index
            held = {
                epoch: index.ranges(
                    topic_id_partition, epoch, (0, head_start), self._state.dead_from(topic_id_partition, epoch)
                )
                for epoch in index.epochs(topic_id_partition)
                if epoch <= head
            }
            older: list[tuple[int, int]] = []
            start = head_start
            for epoch in sorted((epoch for epoch, ranges in held.items() if ranges), reverse=True):
                first = held[epoch][0][0]
                if epoch == head:
                    head_start = first
                elif first < start:
                    older.insert(0, (epoch, first))
                start = min(start, first)
            chain: list[tuple[int, int]] = []
            reached = 0
            for (epoch, first), (following, end) in pairwise([*older, (head, head_start)]):
                chain.append((epoch, first))
                reached = max(reached, min(held[epoch][-1][1], end))
                for between in range(epoch + 1, following):
                    released = min(self._state.take_in_released().up_to(topic_id_partition, between), end)
                    if released > reached:
                        chain.append((between, reached))
                        reached = released
        return LeaderEpochs([*chain, (head, head_start), *newer])

    def released_up_to(self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochs) -> int:
        """Return the offset below which no record of a log is needed: an object with records up to there was
        released."""
        with self._lock:
            released = self._state.take_in_released()
            ends = ((epoch, leader_epochs.end_of(epoch)) for epoch in leader_epochs.newest_first())
            return max(
                (min(released.up_to(topic_id_partition, epoch), NO_END if end is None else end) for epoch, end in ends),
                default=0,
            )

    def log_starts(self) -> dict[TopicIdPartition, dict[int, int]]:
        """Return the first offset of logs by leader epoch, as the agents beside their leaders published it."""
        found: defaultdict[TopicIdPartition, dict[int, int]] = defaultdict(dict)
        with self._lock:
            for partition, epoch, offset, _ in self._state.log_starts.all():
                found[partition][epoch] = offset
        return found

    def has_runs(self, topic_id_partition: TopicIdPartition, begin: int, end: int) -> bool:
        """Whether a finished segment has records with offsets in [begin, end), of whatever epoch."""
        with self._lock:
            epochs = self._state.index.epochs(topic_id_partition)
            return any(self._runs((topic_id_partition, epoch), begin, end) for epoch in epochs)

    def declared_gaps(self, topic_id_partition: TopicIdPartition) -> list[DeclaredGap]:
        """Return a partition's declared gaps, by offset; `DeclaredGap.end_in` says up to where one counts for a log."""
        with self._lock:
            told, untold = self._state.gaps.of(topic_id_partition), self._state.unpublished_gaps.of(topic_id_partition)
            return sorted({*told, *untold})

    def local_losses(self) -> LocalLosses:
        """Return by partition the ranges that logs lost while objects held their records, as agents declared them."""
        with self._lock:
            return self._state.held.losses

    def undecided_losses(self, topic_id_partition: TopicIdPartition) -> list[DeclaredGap]:
        """Return those of a partition's `local_losses` that no person has given up."""
        with self._lock:
            return self._state.held.undecided(topic_id_partition)

    def declared_end(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> int:
        """Return from which offset on leaders declared this epoch's records dead; NO_END if none did. A local loss does
        not count."""
        with self._lock:
            return self._state.declared_end(topic_id_partition, leader_epoch)

    def is_run_held(self, run: RemoteLogSegmentMetadataEntry) -> bool:
        """Whether the log lost records of the run, which an archive object holds, without an election."""
        return is_held(run, self.local_losses())

    def held_runs(self, topic_id_partition: TopicIdPartition) -> list[RemoteWalLogSegmentMetadata]:
        """Return the runs of a partition's local losses that objects hold and nobody has given up.

        They are sorted by leader epoch and offset. Offsets are those that are held; positions are of the whole entry.
        """
        losses = self.local_losses()
        found: list[RemoteWalLogSegmentMetadata] = []
        with self._lock:
            for loss in losses.get(topic_id_partition, ()):
                for epoch in self._state.index.epochs(topic_id_partition):
                    if epoch < loss.leader_epoch:
                        key = (topic_id_partition, epoch)
                        for state in (FINISHED, DELETING):
                            found += self._held(self._runs(key, loss.from_offset, NO_END, state), key, loss)
        return sorted(set(found), key=lambda view: (view.entry.leader_epoch, view.entry.first_offset))

    def _held(
        self, runs: list[_Run], key: PartitionAndEpoch, loss: DeclaredGap
    ) -> Iterator[RemoteWalLogSegmentMetadata]:
        for run in runs:
            begin, end = max(run.first_offset, loss.from_offset), self._end_of_life(run, key)
            if begin < min(loss.to_offset, end):
                view = self._view(run, key)
                entry = replace(view.entry, first_offset=begin, last_offset=min(view.entry.last_offset, end - 1))
                yield replace(view, entry=entry)

    def outside_of(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochs
    ) -> list[tuple[RemoteWalLogSegmentMetadata, int]]:
        """Return the runs with offsets that this log does not have, each with the first such offset.

        After a failover the new leader publishes these as dead. Runs that this topic itself already declares dead from
        there on are left out. So are runs of epochs newer than the chain, because then the chain is stale. Runs of
        segments whose deletion has begun are included: the deletion is held back while they seem to be wanted.
        """
        with self._lock:
            found: list[tuple[RemoteWalLogSegmentMetadata, int]] = []
            for state in (FINISHED, DELETING):
                for epoch in self._state.index.epochs(topic_id_partition):
                    end, key = leader_epochs.end_of(epoch), (topic_id_partition, epoch)
                    if end is not None:
                        found += self._outside(self._runs(key, end, NO_END, state), key, end)
            return found

    def _outside(
        self, runs: list[_Run], key: PartitionAndEpoch, end: int
    ) -> Iterator[tuple[RemoteWalLogSegmentMetadata, int]]:
        for run in sorted(runs, key=lambda run: (-run.first_offset, run.last_offset, run.segment.segment_id)):
            dead_from = max(end, run.first_offset)
            if dead_from < min(run.last_offset + 1, self._told_end_of_life(run, key)):
                yield self._view(run, key), dead_from

    def first_dead_offset(self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochs) -> int | None:
        """Return the first offset of this log that is declared dead in the epoch that wrote it; None without any.

        A log has such offsets when an unclean election restored them, or a recovery that did not know of their death.
        """
        own = {(topic_id_partition, epoch) for epoch in leader_epochs.newest_first()}
        with self._lock:
            dead = list(self._state.dead_tails.of_partitions(own))
        return min((offset for (_, epoch), offset in dead if leader_epochs.epoch_at(offset) == epoch), default=None)

    def topic_id_partitions(self) -> list[TopicIdPartition]:
        """Return the partitions that have finished segments."""
        with self._lock:
            return self._state.index.partitions()

    def _runs(
        self, key: PartitionAndEpoch, begin: int, end: int = NO_END, state: RemoteLogSegmentState = FINISHED
    ) -> list[_Run]:
        """Return the runs with offsets in [begin, end), of segments in that state, in no particular order."""
        found = self._state.index.find_runs(*key, (begin, end), state)
        columns = (found.firsts.tolist(), found.lasts.tolist(), found.numbers.tolist())
        return [
            _Run(first, last, self._state.table.find_by_number(number))
            for first, last, number in zip(*columns, strict=True)
        ]

    def _told_end_of_life(self, run: _Run, key: PartitionAndEpoch) -> int:
        """Return the offset from which on the run is dead, by what this topic tells."""
        is_published = self._state.dead_tails.is_published(run.segment.segment_id, key)
        return self._end_of_life(run, key) if is_published else run.last_offset + 1

    def _end_of_life(self, run: _Run, key: PartitionAndEpoch) -> int:
        """Return the offset from which on the run is dead; the one behind its last offset while all of it lives."""
        return self._state.dead_tails.of(run.segment.segment_id).get(key, run.last_offset + 1)

    def _view(self, run: _Run, key: PartitionAndEpoch) -> RemoteWalLogSegmentMetadata:
        segment = run.segment
        block = self._state.table.entry_block(segment)
        entry = entry_columns.find(block, *key, (run.first_offset, run.last_offset))
        if entry is None:
            raise LookupError(f"{segment.segment_id} is indexed for {key[0]} and has no such entry")
        return RemoteWalLogSegmentMetadata(segment.segment_id, entry, segment.state, segment.custom_metadata)
