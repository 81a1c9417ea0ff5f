"""All that is known of combined segments, rebuilt from the metadata topic (KIP-405's RemoteLogMetadataCache).

Theory. The store is a join of all records applied, so neither order nor repetition matters: of the states the
furthest counts (`metadata_topic.states`), of two timestamps for one state the earlier, of two sizes the
larger, of two lists of entries or two custom metadata the longer one. Dead entries only grow. What is deleted
for ever stays remembered, as a number in an interval, so that no late record brings it back. Hence every
object is in exactly one state.

A FINISHED segment's entries are indexed per partition and leader epoch; segments in any other state have no
index rows, so a lookup sees finished ones only. Records in objects overlap (uploaded twice, by two agents,
before and after a failover), and a lookup picks by leader epoch. Offsets need not be contiguous: a compacted
log has holes.

Memory: a segment is one slotted object with its entries as the column block they came in; an index row is 36
bytes.

Any thread may call any method; one lock guards all. `apply` belongs to the one thread that reads the topic.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.epoch_index import EpochIndex, Run
from metadata_topic.leader_epochs import LeaderEpochChain
from metadata_topic.records import (
    MetadataRecord,
    PublishedSegment,
    RemoteWalLogSegmentMetadataUpdate,
    UnknownRecord,
)
from metadata_topic.sequence_set import SequenceSet
from metadata_topic.serde import decode_entries, encode_entries
from metadata_topic.states import DELETED, FINISHED, Step, furthest, step
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalLogSegmentMetadata,
)

UNKNOWN_OFFSET = -1
"""No offset is known; never 0, which is an offset."""


@dataclass(frozen=True, slots=True)
class StateTotals:
    """How many segments are in one state, and the bytes of those whose size is known."""

    segments: int = 0
    bytes: int = 0


class _Segment:
    __slots__ = ("custom_metadata", "entry_block", "event_timestamp_ms", "size_bytes", "state")

    def __init__(self, record: RemoteWalCombinedLogSegmentMetadata, entry_block: bytes) -> None:
        self.state = record.state
        self.event_timestamp_ms = record.event_timestamp_ms
        self.size_bytes = record.size_bytes
        self.custom_metadata = record.custom_metadata
        self.entry_block = entry_block


class _Writer:
    """One incarnation of one broker's agent, and its objects by sequence."""

    __slots__ = ("broker_id", "deleted", "incarnation", "index", "segments")

    def __init__(self, broker_id: int, incarnation: int, index: int) -> None:
        self.broker_id = broker_id
        self.incarnation = incarnation
        self.index = index
        self.segments: dict[int, _Segment] = {}
        self.deleted = SequenceSet()


_PartitionAndEpoch = tuple[TopicIdPartition, int]


