"""What is archived, rebuilt from the metadata topic: the archive's side of `metadata_topic.store.store`.

Theory. An archive object has the states of a combined segment, by the same table (`metadata_topic.records.states`):
prepared is COPY_SEGMENT_STARTED, committed COPY_SEGMENT_FINISHED, then the two of deletion. The store is a join of all
records applied, so order and repetition do not matter: the furthest state counts. Committed records of one object that
differ (which no agent writes) do not depend on their order either. Objects that are deleted for ever are remembered as
numbers in intervals, so that no late record brings one back. Hence every object is in exactly one state.

There is one exception on purpose: a record of a fenced agent does not count. Fencing compares it with the registrations
before it in the same partition of the topic, whose order is total, so all readers agree.

Only committed objects are in the `ArchiveIndex`, which lookups by partition use.

A Committed record releases its sources: `covers` says whether all of an entry is archived. The code that deletes
sources asks this store, so it deletes them only after the record is durable and read.

Any thread may call any method; one lock guards all. `apply` belongs to the one thread that reads the topic.
"""

import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate, groupby

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.archive_records import (
    ArchiveObjectCommitted,
    ArchiveObjectDeleted,
    ArchiveObjectPrepared,
    ArchiveRecord,
)
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED, Step, furthest, step
from metadata_topic.store.held_records import lost_from
from metadata_topic.store.sequence_set import SequenceSet
from metadata_topic.store.store import RemoteWalMetadataStore, StateTotals
from plugin.format.archive_object import run_holding
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry, RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class ArchivedRun:
    """An object of the archive, and the run in it, that hold a record."""

    object_id: ArchiveObjectId
    run: RemoteLogSegmentMetadataEntry


class _Object:
    __slots__ = ("committed", "event_timestamp_ms", "expires_ms", "refreshed_ms", "state")

    def __init__(self, record: ArchiveRecord) -> None:
        self.state = record.state
        self.event_timestamp_ms = record.event_timestamp_ms
        """When it came into its state: the earliest known time."""
        self.expires_ms: int | None = None
        self.refreshed_ms = record.event_timestamp_ms
        """When a record of it was last published."""
        self.committed: ArchiveObjectCommitted | None = None

    def merge(self, record: ArchiveRecord, what: Step) -> None:
        """Join a record of this object into what is known; `what` is its meaning for the state."""
        state = furthest(self.state, record.state)
        if what in (Step.FIRST, Step.REPEATED):
            self.event_timestamp_ms = min(self.event_timestamp_ms, record.event_timestamp_ms)
        elif state is not self.state:
            self.event_timestamp_ms = record.event_timestamp_ms
        self.state = state
        self.refreshed_ms = max(self.refreshed_ms, record.event_timestamp_ms)
        if isinstance(record, ArchiveObjectPrepared):
            expires_ms = record.event_timestamp_ms + record.ttl_ms
            self.expires_ms = expires_ms if self.expires_ms is None else max(self.expires_ms, expires_ms)
        elif isinstance(record, ArchiveObjectCommitted):
            self.committed = record if self.committed is None else max(self.committed, record, key=_order)


_Span = tuple[int, int, ArchiveObjectId]
"""First and last offset, and the object that holds them."""


class _EpochSpans:
    """The archived offsets of one partition and leader epoch: few spans, because archive objects are large.

    Changes are cheap; the first lookup after a change is not.
    """

    __slots__ = ("_reach", "_spans")

    def __init__(self) -> None:
        self._spans: list[_Span] = []
        self._reach: list[int] | None = None

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[_Span]:
        return iter(self._spans)

    def add(self, first: int, last: int, object_id: ArchiveObjectId) -> None:
        """Add an object's span, which must not be there yet."""
        insort(self._spans, (first, last, object_id))
        self._reach = None

    def remove(self, first: int, last: int, object_id: ArchiveObjectId) -> None:
        """Remove a span that was added."""
        del self._spans[bisect_left(self._spans, (first, last, object_id))]
        self._reach = None

    def covering(self, offset: int) -> list[_Span]:
        """Return the spans that hold the offset, the best first: reaching furthest, then longest, then by id."""
        if self._reach is None:
            self._reach = list(accumulate((last for _, last, _ in self._spans), max))
        found = []
        at = bisect_right(self._spans, offset, key=lambda span: span[0]) - 1
        while at >= 0 and self._reach[at] >= offset:
            if self._spans[at][1] >= offset:
                found.append(self._spans[at])
            at -= 1
        return sorted(found, key=lambda span: (-span[1], span[0], span[2]))

    def end_from(self, offset: int) -> int:
        """Return the first offset from `offset` on that is not archived."""
        while best := self.covering(offset):
            offset = best[0][1] + 1
        return offset

    @property
    def end_offset(self) -> int:
        return max(last for _, last, _ in self._spans) + 1

    def first_from(self, offset: int) -> int | None:
        """Return the first archived offset at or above `offset`; None when there is none."""
        if self.covering(offset):
            return offset
        at = bisect_left(self._spans, offset, key=lambda span: span[0])
        return self._spans[at][0] if at < len(self._spans) else None


