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
if there is one, is known to be an orphan; DELETE records of it are applied as usual.

A FINISHED segment's entries are indexed per partition and leader epoch (`metadata_topic.store.run_index`);
segments in any other state are not in the index, so a lookup sees finished ones only. Records in objects overlap
(uploaded twice, by two agents, before and after a failover), and a lookup picks by leader epoch. Offsets need not be
contiguous: a compacted log has holes.

What is known lies in SQLite (`metadata_topic.store.segment_table`), for an agent in a file of its state directory. So a
restart continues where the process ended. A file that is torn, of another cluster or of another format is removed when
it is opened, and the store is rebuilt from snapshot and topic. If the file fails later, or another process writes into
it, it is removed as well, and every question raises `StoreLostError` from then on: the parts of the agent that depend
on it end with that and begin again with another store, while relaying goes on (`agent.wiring.storage_system`). If the
disk was full, the next store is in memory, because its file would soon fail as well; the one after it tries a file
again. If the directory takes no file at all, everything is in memory, too.

Any thread may call any method; one lock guards all. `apply` belongs to the one thread that reads the topic.
"""

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from metadata_topic.records.declared_gaps import GapReason
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.record_fields import FOREIGN_KEY
from metadata_topic.records.records import (
    MetadataRecord,
    PublishedSegment,
    RemoteWalLogSegmentMetadataUpdate,
    RemoteWalNodeRegistration,
    RemoteWalTopicRebuilt,
    UnknownRecord,
)
from metadata_topic.records.states import DELETED, FINISHED
from metadata_topic.records.topic_doubt import TopicDoubt
from metadata_topic.store.dead_tails import PartitionAndEpoch
from metadata_topic.store.fencing import PlacedRegistration, Source
from metadata_topic.store.partition_lookups import PartitionLookups
from metadata_topic.store.segment_table import BEFORE_ALL, DamagedRowError, StoreLostError, published_rows
from metadata_topic.store.store_image import Segments, StoreImage
from metadata_topic.store.store_state import StoreState
from metadata_topic.store.topic_continuity import NEVER_REBUILT_MS, RememberedTopic, TopicContinuity
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class SegmentTally:
    """How many segments of one broker are in one state, over all its incarnations."""

    broker_id: int
    state: RemoteLogSegmentState
    segments: int
    bytes: int
    """Bytes of the segments whose size is known."""
    oldest_ms: int
    """The earliest and the latest time of their last record, the writers' wall clocks, milliseconds since 1970."""
    newest_ms: int


def tallies(connection: sqlite3.Connection) -> list[SegmentTally]:
    """Return one tally for each broker and state that occurs, sorted by both."""
    return [
        SegmentTally(broker_id, RemoteLogSegmentState(state), *others)
        for broker_id, state, *others in connection.execute(
            "SELECT broker_id, state, count(*), sum(max(size_bytes, 0)), min(event_timestamp_ms),"
            " max(event_timestamp_ms) FROM segments GROUP BY broker_id, state ORDER BY broker_id, state"
        )
    ]


log = structlog.get_logger(__name__)

FILE_NAME: Final = "metadata.sqlite"
_DISK_REFUSES: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_PORTION: Final = 64
_DAMAGE: Final = (sqlite3.Error, DamagedRowError)
_UNREADABLE: Final = (*_DAMAGE, ValueError, KeyError, TypeError, OverflowError)

OtherFacts = Callable[[], Iterable[tuple[str, str | None]]]
"""Returns what changed in the facts that another part keeps in the file: keys and values; None: the key is gone."""