class RemoteWalMetadataStore:
    """Answers what is where. See the module's theory."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._writers: list[_Writer] = []
        self._writer_of: dict[tuple[int, int], _Writer] = {}
        self._index: dict[TopicIdPartition, dict[int, EpochIndex]] = {}
        # From which offset on a segment's records of a partition and epoch are dead; absent while the segment
        # lives whole.
        self._dead_from: dict[CombinedSegmentId, dict[_PartitionAndEpoch, int]] = {}
        self._segments_in: Counter[RemoteLogSegmentState] = Counter()
        self._bytes_in: Counter[RemoteLogSegmentState] = Counter()
        self._progress: dict[int, int] = {}
        self._counters: Counter[str] = Counter()

    def apply(self, record: MetadataRecord, source: tuple[int, int] | None = None) -> None:
        """Take a record in. `source` is its (partition, offset) in the metadata topic: progress and content
        are one unit.
        """
        with self._lock:
            self._apply(record)
            if source is not None:
                partition, offset = source
                self._progress[partition] = max(self._progress.get(partition, 0), offset + 1)

    def apply_all(self, records: Iterable[tuple[MetadataRecord, tuple[int, int]]]) -> None:
        """`apply` for a batch of (record, source), under one lock."""
        with self._lock:
            for record, source in records:
                self.apply(record, source)

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
            epochs = self._index.get(topic_id_partition, {})
            if leader_epochs is None:
                wanted = sorted(epochs, reverse=True)
            else:
                epoch_there = leader_epochs.epoch_at(offset)
                wanted = [] if epoch_there is None or epoch_there not in epochs else [epoch_there]
            found = []
            for epoch in wanted:
                key = (topic_id_partition, epoch)
                runs = [run for run in epochs[epoch].covering(offset) if offset < self._end_of_life(run, key)]
                runs.sort(key=lambda run: (-run.last_offset, run.first_offset, self._id_of(run)))
                found += [self._view(run, key) for run in runs]
            return found

    def last_uploaded_offset(self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochChain) -> int:
        """The highest offset of this log in a finished object; UNKNOWN_OFFSET when there is none.

        Offsets below it may be missing: objects are deleted, and compacted logs have holes.
        """
        with self._lock:
            epochs = self._index.get(topic_id_partition, {})
            highest = UNKNOWN_OFFSET
            for epoch in leader_epochs.newest_first():
                if epoch in epochs:
                    found = self._highest((topic_id_partition, epoch), epochs[epoch], leader_epochs.end_of(epoch))
                    highest = max(highest, found)
            return highest

    def outside_of(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochChain
    ) -> list[tuple[RemoteWalLogSegmentMetadata, int]]:
        """Runs that hold offsets which this log does not have, each with the first such offset.

        After a failover the new leader publishes these as dead. Runs known as dead from there on are left
        out; so are runs of epochs newer than the chain, as then it is the chain that is stale.
        """
        with self._lock:
            found = []
            for epoch, index in sorted(self._index.get(topic_id_partition, {}).items()):
                end = leader_epochs.end_of(epoch)
                if end is None:
                    continue
                key = (topic_id_partition, epoch)
                for run in index.reaching(end):
                    dead_from = max(end, run.first_offset)
                    if dead_from < min(run.last_offset + 1, self._end_of_life(run, key)):
                        found.append((self._view(run, key), dead_from))
            return found

    def topic_id_partitions(self) -> list[TopicIdPartition]:
        """The partitions that have finished segments."""
        with self._lock:
            return list(self._index)

    # Lookups by segment

    def state_of(self, combined_segment_id: CombinedSegmentId) -> RemoteLogSegmentState | None:
        """None when nothing is known of it."""
        with self._lock:
            writer = self._writer_of.get(combined_segment_id[:2])
            if writer is None:
                return None
            if combined_segment_id.sequence in writer.deleted:
                return DELETED
            segment = writer.segments.get(combined_segment_id.sequence)
            return segment.state if segment else None

    def segment(self, combined_segment_id: CombinedSegmentId) -> RemoteWalCombinedLogSegmentMetadata | None:
        """None when nothing is known of it, or it is deleted."""
        with self._lock:
            writer = self._writer_of.get(combined_segment_id[:2])
            known = writer.segments.get(combined_segment_id.sequence) if writer else None
        return _metadata(combined_segment_id, known) if known else None

    def segments(
        self, state: RemoteLogSegmentState | None = None, broker_id: int | None = None
    ) -> Iterator[RemoteWalCombinedLogSegmentMetadata]:
        """The segments that are not deleted, by writer and sequence; each as it is when it is reached."""
        with self._lock:
            writers = sorted(
                (w for w in self._writers if broker_id in (None, w.broker_id)),
                key=lambda writer: (writer.broker_id, writer.incarnation),
            )
        for writer in writers:
            with self._lock:
                sequences = sorted(writer.segments)
            for sequence in sequences:
                with self._lock:
                    known = writer.segments.get(sequence)
                    if known is None or state not in (None, known.state):
                        continue
                    found = _metadata(CombinedSegmentId(writer.broker_id, writer.incarnation, sequence), known)
                yield found

    def living_entries(self, combined_segment_id: CombinedSegmentId) -> tuple[RemoteLogSegmentMetadataEntry, ...]:
        """The segment's entries that are not dead as a whole; none when it is unknown or deleted."""
        with self._lock:
            known = self.segment(combined_segment_id)
            dead = self._dead_from.get(combined_segment_id, {})
        if known is None:
            return ()
        return tuple(
            entry
            for entry in known.entries
            if entry.first_offset < dead.get((entry.topic_id_partition, entry.leader_epoch), entry.last_offset + 1)
        )

    # The whole

    def totals(self) -> Mapping[RemoteLogSegmentState, StateTotals]:
        """For each state; the deleted ones as a mere number."""
        with self._lock:
            totals = {
                state: StateTotals(self._segments_in[state], self._bytes_in[state]) for state in RemoteLogSegmentState
            }
            totals[DELETED] = StateTotals(sum(len(writer.deleted) for writer in self._writers))
            return totals

    @property
    def progress(self) -> dict[int, int]:
        """Partition of the metadata topic to the offset that is to be read next."""
        with self._lock:
            return dict(self._progress)

    @property
    def counters(self) -> dict[str, int]:
        """How often each kind of record came: `step_<Step>`, `after_deletion`, `dead_entries`,
        `unknown_<reason>` …
        """
        with self._lock:
            return dict(self._counters)

    # Taking records in

    def _apply(self, record: MetadataRecord) -> None:
        if isinstance(record, UnknownRecord):
            self._counters[f"unknown_{record.reason}"] += 1
        elif isinstance(record, RemoteWalLogSegmentMetadataUpdate):
            self._apply_dead_entries(record)
        elif isinstance(record, PublishedSegment):
            self._apply_segment(record.metadata, record.entry_block)
        else:
            self._apply_segment(record, encode_entries(record.entries))

    def _apply_segment(self, record: RemoteWalCombinedLogSegmentMetadata, entry_block: bytes) -> None:
        segment_id = record.combined_segment_id
        writer = self._writer(segment_id)
        if segment_id.sequence in writer.deleted:
            self._counters["after_deletion"] += 1
            return
        known = writer.segments.get(segment_id.sequence)
        what = step(known.state if known else None, record.state)
        self._counters[f"step_{what.value}"] += 1
        if record.state is DELETED:
            if known:
                self._leave(segment_id, known)
                del writer.segments[segment_id.sequence]
            writer.deleted.add(segment_id.sequence)
            self._dead_from.pop(segment_id, None)
            return
        arriving = _Segment(record, entry_block)
        if known is None:
            writer.segments[segment_id.sequence] = arriving
            self._enter(segment_id, arriving, record.entries)
        else:
            self._merge(known, arriving, record, what)

    def _merge(
        self, known: _Segment, arriving: _Segment, record: RemoteWalCombinedLogSegmentMetadata, what: Step
    ) -> None:
        """Join `arriving`, which is `record`, into `known`; both are of one segment."""
        segment_id = record.combined_segment_id
        state = furthest(known.state, arriving.state)
        entry_block = max(known.entry_block, arriving.entry_block, key=_longer)
        size_bytes = max(known.size_bytes, arriving.size_bytes)
        if what is Step.REPEATED:
            event_timestamp_ms = min(known.event_timestamp_ms, arriving.event_timestamp_ms)
        else:
            event_timestamp_ms = (arriving if state is arriving.state else known).event_timestamp_ms
        if (state, size_bytes, entry_block) != (known.state, known.size_bytes, known.entry_block):
            self._leave(segment_id, known)
            known.state, known.size_bytes, known.entry_block = state, size_bytes, entry_block
            fresh = entry_block is arriving.entry_block
            self._enter(segment_id, known, record.entries if fresh else decode_entries(entry_block))
        known.event_timestamp_ms = event_timestamp_ms
        known.custom_metadata = max(known.custom_metadata, arriving.custom_metadata, key=_longer)

    def _apply_dead_entries(self, record: RemoteWalLogSegmentMetadataUpdate) -> None:
        segment_id = record.combined_segment_id
        if segment_id.sequence in self._writer(segment_id).deleted:
            self._counters["after_deletion"] += 1
            return
        for entry in record.entries:
            if entry.leader_epoch >= record.leader_epoch:
                # Only a newer leader can know. This one was fenced, or is confused.
                self._counters["dead_entries_refused"] += 1
                continue
            self._counters["dead_entries"] += 1
            dead = self._dead_from.setdefault(segment_id, {})
            key = (entry.topic_id_partition, entry.leader_epoch)
            dead[key] = min(dead.get(key, entry.first_offset), entry.first_offset)

    def _writer(self, segment_id: CombinedSegmentId) -> _Writer:
        writer = self._writer_of.get(segment_id[:2])
        if writer is None:
            writer = _Writer(segment_id.broker_id, segment_id.incarnation, len(self._writers))
            self._writers.append(writer)
            self._writer_of[segment_id[:2]] = writer
        return writer

    def _enter(
        self,
        segment_id: CombinedSegmentId,
        segment: _Segment,
        entries: Iterable[RemoteLogSegmentMetadataEntry],
    ) -> None:
        """Count the segment in its state, and index it when it is finished."""
        self._segments_in[segment.state] += 1
        self._bytes_in[segment.state] += max(segment.size_bytes, 0)
        if segment.state is FINISHED:
            writer = self._writer(segment_id).index
            for entry in entries:
                epochs = self._index.get(entry.topic_id_partition)
                if epochs is None:
                    epochs = self._index[entry.topic_id_partition] = {}
                index = epochs.get(entry.leader_epoch)
                if index is None:
                    index = epochs[entry.leader_epoch] = EpochIndex()
                index.add(Run(entry.first_offset, entry.last_offset, writer, segment_id.sequence))

    def _leave(self, segment_id: CombinedSegmentId, segment: _Segment) -> None:
        """The inverse of `_enter`."""
        self._segments_in[segment.state] -= 1
        self._bytes_in[segment.state] -= max(segment.size_bytes, 0)
        if segment.state is FINISHED:
            writer = self._writer(segment_id).index
            for entry in decode_entries(segment.entry_block):
                epochs = self._index[entry.topic_id_partition]
                index = epochs[entry.leader_epoch]
                index.remove(Run(entry.first_offset, entry.last_offset, writer, segment_id.sequence))
                if not len(index):
                    del epochs[entry.leader_epoch]
                    if not epochs:
                        del self._index[entry.topic_id_partition]

    # Runs

    def _id_of(self, run: Run) -> CombinedSegmentId:
        writer = self._writers[run.writer]
        return CombinedSegmentId(writer.broker_id, writer.incarnation, run.sequence)

    def _end_of_life(self, run: Run, key: _PartitionAndEpoch) -> int:
        """The offset from which on the run is dead; above its last offset while it lives whole."""
        if not self._dead_from:
            return run.last_offset + 1
        return self._dead_from.get(self._id_of(run), {}).get(key, run.last_offset + 1)

    def _highest(self, key: _PartitionAndEpoch, index: EpochIndex, end: int | None) -> int:
        """The highest living offset below `end` in any run; UNKNOWN_OFFSET when there is none."""
        highest = UNKNOWN_OFFSET
        for run, reach in index.descending(end):
            if (reach if end is None else min(reach, end - 1)) <= highest:
                break
            last = min(run.last_offset, self._end_of_life(run, key) - 1)
            if end is not None:
                last = min(last, end - 1)
            if last >= run.first_offset:
                highest = max(highest, last)
        return highest

    def _view(self, run: Run, key: _PartitionAndEpoch) -> RemoteWalLogSegmentMetadata:
        segment = self._writers[run.writer].segments[run.sequence]
        entry = next(
            entry
            for entry in decode_entries(segment.entry_block)
            if (entry.topic_id_partition, entry.leader_epoch) == key
            and (entry.first_offset, entry.last_offset) == run[:2]
        )
        return RemoteWalLogSegmentMetadata(self._id_of(run), entry, segment.state, segment.custom_metadata)


def _longer(raw: bytes) -> tuple[int, bytes]:
    """An order in which any two different values differ, so that the larger of both does not depend on who
    came first.
    """
    return len(raw), raw


def _metadata(segment_id: CombinedSegmentId, segment: _Segment) -> RemoteWalCombinedLogSegmentMetadata:
    return RemoteWalCombinedLogSegmentMetadata(
        combined_segment_id=segment_id,
        entries=decode_entries(segment.entry_block),
        state=segment.state,
        event_timestamp_ms=segment.event_timestamp_ms,
        size_bytes=segment.size_bytes,
        custom_metadata=segment.custom_metadata,
    )