def spans_of(committed: ArchiveObjectCommitted) -> list[tuple[int, int, int]]:
    """Return an object's spans (leader epoch, first offset, last offset), one for each epoch, ascending."""
    found = []
    for epoch, group in groupby(committed.runs, key=lambda run: run.leader_epoch):
        runs = list(group)
        found.append((epoch, runs[0].first_offset, runs[-1].last_offset))
    return found


class ArchiveIndex:
    """Finds the objects that hold partitions' archived offsets. Not thread-safe; lookups change it too.

    Theory. It holds the committed objects' spans by partition and leader epoch: an object's runs of one epoch follow
    one another. Spans may overlap (a range archived twice); a lookup takes the one that reaches furthest. A lookup uses
    the leader epoch chain of the log in question. So it does not find records that were archived and then lost in an
    unclean election, and their offsets are archived again.
    """

    def __init__(self) -> None:
        self._spans: dict[TopicIdPartition, dict[int, _EpochSpans]] = {}

    def add(self, committed: ArchiveObjectCommitted) -> None:
        """Add a committed object, which must not be there yet."""
        epochs = self._spans.setdefault(committed.object_id.topic_id_partition, {})
        for epoch, first, last in spans_of(committed):
            epochs.setdefault(epoch, _EpochSpans()).add(first, last, committed.object_id)

    def remove(self, committed: ArchiveObjectCommitted) -> None:
        """Remove a committed object that was added."""
        partition = committed.object_id.topic_id_partition
        epochs = self._spans[partition]
        for epoch, first, last in spans_of(committed):
            epochs[epoch].remove(first, last, committed.object_id)
            if not len(epochs[epoch]):
                del epochs[epoch]
        if not epochs:
            del self._spans[partition]

    def clear(self) -> None:
        """Forget all objects."""
        self._spans.clear()

    def partitions(self) -> list[TopicIdPartition]:
        """Return the partitions that have committed objects."""
        return list(self._spans)

    def covering(
        self, topic_id_partition: TopicIdPartition, offset: int, leader_epochs: LeaderEpochs
    ) -> list[ArchiveObjectId]:
        """Return the objects that hold `offset` of this log, the best first: reaching furthest."""
        spans = self._spans_at(topic_id_partition, offset, leader_epochs)
        return [object_id for _, _, object_id in spans.covering(offset)] if spans is not None else []

    def archived_range(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochs, from_offset: int
    ) -> tuple[int, int] | None:
        """Return this log's first unbroken archived range [first, last], from `from_offset` on; None without any."""
        first = self._first_archived(topic_id_partition, leader_epochs, from_offset)
        if first is None:
            return None
        end = first
        while (spans := self._spans_at(topic_id_partition, end, leader_epochs)) is not None:
            reached = spans.end_from(end)
            epoch_end = leader_epochs.end_of(leader_epochs.epoch_at(end) or 0)
            reached = reached if epoch_end is None else min(reached, epoch_end)
            if reached == end:
                break
            end = reached
        return first, end - 1

    def outside_of(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochs
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (leader epoch, first offset, end) of archived offsets that this log lacks."""
        for epoch, spans in self._spans.get(topic_id_partition, {}).items():
            end = leader_epochs.end_of(epoch)
            if end is not None and (first := spans.first_from(end)) is not None:
                yield epoch, first, spans.end_offset

    def objects_of(self, topic_id_partition: TopicIdPartition) -> set[ArchiveObjectId]:
        """Return a partition's committed objects."""
        return {object_id for spans in self._spans.get(topic_id_partition, {}).values() for _, _, object_id in spans}

    def covers(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, first_offset: int, last_offset: int
    ) -> bool:
        """Whether all records of this epoch at these offsets are archived."""
        spans = self._spans.get(topic_id_partition, {}).get(leader_epoch)
        return spans is not None and spans.end_from(first_offset) > last_offset

    def _spans_at(
        self, topic_id_partition: TopicIdPartition, offset: int, leader_epochs: LeaderEpochs
    ) -> _EpochSpans | None:
        epoch = leader_epochs.epoch_at(offset)
        return None if epoch is None else self._spans.get(topic_id_partition, {}).get(epoch)

    def _first_archived(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochs, from_offset: int
    ) -> int | None:
        """Return the first archived offset of this log at or above `from_offset`; None when there is none."""
        found = []
        for epoch, spans in self._spans.get(topic_id_partition, {}).items():
            start, end = leader_epochs.start_offset(epoch), leader_epochs.end_of(epoch)
            if start is not None:
                first = spans.first_from(max(start, from_offset))
                if first is not None and (end is None or first < end):
                    found.append(first)
        return min(found, default=None)


class ArchiveStore:
    """Answers which records are archived, and in which objects. Thread-safe; the module's docstring has the theory."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._objects: dict[ArchiveObjectId, _Object] = {}
        self._deleted: dict[tuple[int, int], SequenceSet] = {}
        self._index = ArchiveIndex()
        self._changed: set[ArchiveObjectId] = set()
        self._registered: dict[int, dict[int | None, int]] = {}
        """By broker id, then by the partition where it was read, the incarnation; None: before all that is read."""
        self._counters: Counter[str] = Counter()

    def apply(self, record: ArchiveRecord, partition: int | None = None) -> None:
        """Apply a record that was read from this partition of the topic."""
        with self._lock:
            writer = record.object_id.writer_id
            registered = self._registered.get(writer.broker_id, {})
            if record.incarnation < max(registered.get(partition, 0), registered.get(None, 0)):
                self._counters["fenced"] += 1
            elif writer.sequence in self._deleted.get(writer[:2], ()):
                self._counters["after_deletion"] += 1
            else:
                self._apply(record)

    def registered(self, broker_id: int, incarnation: int, partition: int | None = None) -> None:
        """Record that an agent registered as owner of this broker's objects: records of older incarnations no longer
        count.

        That holds for later records in the registration's partition, because two partitions have no common order.
        """
        with self._lock:
            registered = self._registered.setdefault(broker_id, {})
            registered[partition] = max(incarnation, registered.get(partition, 0))

    def restore(self, registered: Mapping[int, int], records: Iterable[ArchiveRecord]) -> None:
        """Replace all content by the records of a `snapshot`; `registered` maps broker ids to incarnations."""
        with self._lock:
            for known in (self._objects, self._deleted, self._index):
                known.clear()
            self._registered = {broker_id: {None: incarnation} for broker_id, incarnation in registered.items()}
            for record in records:
                self.apply(record)

    # Lookups by partition

    def runs_covering(
        self, topic_id_partition: TopicIdPartition, offset: int, leader_epochs: LeaderEpochs
    ) -> list[ArchivedRun]:
        """Return the committed runs that hold `offset` of this log, the best first: reaching furthest.

        A run may reach into offsets that the chain gives to a later epoch; the caller cuts it off at `end_of`.
        """
        with self._lock:
            found = []
            for object_id in self._index.covering(topic_id_partition, offset, leader_epochs):
                run = run_holding(self._committed(object_id).runs, offset)
                assert run is not None  # noqa: S101 - the span was made of the object's runs
                found.append(ArchivedRun(object_id, run))
            return found

    def archived_range(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochs, from_offset: int
    ) -> tuple[int, int] | None:
        """Return this log's first unbroken archived range [first, last], from `from_offset` on; None without any."""
        with self._lock:
            return self._index.archived_range(topic_id_partition, leader_epochs, from_offset)

    def covers(
        self, topic_id_partition: TopicIdPartition, leader_epoch: int, first_offset: int, last_offset: int
    ) -> bool:
        """Whether all records of this epoch at these offsets are archived: the entry that holds them is released.

        A record is known by partition, leader epoch and offset, so it does not matter whose copy was archived.
        """
        with self._lock:
            return self._index.covers(topic_id_partition, leader_epoch, first_offset, last_offset)

    def outside_of(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochs
    ) -> list[tuple[int, int, int]]:
        """Return (leader epoch, first offset, end) of archived offsets that this log lacks."""
        with self._lock:
            return list(self._index.outside_of(topic_id_partition, leader_epochs))

    def held_runs(self, topic_id_partition: TopicIdPartition, store: RemoteWalMetadataStore) -> list[ArchivedRun]:
        """Return the committed runs of a partition's local losses that nobody has given up, by `store`.

        Offsets are those that are held, without what leaders declared dead; positions are of the whole run.
        """
        losses = {topic_id_partition: tuple(store.undecided_losses(topic_id_partition))}
        if not any(losses.values()):
            return []
        with self._lock:
            committed = [self._committed(object_id) for object_id in self._index.objects_of(topic_id_partition)]
        end_of = cache(partial(store.declared_end, topic_id_partition))
        found = []
        for object_id, run in ((one.object_id, run) for one in committed for run in one.runs):
            first = lost_from(run, losses)
            last = min(run.last_offset, end_of(run.leader_epoch) - 1)
            if first is not None and first <= last:
                found.append(ArchivedRun(object_id, replace(run, first_offset=first, last_offset=last)))
        return found

    def topic_id_partitions(self) -> list[TopicIdPartition]:
        """Return the partitions that have committed objects."""
        with self._lock:
            return self._index.partitions()

    # Lookups by object

    def state_of(self, object_id: ArchiveObjectId) -> RemoteLogSegmentState | None:
        """Return an object's state; None when nothing is known of it.

        For a known object it takes no lock: the event loop asks, and passes over all objects hold the lock for long.
        """
        known = self._objects.get(object_id)
        if known is not None:
            return known.state
        with self._lock:
            if object_id.writer_id.sequence in self._deleted.get(object_id.writer_id[:2], ()):
                return DELETED
            known = self._objects.get(object_id)
            return known.state if known else None

    def committed(self, object_id: ArchiveObjectId) -> ArchiveObjectCommitted | None:
        """Return an object's record; None unless it is committed."""
        with self._lock:
            known = self._objects.get(object_id)
            return known.committed if known is not None and known.state is FINISHED else None

    def objects(self, state: RemoteLogSegmentState, broker_id: int | None = None) -> list[tuple[ArchiveObjectId, int]]:
        """Return the objects in a state (of one broker), each with the time of that state; by id."""
        with self._lock:
            found = [
                (object_id, known.event_timestamp_ms)
                for object_id, known in self._objects.items()
                if known.state is state and broker_id in (None, object_id.writer_id.broker_id)
            ]
        return sorted(found)

    # What is to be done

    def uncommitted(self, now_ms: int, broker_id: int | None = None) -> list[ArchiveObjectId]:
        """Return the objects that were prepared and not committed before their time to live ended."""
        with self._lock:
            return [
                object_id
                for object_id, _ in self.objects(STARTED, broker_id)
                if (self._objects[object_id].expires_ms or 0) <= now_ms
            ]

    def find_unneeded(
        self,
        log_starts: Mapping[TopicIdPartition, int],
        is_gone: Callable[[TopicId], bool],
        broker_id: int | None = None,
        is_held: Callable[[RemoteLogSegmentMetadataEntry], bool] = lambda _run: False,
    ) -> list[ArchiveObjectId]:
        """Return the committed objects that no log needs: their topic is gone, or the log's start has passed them.

        `is_held` says of a run whether the log lost it before its start could pass it, so that the object may be the
        only copy. Nothing is known of a partition that is not in `log_starts`, so all its objects are needed.
        """
        return [
            object_id
            for object_id, _ in self.objects(FINISHED, broker_id)
            if is_gone(object_id.topic_id_partition.topic_id)
            or (
                object_id.last_offset < log_starts.get(object_id.topic_id_partition, 0)
                and not ((found := self.committed(object_id)) and any(map(is_held, found.runs)))
            )
        ]

    def to_publish_again(self, before_ms: int, broker_id: int | None = None) -> Iterator[ArchiveObjectCommitted]:
        """Yield Committed records last published before `before_ms`: an object may outlive the topic's retention."""
        for object_id, _ in self.objects(FINISHED, broker_id):
            with self._lock:
                known = self._objects.get(object_id)
                record = known.committed if known is not None and known.refreshed_ms < before_ms else None
            if record is not None:
                yield record

    # The whole

    def count_by_state(self) -> Mapping[RemoteLogSegmentState, StateTotals]:
        """Count the objects and bytes in each state; no bytes of deleted ones, others as far as sizes are known."""
        with self._lock:
            segments: Counter[RemoteLogSegmentState] = Counter()
            size: Counter[RemoteLogSegmentState] = Counter()
            for known in self._objects.values():
                segments[known.state] += 1
                size[known.state] += known.committed.size_bytes if known.committed else 0
            totals = {state: StateTotals(segments[state], size[state]) for state in RemoteLogSegmentState}
            totals[DELETED] = StateTotals(sum(map(len, self._deleted.values())))
            return totals

    def snapshot(self) -> list[ArchiveRecord]:
        """Return records from which `restore` makes a store that answers the same, except about deleted objects.

        The memory of those only keeps out records older than the snapshot, which nobody applies after it.
        """
        with self._lock:
            return [record for object_id in self._objects for record in self._records(object_id)]

    def take_changed(self) -> list[tuple[ArchiveObjectId, list[ArchiveRecord]]]:
        """Return each object changed since the last call, with its records as in `snapshot`; no records if it is
        forgotten."""
        with self._lock:
            changed, self._changed = self._changed, set()
            return [(object_id, self._records(object_id)) for object_id in changed]

    def _records(self, object_id: ArchiveObjectId) -> list[ArchiveRecord]:
        known = self._objects.get(object_id)
        if known is None:
            return []
        records: list[ArchiveRecord] = []
        stamp, incarnation = known.event_timestamp_ms, self._incarnation(object_id)
        if known.state is STARTED:
            ttl_ms = max((known.expires_ms or stamp) - stamp, 0)
            records.append(ArchiveObjectPrepared(object_id, incarnation, ttl_ms, stamp))
        if known.committed is not None:
            records.append(
                replace(known.committed, incarnation=incarnation, event_timestamp_ms=stamp)
                if known.state is FINISHED
                else known.committed
            )
        if known.state is DELETING:
            records.append(ArchiveObjectDeleted(object_id, incarnation, DELETING, stamp))
        return records

    @property
    def counters(self) -> dict[str, int]:
        """How often each kind of record came: `step_<Step>`, `fenced`, `after_deletion`, `unknown_<reason>`."""
        with self._lock:
            return dict(self._counters)

    # Taking records in

    def _apply(self, record: ArchiveRecord) -> None:
        object_id = record.object_id
        self._changed.add(object_id)
        known = self._objects.get(object_id)
        what = step(known.state if known else None, record.state)
        self._counters[f"step_{what.value}"] += 1
        was_indexed = known is not None and known.state is FINISHED
        if record.state is DELETED:
            if was_indexed:
                self._index.remove(self._committed(object_id))
            self._objects.pop(object_id, None)
            self._deleted.setdefault(object_id.writer_id[:2], SequenceSet()).add(object_id.writer_id.sequence)
            return
        if known is None:
            known = self._objects[object_id] = _Object(record)
        if was_indexed:
            self._index.remove(self._committed(object_id))
        known.merge(record, what)
        if known.state is FINISHED:
            self._index.add(self._committed(object_id))

    def _committed(self, object_id: ArchiveObjectId) -> ArchiveObjectCommitted:
        record = self._objects[object_id].committed
        assert record is not None  # noqa: S101 - it is in the index
        return record

    def _incarnation(self, object_id: ArchiveObjectId) -> int:
        """Return an incarnation that is not fenced, for a record of a snapshot."""
        writer = object_id.writer_id
        return max(writer.incarnation, *self._registered.get(writer.broker_id, {None: 0}).values())


def _order(record: ArchiveObjectCommitted) -> tuple[int, int, str]:
    """Return a sort key that differs for any two records with different content."""
    return record.event_timestamp_ms, record.incarnation, repr((record.runs, record.size_bytes))