@dataclass(frozen=True, slots=True)
class StoreFile:
    """The SQLite file in which an agent keeps what it knows of the metadata topic."""

    directory: Path
    cluster_id: str
    cache_bytes: int = 64 * 1024 * 1024
    """How much of the file's pages may be in memory (guessed)."""
    is_read_only: bool = False
    """Whether it is another process's: it is only read, as it is when it is opened."""

    @property
    def path(self) -> Path:
        """The path of the SQLite database."""
        return self.directory / FILE_NAME

    @property
    def refused(self) -> Path:
        """The path of an empty file that exists if the last store was lost because the disk was full."""
        return self.directory / f"{FILE_NAME}-refused"

    def remove(self) -> None:
        """Delete the store's files; errors of the disk are ignored."""
        for suffix in ("", "-wal", "-shm", "-refused"):
            try:
                self.path.with_name(FILE_NAME + suffix).unlink(missing_ok=True)
            except OSError as error:
                log.warning("metadata_store_not_removed", file=FILE_NAME + suffix, error=str(error))


@dataclass(frozen=True, slots=True)
class StateTotals:
    """How many segments are in one state, and the bytes of those whose size is known."""

    segments: int = 0
    bytes: int = 0


class _Streamed:
    """Segments that are read one by one on demand, from what a connection sees."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        [[self._count]] = connection.execute("SELECT count(*) FROM segments")

    def __len__(self) -> int:
        return int(self._count)

    def __iter__(self) -> Iterator[PublishedSegment]:
        return published_rows(self._connection)


class _StoreLock:
    """The store's lock. Taking it brings everything that was applied into the tables, so that lookups see it.

    If the file fails while the lock is held, the holder gets StoreLostError, and so does everybody after that.
    """

    def __init__(self, prepare: Callable[[], None], lose: Callable[[BaseException], None]) -> None:
        self._lock = threading.RLock()
        self._prepare, self._lose = prepare, lose
        self.failure: StoreLostError | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            if self.failure is not None:
                raise self.failure
            self._prepare()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if isinstance(error, _DAMAGE):
                self._lose(error)
                self.failure = StoreLostError(f"the metadata store has failed, and must be rebuilt: {error}")
                raise self.failure from error
        finally:
            self._lock.release()


class RemoteWalMetadataStore(PartitionLookups):
    """Answers which object holds which records, from the metadata topic's records. Thread-safe.

    The module's docstring has the theory.
    """

    def __init__(self, file: StoreFile | None = None) -> None:
        """Open the store with the content of the file; without a file it starts empty, in memory.

        Raises StoreLostError for a file of another process that cannot be read.
        """
        self._file = file
        self.topic = TopicContinuity()
        """Whether the topic that is read is the one that was read before, and whole."""
        self._other_facts: dict[str, OtherFacts] = {}
        self._state = self._opened(file) if file is not None else StoreState()
        self._lock: _StoreLock = _StoreLock(self._write_waiting, self._lose)

    def _opened(self, file: StoreFile) -> StoreState:
        unreadable = 0
        for _ in range(0 if file.refused.exists() else 2):
            try:
                state = StoreState(file.path, file.cache_bytes, is_read_only=file.is_read_only)
                known = state.other_facts.get("cluster", {}).get("", file.cluster_id)
                if known != file.cluster_id:
                    raise DamagedRowError(f"it is of cluster {known!r}, this is {file.cluster_id!r}")
                if (topic := state.other_facts.get("topic")) is not None:
                    self.topic.resume(topic[""])
                if list(self.topic.doubts) == [TopicDoubt.UNREADABLE]:
                    raise DamagedRowError(f"it lacks records: {self.topic.doubts[TopicDoubt.UNREADABLE]}")
            except _UNREADABLE as error:
                if file.is_read_only:
                    raise StoreLostError(f"{file.path} cannot be read: {error}") from error
                consequence = "it is removed, and rebuilt from snapshot and topic"
                log.error("metadata_store_unreadable", file=str(file.path), error=str(error), consequence=consequence)
                self.topic = TopicContinuity()
                file.remove()
                unreadable += 1
            else:
                log.info("metadata_store_opened", file=str(file.path), progress=state.progress)
                state.counters += Counter(files_unreadable=unreadable)
                return state
        if file.is_read_only:
            raise StoreLostError(f"{file.path} is not in use")
        log.error("metadata_store_in_memory", directory=str(file.directory), consequence="it takes more memory")
        file.remove()
        self._file = None
        return StoreState()

    def _lose(self, error: BaseException) -> None:
        log.error(
            "metadata_store_lost", error=str(error), consequence="inline, until snapshot and topic are read again"
        )
        if self._file is None:
            return
        self._state.table.connection.close()
        if self._file.is_read_only:
            return
        self._file.remove()
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DISK_REFUSES:
            try:
                self._file.refused.touch()
            except OSError as refused:
                log.warning("metadata_store_loss_not_noted", error=str(refused))

    def _write_waiting(self) -> None:
        self._state.table.check_unshared()
        if self._state.table.pending:
            self._flush()

    def _flush(self) -> None:
        facts = [(kind, key, value) for kind, changed in self._other_facts.items() for key, value in changed()]
        if self._file is not None:
            facts += [("topic", "", self.topic.to_resume(self._state.progress)), ("cluster", "", self._file.cluster_id)]
        self._state.flush(facts)

    def close(self) -> None:
        """Close the store and wait for the disk: no method may be called afterwards, and another store may open the
        file."""
        with suppress(StoreLostError), self._lock:
            self._lock.failure = StoreLostError("the metadata store is closed")
            self._state.table.connection.close()

    @property
    def failure(self) -> StoreLostError | None:
        """The error that every method raises since the store's file failed; None while it works."""
        return self._lock.failure

    def keep_also(self, kind: str, changed: OtherFacts) -> Mapping[str, str]:
        """Also keep another part's keys and values in the file, in the same transactions: `changed` returns what
        changed since its last call. Returns those already in the file."""
        with self._lock:
            self._other_facts[kind] = changed
            return self._state.other_facts.pop(kind, {})

    def apply(self, record: MetadataRecord, source: Source | None = None) -> None:
        """Apply a record. `source` is its (partition, offset) in the metadata topic: progress and content are one
        unit.
        """
        self._apply([(record, source)])

    def apply_all(self, records: Iterable[tuple[MetadataRecord | None, Source]]) -> None:
        """Apply a batch of (record, source) as one transaction; None stands for a record that another store applies."""
        self._apply(records)

    def _apply(self, records: Iterable[tuple[MetadataRecord | None, Source | None]]) -> None:
        with self._lock:
            for record, source in records:
                if record is not None:
                    self._state.apply(record, source)
                if isinstance(record, RemoteWalGapDeclaration):
                    self._note_losses(record)
                if source is not None:
                    self._read_beyond(source)
                if isinstance(record, RemoteWalTopicRebuilt):
                    self.topic.rebuilt(record)
                elif isinstance(record, UnknownRecord) and record.reason != FOREIGN_KEY:
                    self.topic.doubted(TopicDoubt.UNREADABLE, f"{record.detail}, at partition and offset {source}")
            if self._file is not None:
                self._flush()
        if self._file is not None:
            with self._lost_if_damaged():
                self._state.table.checkpoint()

    def _note_losses(self, record: RemoteWalGapDeclaration) -> None:
        """Keep where older epochs end by what a log lost locally: records that are held but not the log's."""
        for loss in record.gaps:
            for run in self.held_runs(loss.topic_id_partition) if loss.reason is GapReason.LOST_LOCALLY else ():
                if run.entry.leader_epoch < loss.leader_epoch:
                    about = (run.combined_segment_id, (run.entry,), record.broker_id, loss.leader_epoch)
                    self._state.note_ends(RemoteWalLogSegmentMetadataUpdate(*about, record.event_timestamp_ms))

    def declares(self, record: RemoteWalGapDeclaration) -> None:
        """Record gaps that this process has just declared. Snapshots leave them out until they are read back from
        the topic."""
        with self._lock:
            losses = [gap for gap in record.gaps if gap.reason is GapReason.LOST_LOCALLY]
            self._state.unpublished_gaps.add(gap for gap in record.gaps if gap not in losses)
            self._state.held.add(losses, is_published=False)

    def image(self) -> StoreImage:
        """Return all that is known, and how far the topic was read, for a snapshot."""
        with self.streamed_image() as image:
            return replace(image, segments=list(image.segments))

    @contextmanager
    def streamed_image(self) -> Iterator[StoreImage]:
        """Yield all that is known, with segments that are read one by one on demand while the context lasts.

        If there is a file, other threads continue meanwhile.
        """
        with self._lost_if_damaged(), ExitStack() as stack:
            with self._lock:
                connection = stack.enter_context(self._state.table.reading())
                segments: Segments = _Streamed(connection)
                if self._file is None:
                    segments = list(segments)
                image = self._state.image(segments)
            topic = self.topic
            yield replace(image, topic_id=topic.topic_id, rebuilt_ms=topic.rebuilt_ms, epochs=topic.epochs_read)

    @contextmanager
    def _lost_if_damaged(self) -> Iterator[None]:
        """Raise StoreLostError, and give the file up, if what is read without the lock is damaged."""
        try:
            yield
        except _DAMAGE:
            with self._lock:
                raise

    def restore(self, image: StoreImage) -> None:
        """Replace all content by `image`; counters stay.

        Errors that its segments raise are passed on; then nothing is known.
        """
        with self._lock:
            try:
                self._state.restore(image)
                remembered = RememberedTopic(image.topic_id, image.progress, image.rebuilt_ms, image.epochs)
                self.topic.remember(remembered, reading_goes_on=True)
                self._flush()
            except (MetadataTopicError, OSError):
                self._state.clear()
                raise

    def begin_anew(self) -> None:
        """Start over at the beginning of a topic that was recreated or lost its end: all content is kept."""
        with self._lock:
            self._state.begin_anew()
            self._flush()

    def join(self, image: StoreImage) -> None:
        """Add the content of `image` to this store: several agents' snapshots together have more than one."""
        with self._lock:
            self._state.join(image)
            self._flush()

    def _read_beyond(self, source: Source) -> None:
        partition, offset = source
        if offset and partition not in self._state.progress and self.topic.rebuilt_ms == NEVER_REBUILT_MS:
            self.topic.doubted(TopicDoubt.GAP, f"partition {partition} was read from offset {offset} on")
        self._state.progress[partition] = max(self._state.progress.get(partition, 0), offset + 1)

    # Brokers

    def registration_of(self, broker_id: int) -> RemoteWalNodeRegistration | None:
        """Return the broker's newest registration; None if its agent never registered."""
        with self._lock:
            return self._state.registrations.newest(broker_id)

    def refused_registrations_of(self, broker_id: int) -> int:
        """Return how many of a broker's registrations were refused, because one of a higher incarnation came before."""
        with self._lock:
            return self._state.registrations.refused[broker_id]

    def newest_registrations(self) -> list[RemoteWalNodeRegistration]:
        """Return the newest registration of every broker, by broker."""
        with self._lock:
            return self._state.registrations.newest_of_all()

    def registrations(self) -> list[PlacedRegistration]:
        """Return all registrations that count, with their places in the topic."""
        with self._lock:
            return self._state.registrations.placed()

    def caretaker_of(self, broker_id: int) -> int:
        """Return the broker whose agent owns this broker's objects: its own agent, unless another took over."""
        registration = self.registration_of(broker_id)
        return broker_id if registration is None else registration.caretaker_broker_id

    def knows_incarnation(self, broker_id: int, incarnation: int) -> bool:
        """Whether this incarnation's registration is known; all that it published stands behind it in the topic."""
        with self._lock:
            return self._state.registrations.knows(broker_id, incarnation)

    # Segments

    def state_of(self, combined_segment_id: CombinedSegmentId) -> RemoteLogSegmentState | None:
        """Return a segment's state; None when nothing is known of it."""
        with self._lock:
            writer = self._state.find_writer(combined_segment_id)
            if writer is not None and combined_segment_id.sequence in writer.deleted:
                return DELETED
            segment = self._state.table.find(combined_segment_id)
            return segment.state if segment else None

    def published_segment(self, combined_segment_id: CombinedSegmentId) -> PublishedSegment | None:
        """Return a segment with its entries left as bytes; None when nothing is known of it, or it is deleted."""
        with self._lock:
            known = self._state.table.find(combined_segment_id)
            return self._state.table.published(known) if known else None

    def published_segments(
        self, state: RemoteLogSegmentState | None = None, broker_id: int | None = None
    ) -> Iterator[PublishedSegment]:
        """Yield the segments that are not deleted, by writer and sequence; each as it is when it is reached, with its
        entries left as bytes."""
        reached = BEFORE_ALL if broker_id is None else CombinedSegmentId(broker_id, -1, -1)
        while True:
            with self._lock:
                table = self._state.table
                portion, seen = list(published_rows(table.connection, reached, state, _PORTION)), table.changes
            for known in portion:
                if broker_id not in (None, known.combined_segment_id.broker_id):
                    return
                current: PublishedSegment | None = known
                if table.changes != seen:
                    current = self.published_segment(known.combined_segment_id)
                if current is not None and state in (None, current.state):
                    yield current
            if not portion:
                return
            reached = portion[-1].combined_segment_id

    def dead_tails(self, combined_segment_id: CombinedSegmentId) -> Mapping[PartitionAndEpoch, int]:
        """Return the offsets from which on the segment's entries are dead, by partition and leader epoch."""
        with self._lock:
            return dict(self._state.dead_tails.of(combined_segment_id))

    def is_fenced(self, combined_segment_id: CombinedSegmentId) -> bool:
        """Whether the segment was refused because its writer was fenced; its object, if any, is an orphan.

        False once it is deleted, and for segments that were known before their writer was fenced.
        """
        with self._lock:
            writer = self._state.find_writer(combined_segment_id)
            sequence = combined_segment_id.sequence
            return writer is not None and sequence in writer.fenced and sequence not in writer.deleted

    def newest_upload_ms(self, broker_id: int) -> int | None:
        """Return when one of the broker's newest known uploads ended, in ms by its own clock; None if none is known."""
        with self._lock:
            return self._state.table.newest_time_ms(broker_id, FINISHED)

    def find_adopters(self, source: RouterObjectId) -> frozenset[CombinedSegmentId]:
        """Return the segments, not deleted, that have some of their batches in this object of a gateway."""
        with self._lock:
            return self._state.adopted.find_adopters(source)

    # The whole

    def count_by_state(self) -> Mapping[RemoteLogSegmentState, StateTotals]:
        """Count the segments and their bytes in each state; the deleted ones without bytes."""
        with self._lock:
            table = self._state.table
            totals = {
                state: StateTotals(table.segments_in[state], table.bytes_in[state]) for state in RemoteLogSegmentState
            }
            totals[DELETED] = StateTotals(sum(len(writer.deleted) for writer in self._state.writers()))
            return totals

    def tally(self) -> list[SegmentTally]:
        """Tally the segments that are not deleted, by broker and state.

        If there is a file, other threads continue meanwhile.
        """
        with self._lost_if_damaged(), ExitStack() as stack:
            with self._lock:
                connection = stack.enter_context(self._state.table.reading())
            return tallies(connection)

    @property
    def file_bytes(self) -> int:
        """The size of the store's content on disk, or in memory without a file."""
        with self._lock:
            return self._state.table.file_bytes

    @property
    def progress(self) -> dict[int, int]:
        """Partition of the metadata topic to the offset that is to be read next."""
        with self._lock:
            return dict(self._state.progress)

    @property
    def counters(self) -> dict[str, int]:
        """How often each kind of record came: `step_<Step>`, `after_deletion`, `dead_entries`, `fenced`,
        `registrations`, `unknown_<reason>` …; and `files_unreadable`, how many files could not be used.
        """
        with self._lock:
            return dict(self._state.counters)
