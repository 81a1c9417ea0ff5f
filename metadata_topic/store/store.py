"""All that is known of combined segments, rebuilt from the metadata topic (KIP-405's RemoteLogMetadataCache).

Theory. The store is a join of all records applied, so neither order nor repetition matters: of the states the
furthest counts (`metadata_topic.records.states`), of two timestamps for one state the earlier, of two sizes the
larger, of two lists of entries or two custom metadata the longer one. Dead entries only grow. What is deleted
for ever stays remembered, as a number in an interval, so that no late record brings it back. Hence every
object is in exactly one state.

Where the topic began anew or lost its tail, what is known is kept, and added to by what it tells from its beginning on
(`metadata_topic.store.topic_continuity`).

One thing depends on order: a COPY_SEGMENT_* record is refused when an incarnation above its own is registered
before it (`metadata_topic.store.fencing`). It is the order in the topic that counts, not that of arrival, and it is
total: all records about one broker's objects, and its registrations, are in one partition. What came before
the registration stays valid. An id whose COPY record was refused is remembered as fenced, so that the object,
if there is one, is known for an orphan; DELETE records of it are taken as any.

Records that a newer agent wrote are kept as bytes, up to a bound, for the time after the upgrade.

A FINISHED segment's entries are indexed per partition and leader epoch (`metadata_topic.store.run_index`); segments
in any other state are not in the index, so a lookup sees finished ones only. Records in objects overlap
(uploaded twice, by two agents, before and after a failover), and a lookup picks by leader epoch. Offsets need
not be contiguous: a compacted log has holes.

Memory: a segment is one slotted object with its entries as the block of columns that they came in; an index
row is 20 bytes. `perf metadata` measures it.

Any thread may call any method; one lock guards all. `apply` belongs to the one thread that reads the topic.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap
from metadata_topic.records.leader_epochs import LeaderEpochChain
from metadata_topic.records.offset_ranges import NO_END, joined_ranges
from metadata_topic.records.records import (
    MetadataRecord,
    PublishedSegment,
    RemoteWalNodeRegistration,
    RemoteWalTopicRebuilt,
)
from metadata_topic.records.states import DELETED
from metadata_topic.store.fencing import Source
from metadata_topic.store.run_index import Run
from metadata_topic.store.segment_table import Segment
from metadata_topic.store.segment_tally import SegmentTally, tally
from metadata_topic.store.store_image import StoreImage
from metadata_topic.store.store_state import PartitionAndEpoch, StoreState
from metadata_topic.store.topic_continuity import RememberedTopic, TopicContinuity
from plugin import entry_columns
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalLogSegmentMetadata,
)

UNKNOWN_OFFSET = -1
"""No offset is known; never 0, which is an offset."""

_IMAGE_SEGMENTS = 5000


@dataclass(frozen=True, slots=True)
class StateTotals:
    """How many segments are in one state, and the bytes of those whose size is known."""

    segments: int = 0
    bytes: int = 0


class RemoteWalMetadataStore:
    """Answers what is where. See the module's theory."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._state = StoreState()
        self.topic = TopicContinuity()
        """Whether the topic that is read is the one that was read before, and whole."""

    def apply(self, record: MetadataRecord, source: Source | None = None) -> None:
        """Take a record in. `source` is its (partition, offset) in the metadata topic: progress and content
        are one unit.
        """
        with self._lock:
            self._state.apply(record, source)
            if isinstance(record, RemoteWalTopicRebuilt):
                self.topic.rebuilt(record)
            if source is not None:
                self._read_beyond(source)

    def apply_all(self, records: Iterable[tuple[MetadataRecord | None, Source]]) -> None:
        """`apply` for a batch of (record, source), under one lock; None stands for what another store takes in."""
        with self._lock:
            for record, source in records:
                if record is None:
                    self._read_beyond(source)
                else:
                    self.apply(record, source)

    def image(self) -> StoreImage:
        """All that is known, and how far the topic was read; for a snapshot.

        Other threads are held up for milliseconds at a time only. What arrives meanwhile may be in it or not:
        the topic tells it again from `progress` on, and telling twice changes nothing.
        """
        segments: list[PublishedSegment] = []
        with self._lock:
            image = replace(self._state.image(segments), topic_id=self.topic.topic_id, rebuilt_ms=self.topic.rebuilt_ms)
            known = list(self._state.table.segments())
        for start in range(0, len(known), _IMAGE_SEGMENTS):
            with self._lock:
                segments += [segment.published() for segment in known[start : start + _IMAGE_SEGMENTS]]
        return image

    def restore(self, image: StoreImage) -> None:
        """Know what `image` holds, and nothing else. What was counted stays counted."""
        restored = StoreState.of(image)
        with self._lock:
            self._exchange(restored)
        remembered = RememberedTopic(image.topic_id, image.progress, image.rebuilt_ms)
        self.topic.remember(remembered, reading_goes_on=True)

    def begin_anew(self) -> None:
        """The topic is read from its beginning, as it is another one, or lost its tail: what is known stays known."""
        with self._lock:
            self._state.begin_anew()

    def join(self, image: StoreImage) -> None:
        """Know what `image` tells as well: several agents' snapshots tell more than one."""
        with self._lock:
            self._state.join(image)

    def _read_beyond(self, source: Source) -> None:
        partition, offset = source
        self._state.progress[partition] = max(self._state.progress.get(partition, 0), offset + 1)

    def _exchange(self, state: StoreState) -> None:
        state.counters.update(self._state.counters)
        self._state = state

    # Lookups by partition

    def entries_covering(
        self, topic_id_partition: TopicIdPartition, offset: int, leader_epochs: LeaderEpochChain | None = None
    ) -> list[RemoteWalLogSegmentMetadata]:
        """The finished, living runs that hold `offset`, the best first: newest epoch, then reaching furthest.

        With `leader_epochs` (the chain of the log that is asked about) only runs of the epoch whose record
        stands at that offset; a run may reach into offsets that the chain gives to a later epoch, which the
        caller cuts off by the chain's `end_of`. Without a chain, runs of every epoch.
        """
        with self._lock:
            index = self._state.index
            if leader_epochs is None:
                wanted = index.epochs(topic_id_partition)[::-1]
            else:
                epoch_there = leader_epochs.epoch_at(offset)
                wanted = [] if epoch_there is None else [epoch_there]
            found = []
            for epoch in wanted:
                key = (topic_id_partition, epoch)
                runs = [run for run in index.covering(*key, offset) if offset < self._end_of_life(run, key)]
                runs.sort(key=lambda run: (-run.last_offset, run.first_offset, run.segment.segment_id))
                found += [_view(run, key) for run in runs]
            return found

    def last_uploaded_offset(self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochChain) -> int:
        """The highest offset of this log in a finished object; UNKNOWN_OFFSET when there is none.

        Offsets below it may be missing: objects are deleted, and compacted logs have holes.
        """
        with self._lock:
            index = self._state.index
            known = set(index.epochs(topic_id_partition))
            highest = UNKNOWN_OFFSET
            for epoch in leader_epochs.newest_first():
                if epoch in known:
                    key = (topic_id_partition, epoch)
                    end_of_life = partial(self._end_of_life, key=key)
                    highest = max(highest, index.highest(*key, leader_epochs.end_of(epoch), end_of_life))
            return highest

    def stored_ranges(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochChain, from_offset: int = 0
    ) -> list[tuple[int, int]]:
        """The offsets of this log, at or above `from_offset`, that finished objects hold: ranges [from, to), ascending.

        A hole between two may be one of the log itself, which only the log can tell.
        """
        found: list[tuple[int, int]] = []
        with self._lock:
            index = self._state.index
            known = set(index.epochs(topic_id_partition))
            for epoch in reversed(leader_epochs.newest_first()):
                start, end = leader_epochs.start_offset(epoch), leader_epochs.end_of(epoch)
                bounds = (max(start or 0, from_offset), NO_END if end is None else end)
                if epoch in known and bounds[0] < bounds[1]:
                    dead_from = self._state.dead_slots(topic_id_partition, epoch)
                    found += index.ranges(topic_id_partition, epoch, bounds, dead_from)
        return joined_ranges(found)

    def released_up_to(self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochChain) -> int:
        """Of this log, what lies below is not wanted any more: an object that held records up to there has gone."""
        with self._lock:
            released = self._state.released
            ends = ((epoch, leader_epochs.end_of(epoch)) for epoch in leader_epochs.newest_first())
            return max(
                (min(released.up_to(topic_id_partition, epoch), NO_END if end is None else end) for epoch, end in ends),
                default=0,
            )

    def declared_gaps(self, topic_id_partition: TopicIdPartition) -> list[DeclaredGap]:
        """What agents said of it, by offset. Held against a log by `DeclaredGap.end_in`."""
        with self._lock:
            return self._state.gaps.of(topic_id_partition)

    def outside_of(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochChain
    ) -> list[tuple[RemoteWalLogSegmentMetadata, int]]:
        """Runs that hold offsets which this log does not have, each with the first such offset.

        After a failover the new leader publishes these as dead. Runs known as dead from there on are left
        out, if this very topic tells so; so are runs of epochs newer than the chain, as then it is the chain that is
        stale.
        """
        with self._lock:
            found = []
            for epoch in self._state.index.epochs(topic_id_partition):
                end = leader_epochs.end_of(epoch)
                if end is None:
                    continue
                key = (topic_id_partition, epoch)
                runs = sorted(
                    self._state.index.reaching(*key, end),
                    key=lambda run: (-run.first_offset, run.last_offset, run.segment.segment_id),
                )
                for run in runs:
                    dead_from = max(end, run.first_offset)
                    if dead_from < min(run.last_offset + 1, self._told_end_of_life(run, key)):
                        found.append((_view(run, key), dead_from))
            return found

    def first_dead_offset(self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochChain) -> int | None:
        """The first offset of this log that is declared dead in a segment, in the very epoch that wrote it; None when
        there is none.

        A log has such offsets when an unclean election brought it back, or a recovery that did not know better.
        """
        own = {(topic_id_partition, epoch) for epoch in leader_epochs.newest_first()}
        with self._lock:
            dead = [(tails[key], key[1]) for tails in self._state.dead_from.values() for key in tails.keys() & own]
        return min((offset for offset, epoch in dead if leader_epochs.epoch_at(offset) == epoch), default=None)

    def topic_id_partitions(self) -> list[TopicIdPartition]:
        """The partitions that have finished segments."""
        with self._lock:
            return self._state.index.partitions()

    # Lookups by segment

    def state_of(self, combined_segment_id: CombinedSegmentId) -> RemoteLogSegmentState | None:
        """None when nothing is known of it."""
        with self._lock:
            writer = self._state.table.find_writer(combined_segment_id)
            if writer is None:
                return None
            if combined_segment_id.sequence in writer.deleted:
                return DELETED
            segment = writer.segments.get(combined_segment_id.sequence)
            return segment.state if segment else None

    def segment(self, combined_segment_id: CombinedSegmentId) -> RemoteWalCombinedLogSegmentMetadata | None:
        """None when nothing is known of it, or it is deleted."""
        known = self.published_segment(combined_segment_id)
        return known.metadata if known else None

    def published_segment(self, combined_segment_id: CombinedSegmentId) -> PublishedSegment | None:
        """The same, with the entries left as bytes."""
        with self._lock:
            known = self._state.table.find(combined_segment_id)
            return known.published() if known else None

    def segments(
        self, state: RemoteLogSegmentState | None = None, broker_id: int | None = None
    ) -> Iterator[RemoteWalCombinedLogSegmentMetadata]:
        """The segments that are not deleted, by writer and sequence; each as it is when it is reached."""
        return (known.metadata for known in self.published_segments(state, broker_id))

    def published_segments(
        self, state: RemoteLogSegmentState | None = None, broker_id: int | None = None
    ) -> Iterator[PublishedSegment]:
        """The same, with the entries left as bytes: for whoever looks at all of them."""
        with self._lock:
            writers = self._state.table.writers(broker_id)
        for writer in writers:
            with self._lock:
                sequences = sorted(writer.segments)
            for sequence in sequences:
                with self._lock:
                    known = writer.segments.get(sequence)
                    if known is None or state not in (None, known.state):
                        continue
                    found = known.published()
                yield found

    def dead_tails(self, combined_segment_id: CombinedSegmentId) -> Mapping[PartitionAndEpoch, int]:
        """By partition and leader epoch, the offset from which on the segment's entries are dead."""
        with self._lock:
            return dict(self._state.dead_from.get(combined_segment_id, {}))

    # Brokers

    def registration_of(self, broker_id: int) -> RemoteWalNodeRegistration | None:
        """The newest incarnation's; None when the broker's agent never registered."""
        with self._lock:
            return self._state.registrations.newest(broker_id)

    def refused_registrations_of(self, broker_id: int) -> int:
        """How many came behind that of a higher incarnation, as far as this store itself has read."""
        with self._lock:
            return self._state.registrations.refused[broker_id]

    def newest_registrations(self) -> list[RemoteWalNodeRegistration]:
        """The newest incarnation's of every broker, by broker."""
        with self._lock:
            return self._state.registrations.newest_of_all()

    def caretaker_of(self, broker_id: int) -> int:
        """The broker whose agent cares for that broker's objects: its own, unless another took over."""
        registration = self.registration_of(broker_id)
        return broker_id if registration is None else registration.caretaker_broker_id

    def is_fenced(self, combined_segment_id: CombinedSegmentId) -> bool:
        """Whether the segment was refused because its writer was fenced; its object, if any, is an orphan.

        False once it is deleted, and for segments that were known before their writer was fenced.
        """
        with self._lock:
            writer = self._state.table.find_writer(combined_segment_id)
            sequence = combined_segment_id.sequence
            return writer is not None and sequence in writer.fenced and sequence not in writer.deleted

    def knows_incarnation(self, broker_id: int, incarnation: int) -> bool:
        """Whether its registration is known: all that it published stands behind it in the topic."""
        with self._lock:
            return self._state.registrations.knows(broker_id, incarnation)

    # The whole

    def totals(self) -> Mapping[RemoteLogSegmentState, StateTotals]:
        """For each state; the deleted ones as a mere number."""
        with self._lock:
            totals = {
                state: StateTotals(self._state.segments_in[state], self._state.bytes_in[state])
                for state in RemoteLogSegmentState
            }
            totals[DELETED] = StateTotals(sum(len(writer.deleted) for writer in self._state.table.writers()))
            return totals

    def tallies(self) -> list[SegmentTally]:
        """The segments that are not deleted, by broker and state. No entry is decoded; other threads wait only
        while a list is copied.
        """
        by_broker: dict[int, list[Segment]] = {}
        with self._lock:
            for writer in self._state.table.writers():
                by_broker.setdefault(writer.broker_id, []).extend(writer.segments.values())
        return [row for broker_id, segments in by_broker.items() for row in tally(broker_id, segments)]

    @property
    def progress(self) -> dict[int, int]:
        """Partition of the metadata topic to the offset that is to be read next."""
        with self._lock:
            return dict(self._state.progress)

    @property
    def counters(self) -> dict[str, int]:
        """How often each kind of record came: `step_<Step>`, `after_deletion`, `dead_entries`, `fenced`,
        `registrations`, `unknown_<reason>` …; `retained_unknown` is how many are kept for an upgrade.
        """
        with self._lock:
            return {**self._state.counters, "retained_unknown": len(self._state.retained)}

    def _told_end_of_life(self, run: Run, key: PartitionAndEpoch) -> int:
        """The same, by what this topic tells."""
        is_untold = key in self._state.dead_before.get(run.segment.segment_id, ())
        return run.last_offset + 1 if is_untold else self._end_of_life(run, key)

    def _end_of_life(self, run: Run, key: PartitionAndEpoch) -> int:
        """The offset from which on the run is dead; above its last offset while it lives whole."""
        dead_from = self._state.dead_from
        if not dead_from:
            return run.last_offset + 1
        return dead_from.get(run.segment.segment_id, {}).get(key, run.last_offset + 1)


def _view(run: Run, key: PartitionAndEpoch) -> RemoteWalLogSegmentMetadata:
    segment = run.segment
    entry = entry_columns.find(segment.entry_block, *key, (run.first_offset, run.last_offset))
    if entry is None:
        raise LookupError(f"{segment.segment_id} is indexed for {key[0]} and has no such entry")
    return RemoteWalLogSegmentMetadata(segment.segment_id, entry, segment.state, segment.custom_metadata)
