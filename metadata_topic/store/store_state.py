"""What a metadata store knows, and how records change it. `metadata_topic.store.store` has the theory.

Not thread-safe: the store calls it under its lock.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, DeclaredGaps, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.offset_ranges import NO_END
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
from metadata_topic.store import released_offsets
from metadata_topic.store.dead_tails import DeadTails, PartitionAndEpoch
from metadata_topic.store.declared_ends import DeclaredEnd, DeclaredEnds
from metadata_topic.store.fencing import BEFORE_THE_TOPIC, Registrations, Source
from metadata_topic.store.held_records import HeldRecords
from metadata_topic.store.released_offsets import ReleasedOffsets, ReleasedUpTo
from metadata_topic.store.run_index import RunIndex
from metadata_topic.store.segment_table import Segment, SegmentTable
from metadata_topic.store.sequence_set import SequenceSet
from metadata_topic.store.store_image import JSON_CONFIG, DeadTail, Segments, StoreImage, WriterImage
from plugin.format import entry_columns
from plugin.format.adoption_note import split_note
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId

_KEY_FIELDS: Final = {"writers": 2, "registrations": 0, "dead": 1, "released": 2, "log_starts": 2, "gaps": 1, "ends": 1}
"""By kind of fact, how many of the first fields of an image's row make the key."""
_FACTS_JSON: Final = TypeAdapter(tuple[StoreImage], config=JSON_CONFIG)
_PENDING_MAX: Final = 500


class AdoptedSources:
    """Knows for each object of a gateway which segments, not deleted, name it (`plugin.adopted_records`)."""

    def __init__(self) -> None:
        self._segments: dict[RouterObjectId, set[CombinedSegmentId]] = {}

    def add(self, segment_id: CombinedSegmentId, custom_metadata: bytes) -> None:
        """Record the gateways' objects that a segment's custom metadata names."""
        for source in _named(custom_metadata):
            self._segments.setdefault(source, set()).add(segment_id)

    def remove(self, segment_id: CombinedSegmentId, custom_metadata: bytes) -> None:
        """Forget the objects that a segment names: it is deleted, or has other custom metadata now."""
        for source in _named(custom_metadata):
            segments = self._segments.get(source, set())
            segments.discard(segment_id)
            if not segments:
                self._segments.pop(source, None)

    def find_adopters(self, source: RouterObjectId) -> frozenset[CombinedSegmentId]:
        """Return the segments that name this object of a gateway."""
        return frozenset(self._segments.get(source, ()))


def _named(custom_metadata: bytes) -> tuple[RouterObjectId, ...]:
    note = split_note(custom_metadata)[1] if custom_metadata else None
    return note.sources if note is not None else ()


class Writer:
    """The sequences of one incarnation's objects that are deleted or refused."""

    __slots__ = ("deleted", "fenced")

    def __init__(self) -> None:
        self.deleted = SequenceSet()
        self.fenced = SequenceSet()
        """Objects of which a COPY record was refused when nothing was known of them."""


