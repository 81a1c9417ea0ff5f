"""What a metadata store knows, and how records change it. `metadata_topic.store.store` has the theory.

Not thread-safe: the store calls it under its lock.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, DeclaredGaps, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import (
    MetadataRecord,
    PublishedSegment,
    RemoteWalLogSegmentMetadataUpdate,
    RemoteWalNodeRegistration,
    RemoteWalRebuiltSegment,
    RemoteWalTopicRebuilt,
    UnknownRecord,
)
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED, Step, furthest, step
from metadata_topic.store.adopted_sources import AdoptedSources
from metadata_topic.store.dead_tails import DeadTails
from metadata_topic.store.fencing import BEFORE_THE_TOPIC, Registrations, Source
from metadata_topic.store.held_records import HeldRecords
from metadata_topic.store.released_offsets import ReleasedOffsets, ReleasedUpTo
from metadata_topic.store.segment_facts import writer_facts
from metadata_topic.store.segment_runs import SegmentRuns
from metadata_topic.store.segments.entry_blocks import MemoryBound
from metadata_topic.store.segments.segment_table import Segment, SegmentTable
from metadata_topic.store.store_image import DeadTail, StoreImage, WriterImage
from plugin.format import entry_columns


class StoreState:
    """Everything, in one piece."""

    def __init__(self, bound: MemoryBound | None = None) -> None:
        self.table = SegmentTable(bound)
        self.runs = SegmentRuns(self.table, bound.directory if bound else None)
        self.registrations = Registrations()
        self.dead_tails = DeadTails()
        self.progress: dict[int, int] = {}
        self.counters: Counter[str] = Counter()
        self.released = ReleasedOffsets()
        self.log_starts = ReleasedOffsets()
        """Below which logs have no records, whoever stored them."""
        self.gaps = DeclaredGaps()
        self.held = HeldRecords()
        self.adopted = AdoptedSources()
        """Follows from the segments; in no image."""
        self.untold_gaps = DeclaredGaps()
        """What this process declares, whether or not the topic has told of it. In no image: of a declaration that was
        lost with the process the next one is to know nothing, so that it declares anew."""

    def apply(self, record: MetadataRecord, source: Source | None) -> None:
        """Take a record in that stood at `source`."""
        if isinstance(record, PublishedSegment):
            self._apply_segment(record, source)
        elif isinstance(record, UnknownRecord):
            self.counters[f"unknown_{record.reason}"] += 1
        elif isinstance(record, RemoteWalLogSegmentMetadataUpdate):
            self._apply_dead_entries(record)
        elif isinstance(record, RemoteWalNodeRegistration):
            taken = self.registrations.add(record, source)
            self.counters["registrations" if taken else "registrations_fenced"] += 1
        elif isinstance(record, RemoteWalTopicRebuilt):
            self.counters["rebuilds"] += 1
        elif isinstance(record, RemoteWalRebuiltSegment):
            self._apply_segment(record.segment._replace(is_rebuilt=True), source)
        elif isinstance(record, RemoteWalGapDeclaration):
            self._apply_gaps(record)
            self.counters["gaps_declared"] += len(record.gaps)
        else:
            self._apply_segment(PublishedSegment.of(record), source)

    def image(self, segments: Sequence[PublishedSegment]) -> StoreImage:
        """All that is known, to be restored by `of`; `segments` is filled in by the caller."""
        return StoreImage(
            progress=dict(self.progress),
            writers=[
                WriterImage(w.broker_id, w.incarnation, w.deleted.intervals, w.fenced.intervals)
                for w in self.table.writers()
            ],
            registrations=self.registrations.placed(),
            dead=self.dead_tails.all(),
            segments=segments,
            released=self.released.all(),
            log_starts=self.log_starts.all(),
            gaps=[*self.gaps, *self.held],
        )

    @classmethod
    def of(cls, image: StoreImage, bound: MemoryBound | None = None) -> "StoreState":
        """The state of which `image` was taken."""
        state = cls(bound)
        state.released = ReleasedOffsets(image.released)
        state._add_gaps(image.gaps)
        state.log_starts = ReleasedOffsets(image.log_starts)
        for placed in image.registrations:
            state.registrations.add(*placed)
        for remembered in image.writers:
            writer = state.table.writer(remembered.broker_id, remembered.incarnation)
            writer.deleted.add_intervals(remembered.deleted)
            writer.fenced.add_intervals(remembered.fenced)
        for tail in image.dead:
            state.dead_tails.know(tail)
        for record in image.segments:
            state._insert(record)
        state.progress = dict(image.progress)
        return state

    def join(self, image: StoreImage) -> None:
        """Know what `image` tells as well. Its places are of another topic, or another time: they fence nothing."""
        for placed in image.registrations:
            self.registrations.add(placed.registration, BEFORE_THE_TOPIC)
        for remembered in image.writers:
            writer = self.table.writer(remembered.broker_id, remembered.incarnation)
            writer.deleted.join(remembered.deleted)
            known = [sequence for facts in writer_facts(self.table, writer) for sequence in facts["sequence"].tolist()]
            for sequence in known:
                gone = self.table.find(writer.id_of(sequence)) if sequence in writer.deleted else None
                if gone is not None:
                    self._remove(gone)
        for tail in image.dead:  # before a deletion is taken for a release
            self.dead_tails.know(tail)
        for record in image.segments:
            self._apply_segment(record._replace(is_rebuilt=True), None)
        self.released.know(image.released)
        self.log_starts.know(image.log_starts)
        self._add_gaps(image.gaps)

    def begin_anew(self) -> None:
        """The topic is another one, or is read again from its beginning, as its end was lost."""
        self.progress.clear()
        self.registrations.begin_anew()
        self.dead_tails.begin_anew()

    def dead_slots(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> dict[int, int]:
        """By slot of the index, the offset from which on a segment's records of that partition and epoch are dead."""
        found = {}
        for segment_id, first_offset in self.dead_tails.of_partition((topic_id_partition, leader_epoch)):
            segment = self.table.find(segment_id)
            if segment is not None and segment.state is FINISHED:
                found[segment.slot] = first_offset
        return found

    def _apply_segment(self, record: PublishedSegment, source: Source | None) -> None:
        broker_id, incarnation, sequence = segment_id = record.combined_segment_id
        writer = self.table.writer(broker_id, incarnation)
        if sequence in writer.deleted:
            self.counters["after_deletion"] += 1
            return
        known = self.table.find(segment_id)
        is_fenceable = record.state in (STARTED, FINISHED) and not record.is_rebuilt
        if is_fenceable and self.registrations.fences(broker_id, incarnation, source):
            self.counters["fenced"] += 1
            if known is None:
                writer.fenced.add(sequence)
            return
        what = step(known.state if known else None, record.state)
        self.counters[f"step_{what.value}"] += 1
        if record.state in (DELETING, DELETED) and known is not None and known.state is FINISHED:
            self._release(known)
        if record.state is DELETED:
            if known is not None:
                self._remove(known)
            writer.deleted.add(sequence)
            self.dead_tails.forget(segment_id)
        elif known is None:
            self._insert(record)
        else:
            self._merge(known, record, what)

    def _insert(self, record: PublishedSegment) -> None:
        segment = self.table.add(record)
        self.adopted.add(record.combined_segment_id, record.custom_metadata)
        self._enter(segment, record.entry_block)

    def _remove(self, segment: Segment) -> None:
        self.runs.leave(segment, self.table.entry_block(segment))
        self.adopted.remove(segment.segment_id, segment.custom_metadata)
        self.table.remove(segment)

    def _enter(self, segment: Segment, entry_block: bytes) -> None:
        self.runs.enter(segment, entry_block)
        self.table.put(segment)

    def _merge(self, known: Segment, arriving: PublishedSegment, what: Step) -> None:
        """Join `arriving` into `known`; both are of one segment."""
        state = furthest(known.state, arriving.state)
        was_known = self.table.entry_block(known)
        entry_block = max(was_known, arriving.entry_block, key=_longer)
        size_bytes = max(known.size_bytes, arriving.size_bytes)
        if what is Step.REPEATED:
            event_timestamp_ms = min(known.event_timestamp_ms, arriving.event_timestamp_ms)
        else:
            event_timestamp_ms = (arriving if state is arriving.state else known).event_timestamp_ms
        is_other = (state, size_bytes, entry_block) != (known.state, known.size_bytes, was_known)
        known.event_timestamp_ms = event_timestamp_ms
        longer = max(known.custom_metadata, arriving.custom_metadata, key=_longer)
        if longer != known.custom_metadata:
            self.adopted.remove(known.segment_id, known.custom_metadata)
            self.adopted.add(known.segment_id, longer)
            self.table.describe(known, longer)
        if is_other:
            self.runs.leave(known, was_known)
            known.state, known.size_bytes = state, size_bytes
            self._enter(known, entry_block)
        else:
            self.table.put(known)
        if entry_block != was_known:
            self.table.replace_block(known, entry_block)

    def _apply_dead_entries(self, record: RemoteWalLogSegmentMetadataUpdate) -> None:
        segment_id = record.combined_segment_id
        writer = self.table.find_writer(segment_id)
        if writer is not None and segment_id.sequence in writer.deleted:
            self.counters["after_deletion"] += 1
            return
        for entry in record.entries:
            if entry.leader_epoch >= record.leader_epoch:
                # Only a newer leader can know. This one was fenced, or is confused.
                self.counters["dead_entries_refused"] += 1
                continue
            self.counters["dead_entries"] += 1
            self.dead_tails.told(DeadTail(segment_id, entry.topic_id_partition, entry.leader_epoch, entry.first_offset))

    def _apply_gaps(self, record: RemoteWalGapDeclaration) -> None:
        up_to = {GapReason.RELEASED: self.released, GapReason.LOG_START: self.log_starts}
        self._add_gaps(gap for gap in record.gaps if gap.reason not in up_to)
        for gap in record.gaps:
            if gap.reason in up_to:
                up_to[gap.reason].know([ReleasedUpTo(gap.topic_id_partition, gap.leader_epoch, gap.to_offset)])

    def _add_gaps(self, declared: Iterable[DeclaredGap]) -> None:
        for gap in declared:
            (self.held if gap.reason is GapReason.LOST_LOCALLY else self.gaps).add([gap])

    def _release(self, segment: Segment) -> None:
        """Remember how far the records went that nobody wants any more; of dead ones that says nothing."""
        dead, entry_block = self.dead_tails.of(segment.segment_id), self.table.entry_block(segment)
        if not dead:
            self.released.add(entry_block)
            return
        for entry in entry_columns.decode(entry_block) if entry_block else ():
            key = (entry.topic_id_partition, entry.leader_epoch)
            end = min(entry.last_offset + 1, dead.get(key, entry.last_offset + 1))
            if end > entry.first_offset:
                self.released.know([ReleasedUpTo(*key, end)])


def _longer(raw: bytes) -> tuple[int, bytes]:
    """An order in which any two different values differ, so that the larger of both does not depend on who
    came first.
    """
    return len(raw), raw
