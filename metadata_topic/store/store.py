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

A FINISHED segment's entries are indexed per partition and leader epoch (`metadata_topic.store.runs.run_index`);
segments in any other state are not in the index, so a lookup sees finished ones only. Records in objects overlap
(uploaded twice, by two agents, before and after a failover), and a lookup picks by leader epoch. Offsets need not be
contiguous: a compacted log has holes.

Memory: a segment is a row of forty bytes, with its entries as the block of columns that they came in; an index row is
20 bytes. With a `MemoryBound` blocks beyond it, rows that were not used for long, and the index's large chunks lie on
disk: what stays in memory is bounded, but for some ten bytes for each object. `perf metadata` measures it.

Any thread may call any method; one lock guards all. `apply` belongs to the one thread that reads the topic.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from metadata_topic.records.declared_gaps import GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import (
    MetadataRecord,
    PublishedSegment,
    RemoteWalNodeRegistration,
    RemoteWalTopicRebuilt,
)
from metadata_topic.records.states import DELETED
from metadata_topic.store.fencing import Source
from metadata_topic.store.partition_lookups import PartitionLookups
from metadata_topic.store.segment_facts import all_rows, page_facts
from metadata_topic.store.segment_lookups import SegmentLookups
from metadata_topic.store.segment_tally import SegmentTally, tally
from metadata_topic.store.segments.entry_blocks import MemoryBound
from metadata_topic.store.segments.segment_table import SegmentTable
from metadata_topic.store.store_image import StoreImage
from metadata_topic.store.store_state import StoreState
from metadata_topic.store.topic_continuity import NEVER_REBUILT_MS, RememberedTopic, TopicContinuity, TopicDoubt
from plugin.segment_metadata import RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class StateTotals:
    """How many segments are in one state, and the bytes of those whose size is known."""

    segments: int = 0
    bytes: int = 0


class _Streamed(Sequence[PublishedSegment]):
    """Segments as they are when they are asked for, as long as the table is held."""

    def __init__(self, lock: threading.RLock, table: SegmentTable, rows: NDArray[np.uint32]) -> None:
        self._lock, self._table, self._rows = lock, table, rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> PublishedSegment: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[PublishedSegment]: ...

    def __getitem__(self, at: int | slice) -> PublishedSegment | Sequence[PublishedSegment]:
        if isinstance(at, slice):
            return _Streamed(self._lock, self._table, self._rows[at])
        with self._lock:
            return self._table.published(self._table.at(int(self._rows[at])))


def _of_topic(image: StoreImage, topic: TopicContinuity) -> StoreImage:
    return replace(image, topic_id=topic.topic_id, rebuilt_ms=topic.rebuilt_ms)


class RemoteWalMetadataStore(PartitionLookups, SegmentLookups):
    """Answers what is where. See the module's theory."""

    def __init__(self, bound: MemoryBound | None = None) -> None:
        """Without a bound all that is known is in memory."""
        self._bound = bound
        self._lock = threading.RLock()
        self._state = StoreState(bound)
        self.topic = TopicContinuity()
        """Whether the topic that is read is the one that was read before, and whole."""

    def apply(self, record: MetadataRecord, source: Source | None = None) -> None:
        """Take a record in. `source` is its (partition, offset) in the metadata topic: progress and content
        are one unit.
        """
        with self._lock:
            self._state.apply(record, source)
            if source is not None:
                self._read_beyond(source)
            if isinstance(record, RemoteWalTopicRebuilt):
                self.topic.rebuilt(record)

    def declares(self, record: RemoteWalGapDeclaration) -> None:
        """Know at once what this process declares; snapshots do not until the topic tells of it."""
        with self._lock:
            losses = [gap for gap in record.gaps if gap.reason is GapReason.LOST_LOCALLY]
            self._state.untold_gaps.add(gap for gap in record.gaps if gap not in losses)
            self._state.held.add(losses, is_told=False)

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
        with self.streamed_image() as image:
            return replace(image, segments=list(image.segments))

    @contextmanager
    def streamed_image(self) -> Iterator[StoreImage]:
        """The same, with segments that are read one by one as they are asked for, as long as this lasts."""
        with self._lock:
            state, table = self._state, self._state.table
            streamed = _Streamed(self._lock, table, all_rows(table))
            image = _of_topic(state.image(streamed), self.topic)
            table.hold()
        try:
            yield image
        finally:
            with self._lock:
                table.let_go()

    def restore(self, image: StoreImage) -> None:
        """Know what `image` holds, and nothing else. What was counted stays counted."""
        restored = StoreState.of(image, self._bound)
        with self._lock:
            restored.counters.update(self._state.counters)
            self._state = restored
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
        if offset and partition not in self._state.progress and self.topic.rebuilt_ms == NEVER_REBUILT_MS:
            self.topic.doubted(TopicDoubt.GAP, f"partition {partition} was read from offset {offset} on")
        self._state.progress[partition] = max(self._state.progress.get(partition, 0), offset + 1)

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

    def knows_incarnation(self, broker_id: int, incarnation: int) -> bool:
        """Whether its registration is known: all that it published stands behind it in the topic."""
        with self._lock:
            return self._state.registrations.knows(broker_id, incarnation)

    # The whole

    def totals(self) -> Mapping[RemoteLogSegmentState, StateTotals]:
        """For each state; the deleted ones as a mere number."""
        with self._lock:
            totals = {
                state: StateTotals(self._state.runs.segments_in[state], self._state.runs.bytes_in[state])
                for state in RemoteLogSegmentState
            }
            totals[DELETED] = StateTotals(sum(len(writer.deleted) for writer in self._state.table.writers()))
            return totals

    def tallies(self) -> list[SegmentTally]:
        """The segments that are not deleted, by broker and state. No entry is decoded; other threads wait only
        while some hundred segments are looked at.
        """
        with self._lock:
            table = self._state.table
            pages = [(writer, page) for writer in table.writers() for page in sorted(writer.pages)]
        rows: dict[tuple[int, RemoteLogSegmentState], SegmentTally] = {}
        for writer, page in pages:
            with self._lock:
                found = tally(writer.broker_id, page_facts(table, writer, page), table.values.value)
            for row in found:
                key = (row.broker_id, row.state)
                rows[key] = row if key not in rows else rows[key].joined(row)
        return [rows[key] for key in sorted(rows)]

    @property
    def entry_bytes(self) -> dict[str, int]:
        """Of entries of segments that are not deleted, in `memory` and on `disk`, without the index."""
        with self._lock:
            blocks = self._state.table.blocks
            return {"memory": blocks.memory_bytes, "disk": blocks.disk_bytes}

    @property
    def progress(self) -> dict[int, int]:
        """Partition of the metadata topic to the offset that is to be read next."""
        with self._lock:
            return dict(self._state.progress)

    @property
    def counters(self) -> dict[str, int]:
        """How often each kind of record came: `step_<Step>`, `after_deletion`, `dead_entries`, `fenced`,
        `registrations`, `unknown_<reason>` ….
        """
        with self._lock:
            return dict(self._state.counters)