class StoreState:
    """The content of a metadata store, and how records change it."""

    def __init__(self, path: Path | None = None, cache_bytes: int = 0, *, is_read_only: bool = False) -> None:
        """Load the file's content. Raises sqlite3.Error, DamagedRowError, and what `json` and `int` raise."""
        self.table = SegmentTable(path, cache_bytes, is_read_only=is_read_only)
        self.counters: Counter[str] = Counter()
        self.unpublished_gaps = DeclaredGaps()
        """Gaps that this process declared, whether or not the topic has told of them. They are in no image: if a
        declaration was lost with its process, the next process must not know it, so that it declares the gap again."""
        self._forget_all()
        self.other_facts = self._load() if path is not None else {}
        """Facts that other parts keep in the file, by kind and key, as they were when it was opened."""

    def _forget_all(self) -> None:
        self.index = RunIndex(self.table.connection, self.table.states)
        self.registrations = Registrations()
        self.dead_tails = DeadTails()
        self.progress: dict[int, int] = {}
        self._released = ReleasedOffsets()
        self._released_entries = 0
        """Entries in the blocks that the table keeps until `take_in_released`."""
        self.log_starts = ReleasedOffsets()
        """The offsets below which logs have no records, whoever stored them."""
        self.gaps = DeclaredGaps()
        self.held = HeldRecords()
        self._ends = DeclaredEnds()
        self.adopted = AdoptedSources()
        self._writers: dict[tuple[int, int], Writer] = {}
        self._touched: dict[str, set[Any]] = {kind: set() for kind in _KEY_FIELDS}
        """Keys of what changed since the last flush; for the file."""

    def clear(self) -> None:
        """Remove all content, also from the file."""
        self.table.clear()
        self._forget_all()

    # The file

    def flush(self, facts: Iterable[tuple[str, str, str | None]]) -> None:
        """Write all changes, and these facts of other parts of the agent, in one transaction."""
        self.table.unchecked_bytes += self.index.advance(self.table.next_number)
        index = json.dumps([self.table.next_number, *self.index.facts])
        progress = json.dumps(sorted(self.progress.items()))
        self.table.flush([*facts, *self._changed_facts(), ("index", "", index), ("progress", "", progress)])

    def flush_if_many(self) -> None:
        """Write changed segments early if many wait; a reader counts them only after the next `flush`."""
        if self.table.pending >= _PENDING_MAX:
            self.table.unchecked_bytes += self.index.advance(self.table.next_number)
            self.table.flush()
            self.table.checkpoint()

    def _changed_facts(self) -> Iterator[tuple[str, str, str | None]]:
        """Yield the facts that changed beside segments: of each kind, the rows of an image by key."""
        touched, self._touched = self._touched, {kind: set() for kind in _KEY_FIELDS}
        wanted = {TopicIdPartition(*key) for key in touched["gaps"]}
        gaps = [gap for partition in wanted for gap in self.gaps.of(partition)]
        gaps += [gap for gap in self.held if gap.topic_id_partition in wanted]
        dead = [
            DeadTail(segment_id, *key, first_offset)
            for segment_id in touched["dead"]
            for key, first_offset in self.dead_tails.of(segment_id).items()
        ]
        changed = StoreImage(
            progress={},
            writers=[self._writer_image(key) for key in touched["writers"]],
            registrations=self.registrations.placed() if touched["registrations"] else (),
            dead=dead,
            released=self._released.take_changed(),
            log_starts=self.log_starts.take_changed(),
            gaps=gaps,
            ends=[end for partition in touched["ends"] for end in self._ends.of(partition)],
        )
        [fields] = _FACTS_JSON.dump_python((changed,), mode="json")
        for kind, count in _KEY_FIELDS.items():
            keys = touched[kind] if kind in ("gaps", "dead") else ()
            rows: dict[str, list[Any]] = {json.dumps([to_jsonable_python(key, bytes_mode="hex")]): [] for key in keys}
            for row in fields[kind]:
                rows.setdefault(json.dumps(row[:count]) if count else "", []).append(row)
            for key, held in rows.items():
                yield kind, key, json.dumps(held) if held else None
        if touched["dead"]:
            yield "untold", "", json.dumps(to_jsonable_python(self.dead_tails.list_unpublished(), bytes_mode="hex"))

    def _load(self) -> dict[str, dict[str, str]]:
        """Load what the file holds, if it is whole, else clear it. Returns other parts' facts, by kind and key."""
        found: dict[str, dict[str, str]] = {}
        for kind, key, value in self.table.facts():
            found.setdefault(kind, {})[key] = value
        if "progress" not in found or "index" not in found:
            self.clear()
            return {}
        next_number, *index = json.loads(found.pop("index")[""])
        for segment in self.table.load(int(next_number)):
            if segment.custom_metadata:
                self.adopted.add(segment.segment_id, segment.custom_metadata)
        self.index.load(index, self.table.list_unindexed)
        progress = found.pop("progress")[""]
        fields = {kind: [row for value in found.pop(kind, {}).values() for row in json.loads(value)]
                  for kind in (*_KEY_FIELDS, "untold")}  # fmt: skip
        untold = fields.pop("untold")
        facts = {**fields, "progress": dict(json.loads(progress))}
        [image] = _FACTS_JSON.validate_json(json.dumps([facts]))
        [earlier] = _FACTS_JSON.validate_json(json.dumps([{"progress": {}, "dead": untold}]))
        self._take_small(image)
        self.progress = dict(image.progress)
        for tail in earlier.dead:
            self.dead_tails.mark_unpublished(tail)
        self._touched = {kind: set() for kind in _KEY_FIELDS}
        self._released.take_changed(), self.log_starts.take_changed()
        self.take_in_released()
        return found

    # Records

    def apply(self, record: MetadataRecord, source: Source | None) -> None:
        """Apply a record; `source` is its partition and offset."""
        if isinstance(record, PublishedSegment):
            self._apply_segment(record, source)
        elif isinstance(record, UnknownRecord):
            self.counters[f"unknown_{record.reason}"] += 1
        elif isinstance(record, RemoteWalLogSegmentMetadataUpdate):
            self._apply_dead_entries(record)
        elif isinstance(record, RemoteWalNodeRegistration):
            taken = self.registrations.add(record, source)
            self._touched["registrations"].add("")
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

    def image(self, segments: Segments) -> StoreImage:
        """Return the content as an image for `restore`; the caller gives the segments."""
        return StoreImage(
            progress=dict(self.progress),
            writers=[self._writer_image(key) for key in sorted(self._writers)],
            registrations=self.registrations.placed(),
            dead=self.dead_tails.all(),
            segments=segments,
            released=self.take_in_released().all(),
            log_starts=self.log_starts.all(),
            gaps=[*self.gaps, *self.held],
            ends=self._ends.all(),
        )

    def restore(self, image: StoreImage) -> None:
        """Replace all content by the image. The file has it all after the next flush."""
        self.clear()
        self._take_small(image)
        for record in image.segments:
            self._insert(record)
            self.flush_if_many()
        self.progress = dict(image.progress)

    def _take_small(self, image: StoreImage) -> None:
        """Add everything in the image but segments and progress."""
        self._released.know(image.released)
        self._add_gaps(image.gaps)
        self.log_starts.know(image.log_starts)
        self.add_ends(image.ends)
        for placed in image.registrations:
            self.registrations.add(*placed)
        self._touched["registrations"].add("")
        for remembered in image.writers:
            writer = self.writer(remembered.broker_id, remembered.incarnation)
            writer.deleted.add_intervals(remembered.deleted)
            writer.fenced.add_intervals(remembered.fenced)
            self._touched["writers"].add((remembered.broker_id, remembered.incarnation))
        for tail in image.dead:
            self.dead_tails.know(tail)
            self._touched["dead"].add(tail.combined_segment_id)

    def join(self, image: StoreImage) -> None:
        """Add the content of `image`. Its registrations are of another topic or another time, so they fence nothing."""
        for placed in image.registrations:
            self.registrations.add(placed.registration, BEFORE_THE_TOPIC)
        self._touched["registrations"].add("")
        for remembered in image.writers:
            writer_id = remembered.broker_id, remembered.incarnation
            writer = self.writer(*writer_id)
            self._touched["writers"].add(writer_id)
            writer.deleted.join(remembered.deleted)
            for sequence in self.table.sequences(*writer_id):
                gone = self.table.find(CombinedSegmentId(*writer_id, sequence)) if sequence in writer.deleted else None
                if gone is not None:
                    self._remove(gone)
        for tail in image.dead:  # first, so that a deletion below does not release them
            self.dead_tails.know(tail)
            self._touched["dead"].add(tail.combined_segment_id)
        for record in image.segments:
            self._apply_segment(record._replace(is_rebuilt=True), None)
            self.flush_if_many()
        self._released.know(image.released)
        self.log_starts.know(image.log_starts)
        self.add_ends(image.ends)
        self._add_gaps(image.gaps)

    def begin_anew(self) -> None:
        """Start over with a topic that is another one, or lost its end: only progress and places are forgotten.

        All dead tails count as unpublished until they are read from the topic again.
        """
        self.progress.clear()
        self.registrations.begin_anew()
        self.dead_tails.begin_anew()
        self._touched["dead"].update(tail.combined_segment_id for tail in self.dead_tails.list_unpublished())
        self._touched["registrations"].add("")

    def writer(self, broker_id: int, incarnation: int) -> Writer:
        """Return the sequences of an incarnation's deleted and refused objects, which the caller may add to."""
        writer = self._writers.get((broker_id, incarnation))
        if writer is None:
            writer = self._writers[broker_id, incarnation] = Writer()
        return writer

    def find_writer(self, segment_id: CombinedSegmentId) -> Writer | None:
        """Return the deleted and refused sequences of this segment's writer; None if it has none."""
        return self._writers.get(segment_id[:2])

    def writers(self) -> Iterable[Writer]:
        """Return the deleted and refused sequences of all writers."""
        return self._writers.values()

    def _writer_image(self, key: tuple[int, int]) -> WriterImage:
        writer = self._writers[key]
        return WriterImage(*key, writer.deleted.intervals, writer.fenced.intervals)

    def dead_from(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> dict[int, int]:
        """Return the first dead offset of that partition and epoch in each segment with one, by its block number."""
        found = {}
        for segment_id, first_offset in self.dead_tails.of_partition((topic_id_partition, leader_epoch)):
            segment = self.table.find(segment_id)
            if segment is not None and segment.number:
                found[segment.number] = first_offset
        return found

    def _apply_segment(self, record: PublishedSegment, source: Source | None) -> None:
        broker_id, incarnation, sequence = segment_id = record.combined_segment_id
        writer = self.writer(broker_id, incarnation)
        if sequence in writer.deleted:
            self.counters["after_deletion"] += 1
            return
        known = self.table.find(segment_id)
        is_fenceable = record.state in (STARTED, FINISHED) and not record.is_rebuilt
        if is_fenceable and self.registrations.fences(broker_id, incarnation, source):
            self._refuse(record, known is None)
            return
        what = step(known.state if known else None, record.state)
        self.counters[f"step_{what.value}"] += 1
        if record.state is DELETING and known is not None and known.state is FINISHED:
            self._release(known)  # DELETED without DELETING: the object was found missing, its records are still wanted
        if record.state is DELETED:
            if known is not None:
                self._remove(known)
            writer.deleted.add(sequence)
            self._touched["writers"].add((broker_id, incarnation))
            if segment_id in self.dead_tails:
                self.dead_tails.forget(segment_id)
                self._touched["dead"].add(segment_id)
        elif known is None:
            self._insert(record)
        else:
            self._merge(known, record, what)

    def _refuse(self, record: PublishedSegment, is_unknown: bool) -> None:
        """Note a record of a fenced writer. Its log did have those records: in doubt more is kept."""
        self.counters["fenced"] += 1
        if record.state is FINISHED:
            self._note_gone(record.entry_block, {})
        if is_unknown:
            broker_id, incarnation, sequence = record.combined_segment_id
            self.writer(broker_id, incarnation).fenced.add(sequence)
            self._touched["writers"].add((broker_id, incarnation))

    def _insert(self, record: PublishedSegment) -> None:
        segment = Segment(
            record.combined_segment_id,
            record.state,
            record.event_timestamp_ms,
            record.size_bytes,
            record.custom_metadata,
        )
        self.table.add(segment)
        if record.custom_metadata:
            self.adopted.add(segment.segment_id, record.custom_metadata)
        self._give_block(segment, record.entry_block)

    def _give_block(self, segment: Segment, entry_block: bytes) -> None:
        if segment.number:
            self.index.forget(segment.number, segment.entries)
        if entry_block:
            self.table.give_block(segment, entry_block)
            self.index.add(segment.number, entry_block)

    def _remove(self, segment: Segment) -> None:
        if segment.state is FINISHED:
            self._note_gone(self.table.entry_block(segment), self.dead_tails.of(segment.segment_id))
        if segment.number:
            self.index.forget(segment.number, segment.entries)
        self.adopted.remove(segment.segment_id, segment.custom_metadata)
        self.table.leave(segment)
        self.table.remove(segment)

    def _merge(self, known: Segment, arriving: PublishedSegment, what: Step) -> None:
        """Join the record `arriving` into what is `known`; both are of one segment."""
        state = furthest(known.state, arriving.state)
        self.table.leave(known)
        if what is Step.REPEATED:
            known.event_timestamp_ms = min(known.event_timestamp_ms, arriving.event_timestamp_ms)
        elif state is arriving.state:
            known.event_timestamp_ms = arriving.event_timestamp_ms
        known.state, known.size_bytes = state, max(known.size_bytes, arriving.size_bytes)
        if _longer(arriving.custom_metadata) > _longer(known.custom_metadata):
            self.adopted.remove(known.segment_id, known.custom_metadata)
            self.adopted.add(known.segment_id, arriving.custom_metadata)
            known.custom_metadata = arriving.custom_metadata
        self.table.enter(known)
        if arriving.entry_block:
            was_known = self.table.entry_block(known)
            if _longer(arriving.entry_block) > _longer(was_known):
                self._give_block(known, arriving.entry_block)

    def _apply_dead_entries(self, record: RemoteWalLogSegmentMetadataUpdate) -> None:
        segment_id = record.combined_segment_id
        self.note_ends(record)
        writer = self.find_writer(segment_id)
        if writer is not None and segment_id.sequence in writer.deleted:
            self.counters["after_deletion"] += 1
            return
        for entry in record.entries:
            if entry.leader_epoch >= record.leader_epoch:
                # Only a newer leader can know. This one was fenced, or is confused.
                self.counters["dead_entries_refused"] += 1
                continue
            self.counters["dead_entries"] += 1
            self._touched["dead"].add(segment_id)
            self.dead_tails.note_published(
                DeadTail(segment_id, entry.topic_id_partition, entry.leader_epoch, entry.first_offset)
            )

    def note_ends(self, record: RemoteWalLogSegmentMetadataUpdate) -> None:
        """Keep the ends of older epochs that the record's leader declares, whether or not the segment is known."""
        named = self.table.find(record.combined_segment_id)
        entries = entry_columns.decode(self.table.entry_block(named)) if named is not None and named.number else ()
        for entry in record.entries:
            if entry.leader_epoch < record.leader_epoch:
                key, end = (entry.topic_id_partition, entry.leader_epoch), entry.first_offset
                is_exact = any(
                    (one.topic_id_partition, one.leader_epoch) == key and one.first_offset < end <= one.last_offset + 1
                    for one in entries
                )
                self.add_ends([DeclaredEnd(key[0], record.leader_epoch, key[1], end, is_exact)])

    def declared_end(self, topic_id_partition: TopicIdPartition, leader_epoch: int) -> int:
        """Return from which offset on leaders declared this epoch's records dead; NO_END if none did.

        A local loss ends epochs too, and so does a person who gives up what combined segments hold of it. These ends
        do not count: they name what combined segments hold, and say nothing of what the archive holds behind it.
        """
        by_loss = {loss.leader_epoch for loss in self.held.losses.get(topic_id_partition, ())}
        ends = [one for one in self._ends.of(topic_id_partition) if one.declarer_epoch not in by_loss]
        return min((one.end_offset for one in ends if one.leader_epoch == leader_epoch), default=NO_END)

    def add_ends(self, ends: Sequence[DeclaredEnd]) -> None:
        """Add declared ends of epochs."""
        self._ends.add(ends)
        self._touched["ends"].update(end.topic_id_partition for end in ends)

    def _apply_gaps(self, record: RemoteWalGapDeclaration) -> None:
        up_to = {GapReason.RELEASED: self._released, GapReason.LOG_START: self.log_starts}
        self._add_gaps(gap for gap in record.gaps if gap.reason not in up_to)
        for gap in record.gaps:
            if gap.reason in up_to:
                up_to[gap.reason].know([ReleasedUpTo(gap.topic_id_partition, gap.leader_epoch, gap.to_offset)])

    def _add_gaps(self, declared: Iterable[DeclaredGap]) -> None:
        for gap in declared:
            is_loss = gap.reason in (GapReason.LOST_LOCALLY, GapReason.GIVEN_UP)
            (self.held if is_loss else self.gaps).add([gap])
            self._touched["gaps"].add(gap.topic_id_partition)

    def take_in_released(self) -> ReleasedOffsets:
        """Return the released offsets, after decoding the released blocks that wait.

        They wait, because decoding many together takes a tenth of the time.
        """
        for entry_block in self.table.take_released():
            self._released.add(entry_block)
        self._released_entries = 0
        return self._released

    def _release(self, segment: Segment) -> None:
        """Record that nobody wants the segment's records any more; dead ones are left out, as they say nothing."""
        if not segment.number:
            return
        dead = self.dead_tails.of(segment.segment_id)
        if not dead and not segment.waiting_block:
            self.table.release(segment)
            self._released_entries += segment.entries
            if self._released_entries >= released_offsets.WAITING_ROWS:
                self.take_in_released()
            return
        entry_block = self.table.entry_block(segment)
        if not dead:
            self._released.add(entry_block)
            return
        for entry in entry_columns.decode(entry_block):
            key = (entry.topic_id_partition, entry.leader_epoch)
            end = min(entry.last_offset + 1, dead.get(key, entry.last_offset + 1))
            if end > entry.first_offset:
                self._released.know([ReleasedUpTo(*key, end)])

    def _note_gone(self, entry_block: bytes, dead: Mapping[PartitionAndEpoch, int]) -> None:
        """Keep how far an object's living records reached, without a word on what is wanted of them."""
        for entry in entry_columns.decode(entry_block) if entry_block else ():
            key = (entry.topic_id_partition, entry.leader_epoch)
            end = min(entry.last_offset + 1, dead.get(key, entry.last_offset + 1))
            if end > entry.first_offset:
                self._released.know([ReleasedUpTo(*key, 0, end)])


def _longer(raw: bytes) -> tuple[int, bytes]:
    """Return a sort key that differs for any two values, so that the larger one does not depend on who came first."""
    return len(raw), raw
