"""Rebuilds the metadata topic from the objects and the agents' snapshots.

Object storage is listed, and each object that the topic does not have, or without its end, is published again: by what
a snapshot has of it, else by its own footer. So only objects younger than the last snapshots cost a request each.
Agents may continue meanwhile: what they publish themselves is left out if it was read, and does no harm otherwise,
because records are joined. Records published again count whatever is registered before them
(`RemoteWalRebuiltSegment`).

An object that was stored and never published is complete, because a write is all or nothing, so it is published as
well; in doubt an object stays until its records expire. One whose deletion a snapshot knows is published as to be
deleted.

The last records are about what is in no object and need not be: for each log up to where its records were released,
then the declarations. An agent that only knows the topic takes for missing what lies behind the begin of a log's upload
and is in no object (`rlm.write_path.reading.resume_point`). So without these records, everything that has expired since
the upload began would be declared as lost. Released is what snapshots say, and what was in objects that a snapshot
knows as finished, that are not stored any more, and that agents would release now (`recovery.metadata.absent_objects`).
Any other absent object is lost: the plan names it, and its records stay missing, so that leaders' agents upload them
again or declare the gap.

Dead entries are not published: leaders' agents declare them again by their logs (`rlm.lifecycle.failover`).

When everything was read back, and only then, a last record says that the topic is complete again. Not while an object
cannot be read, as agents would delete it then as an orphan, nor while a snapshot cannot be read and none that can is
newer.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from kafka_cluster.responses import NO_TOPIC_ID
from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from metadata_topic.records.archive_records import ArchiveObjectCommitted, ArchiveObjectDeleted
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.errors import MetadataTopicError, PublicationBacklogFullError, SnapshotError
from metadata_topic.records.gap_record import MAX_GAPS, RemoteWalGapDeclaration
from metadata_topic.records.offset_ranges import NO_END, OffsetRange
from metadata_topic.records.publishable import Publishable
from metadata_topic.records.records import (
    PublishedSegment,
    RemoteWalNodeRegistration,
    RemoteWalRebuiltSegment,
    RemoteWalTopicRebuilt,
)
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED
from metadata_topic.records.topic_doubt import TopicDoubt
from metadata_topic.store.archive.archive_recovery import record_from_object
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.dead_tails import PartitionAndEpoch
from metadata_topic.store.released_offsets import ReleasedOffsets
from metadata_topic.store.sequence_set import SequenceSet
from metadata_topic.store.snapshots.archive_snapshot import EXTRA_NAME, decode_archive
from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.topic_continuity import NEVER_REBUILT_MS
from metadata_topic.topic.topic import METADATA_TOPIC
from metadata_topic.topic.topic_session import TopicSession
from plugin.archive_storage import ArchiveStorage, StoredArchiveObject
from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentCorruptError
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StoredSegment
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata
from plugin.store_loop import ask_each
from recovery.metadata.absent_objects import Judges
from recovery.metadata.footers import Progress, UnreadableObject, read_footers
from recovery.patience import IMPATIENT, Patience
from rlm.lifecycle.release import ReleaseJudge

_PASSES = 3
_AGELESS_MS = -1
"""Age alone does not release what is archived."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a metadata topic has, or what snapshots remember of it."""

    store: RemoteWalMetadataStore
    archive: ArchiveStore


class RememberedMetadata:
    """The content of all agents' snapshots, joined. Filled by one thread, then read."""

    def __init__(self) -> None:
        self.store = RemoteWalMetadataStore()
        self.archive = ArchiveStore()
        self.rebuilt_ms = NEVER_REBUILT_MS
        """Time of the newest rebuild of any topic that an agent remembers."""
        self.snapshots = 0
        self.doubt = ""
        """Names what may tell more and cannot be read; empty: nothing."""


@dataclass(slots=True)
class RebuildPlan:
    """The records that a rebuild writes into the metadata topic, and where they come from."""

    objects: int = 0
    """Stored combined segments and archive objects."""
    known: int = 0
    """Those of them that the topic has."""
    bytes: int = 0
    """Size of those that it does not have."""
    segments: list[PublishedSegment] = field(default_factory=list)
    """Records with COPY_SEGMENT_FINISHED."""
    from_footers: int = 0
    """Objects, archive objects too, that are in no snapshot."""
    deletions: list[RemoteWalCombinedLogSegmentMetadata | ArchiveObjectDeleted] = field(default_factory=list)
    """Records with DELETE_SEGMENT_STARTED."""
    archived: list[ArchiveObjectCommitted] = field(default_factory=list)
    registrations: list[RemoteWalNodeRegistration] = field(default_factory=list)
    gaps: list[DeclaredGap] = field(default_factory=list)
    """The ends of released records come first."""
    gone: int = 0
    """Objects that a snapshot knows as stored, and that are not, and that agents would release now."""
    lost: list[CombinedSegmentId | ArchiveObjectId] = field(default_factory=list)
    """The other absent ones: nothing says that their records are not wanted any more."""
    unreadable: list[UnreadableObject] = field(default_factory=list)
    """Objects without any metadata, not even their own."""
    unread_snapshots: str = ""
    """Names what may tell of more gaps and released records than what was read, and cannot be read."""

    @property
    def is_whole(self) -> bool:
        """Whether the topic lacks nothing of what it had once this is written."""
        return not self.unreadable and not self.unread_snapshots

    @property
    def records(self) -> int:
        """How many records are to be published."""
        of_gaps = -(-len(self.gaps) // MAX_GAPS)
        return len(self.segments) + len(self.deletions) + len(self.archived) + len(self.registrations) + of_gaps

    @property
    def declared_gaps(self) -> int:
        """How many ranges of records the plan declares lost to object storage."""
        return sum(gap.reason.is_loss for gap in self.gaps)

    @property
    def bounds(self) -> int:
        """How many records say where the upload of a log began, or up to where its records were released."""
        return len(self.gaps) - self.declared_gaps

    def select_unpublished(self, told: Known) -> "RebuildPlan":
        """Return the part of the plan that the topic does not have yet."""
        return replace(
            self,
            segments=[one for one in self.segments if _lacks_end(told.store.state_of(one.combined_segment_id))],
            archived=[one for one in self.archived if _lacks_end(told.archive.state_of(one.object_id))],
            deletions=[one for one in self.deletions if _lacks_end(_state_of(one, told))],
            registrations=[one for one in self.registrations if told.store.registration_of(one.broker_id) is None],
            gaps=unpublished_gaps(self.gaps, told.store),
        )


class Rebuild:
    """Plans and writes the records that the metadata topic lacks. Blocks."""

    def __init__(
        self,
        storage: RemoteWalStorageManager,
        archive: ArchiveStorage | None,
        remembered: RememberedMetadata,
        wall_ms: Callable[[], int],
        judges: Judges,
        progress: Progress = lambda _what, _done: None,
        patience: Patience = IMPATIENT,
    ) -> None:
        """`archive`: None if no broker has one. `judges` are called if an object is absent."""
        self._storage = storage
        self._archive = archive
        self._remembered = remembered
        self._wall_ms = wall_ms
        self._judges = judges
        self._progress = progress
        self._patience = patience

    def plan(self, told: Known) -> RebuildPlan:
        """Plan what the topic lacks. Raises RemoteStorageError, also when one of many buckets did not answer.

        If a bucket is left out, its objects would be deleted as orphans later. Also raises what the judges raise.
        """
        remembered = self._remembered
        plan = RebuildPlan(unread_snapshots=remembered.doubt)
        self._plan_registrations(plan, told)
        listed = self._plan_segments(plan, told)
        absent_runs = self._plan_archive(plan, told, self._archive) if self._archive is not None else []
        self._plan_absent(plan, told, listed, absent_runs)
        return plan

    def write(self, session: TopicSession, plan: RebuildPlan) -> int:
        """Publish the plan, and what is missing then, until all is read back; then publish that the rebuild is
        complete.

        Returns the number of records. The rebuild is not complete while an object cannot be read, or a snapshot that
        may be newer than those read.
        Raises MetadataTopicError, RemoteStorageError; it may then be run again.
        """
        written = 0
        for _ in range(_PASSES):
            for record in self._records(plan):
                _publish(session, record)
                written += 1
                if written % 1000 == 0:
                    self._progress("records written", written)
            session.published()
            if not session.read_to_end():
                raise MetadataTopicError(
                    "rebuild", METADATA_TOPIC, "what was written was not read back", "run it again"
                )
            plan = plan.select_unpublished(Known(session.store, session.archive))
            if not plan.records:
                break
        else:
            raise MetadataTopicError("rebuild", METADATA_TOPIC, f"{plan.records} records are missing", "run it again")
        if not plan.is_whole:
            return written
        topic = session.store.topic
        # Above everything that agents remember, even after a fast clock: an older one would not end their doubt.
        rebuilt_ms = max(self._wall_ms(), topic.rebuilt_ms + 1, self._remembered.rebuilt_ms + 1)
        _publish(session, RemoteWalTopicRebuilt(topic.topic_id or NO_TOPIC_ID, rebuilt_ms))
        session.published()
        return written + 1

    def _plan_registrations(self, plan: RebuildPlan, told: Known) -> None:
        """Plan registrations only for brokers without one in the topic: another one might fence a living agent."""
        remembered = self._remembered.store.newest_registrations()
        plan.registrations += [known for known in remembered if told.store.registration_of(known.broker_id) is None]

    def _plan_segments(self, plan: RebuildPlan, told: Known) -> "ListedObjects":
        unremembered: list[StoredSegment] = []
        listed = ListedObjects()
        for stored in self._listed():
            plan.objects += 1
            listed.add(stored.combined_segment_id)
            if not _lacks_end(told.store.state_of(stored.combined_segment_id)):
                plan.known += 1
                continue
            plan.bytes += stored.size_bytes
            remembered = self._remembered.store.published_segment(stored.combined_segment_id)
            state = self._remembered.store.state_of(stored.combined_segment_id)
            if state in (DELETING, DELETED):
                plan.deletions.append(
                    RemoteWalCombinedLogSegmentMetadata(
                        stored.combined_segment_id,
                        (),
                        DELETING,
                        self._wall_ms(),
                        stored.size_bytes,
                        stored.custom_metadata,
                    )
                )
            elif remembered is not None and state is FINISHED and remembered.entry_count:
                plan.segments.append(remembered)
            else:
                unremembered.append(stored)
        for found in read_footers(self._storage, unremembered, self._progress, self._patience):
            if not isinstance(found, UnreadableObject):
                plan.segments.append(PublishedSegment.of(replace(found, state=FINISHED)))
                plan.from_footers += 1
            elif not found.is_gone:  # agents deleted the object meanwhile
                plan.unreadable.append(found)
        return listed

    def _listed(self) -> Iterator[StoredSegment]:
        for number, stored in enumerate(ask_each(self._storage.list_log_segments()), start=1):
            if number % 1000 == 0:
                self._progress("objects listed", number)
            yield stored

    def _plan_absent(
        self, plan: RebuildPlan, told: Known, listed: "ListedObjects", absent: Sequence[ArchiveObjectCommitted]
    ) -> None:
        """Plan what was released, and name what is lost."""
        store, ended = self._remembered.store, (DELETING, DELETED)
        gone = [
            segment
            for segment in store.image().segments
            if segment.state is FINISHED and segment.combined_segment_id not in listed
        ]
        in_question = [
            (segment, segment.metadata.entries)
            for segment in gone
            if told.store.state_of(segment.combined_segment_id) not in ended
        ]
        archived = [one for one in absent if told.archive.state_of(one.object_id) not in ended]
        entries = [*(entries for _, entries in in_question), *(one.runs for one in archived)]
        topics = {entry.topic_id_partition.topic_id for each in entries for entry in each}
        judges: Sequence[ReleaseJudge] = ()
        if topics:
            still_archived = ArchiveStore()
            for record in (*told.archive.snapshot(), *plan.archived):
                still_archived.apply(record)
            judges = self._judges(topics, (store, told.store), still_archived)
        now_ms = self._wall_ms()
        lost = {
            segment.combined_segment_id
            for segment, entries in in_question
            for dead in [store.dead_tails(segment.combined_segment_id)]
            if not all(judge.releases(entries, now_ms - segment.event_timestamp_ms, dead) for judge in judges)
        }
        plan.lost += sorted(lost)
        plan.lost += [
            one.object_id for one in archived if not all(judge.releases(one.runs, _AGELESS_MS, {}) for judge in judges)
        ]
        plan.gone = len(gone) + len(absent) - len(plan.lost)
        released = [one for one in gone if one.combined_segment_id not in lost]
        plan.gaps += unpublished_gaps(remembered_gaps(self._remembered, released), told.store)

    def _plan_archive(self, plan: RebuildPlan, told: Known, archive: ArchiveStorage) -> list[ArchiveObjectCommitted]:
        """Return the remembered objects that are not stored any more, too."""
        absent = dict(self._remembered.archive.objects(FINISHED))
        for stored in ask_each(archive.list()):
            plan.objects += 1
            absent.pop(stored.object_id, None)
            if not _lacks_end(told.archive.state_of(stored.object_id)):
                plan.known += 1
                continue
            plan.bytes += stored.size_bytes
            incarnation = self._publisher_of(stored, told)
            if self._remembered.archive.state_of(stored.object_id) in (DELETING, DELETED):
                deletion = ArchiveObjectDeleted(stored.object_id, incarnation, DELETING, self._wall_ms())
                plan.deletions.append(deletion)
                continue
            record = self._remembered.archive.committed(stored.object_id)
            if record is None:
                try:
                    record = self._patience.call(partial(record_from_object, archive, stored))
                except RemoteResourceNotFoundError:
                    continue
                except RemoteSegmentCorruptError as error:
                    plan.unreadable.append(UnreadableObject(stored.key, error.reason))
                    continue
                plan.from_footers += 1
            plan.archived.append(replace(record, incarnation=incarnation))
        records = map(self._remembered.archive.committed, absent)
        return [one for one in records if one is not None]

    def _publisher_of(self, stored: StoredArchiveObject, told: Known) -> int:
        """Return an incarnation whose records about the object count."""
        writer = stored.object_id.writer_id
        registered = (store.registration_of(writer.broker_id) for store in (told.store, self._remembered.store))
        return max([writer.incarnation, *(known.incarnation for known in registered if known is not None)])

    def _records(self, plan: RebuildPlan) -> Iterator[Publishable]:
        yield from plan.registrations
        yield from (RemoteWalRebuiltSegment(segment) for segment in plan.segments)
        yield from plan.archived
        yield from plan.deletions
        now_ms = self._wall_ms()  # for keys that no agent uses, nor an earlier rebuild
        for sequence, at in enumerate(range(0, len(plan.gaps), MAX_GAPS)):
            yield RemoteWalGapDeclaration(0, now_ms, sequence, tuple(plan.gaps[at : at + MAX_GAPS]), now_ms)


def _lacks_end(state: RemoteLogSegmentState | None) -> bool:
    """Whether an upload has no end in the topic: it may be under way or lost, but the object exists."""
    return state in (None, STARTED)


def _state_of(
    record: RemoteWalCombinedLogSegmentMetadata | ArchiveObjectDeleted, told: Known
) -> RemoteLogSegmentState | None:
    if isinstance(record, ArchiveObjectDeleted):
        return told.archive.state_of(record.object_id)
    return told.store.state_of(record.combined_segment_id)


def _publish(session: TopicSession, record: Publishable) -> None:
    try:
        session.publish(record)
    except PublicationBacklogFullError:
        session.published()
        session.publish(record)


class ListedObjects:
    """The ids of all stored combined segments: a few intervals for each writer."""

    def __init__(self) -> None:
        self._of: defaultdict[tuple[int, int], SequenceSet] = defaultdict(SequenceSet)

    def add(self, segment_id: CombinedSegmentId) -> None:
        """Add the id of a listed segment."""
        self._of[segment_id.broker_id, segment_id.incarnation].add(segment_id.sequence)

    def __contains__(self, segment_id: CombinedSegmentId) -> bool:
        return segment_id.sequence in self._of[segment_id.broker_id, segment_id.incarnation]


def remembered_gaps(remembered: RememberedMetadata, gone: Sequence[PublishedSegment]) -> list[DeclaredGap]:
    """Return the gaps to declare: released offsets, the living records of `gone` among them, where logs began, then
    declared gaps."""
    image = remembered.store.image()
    released = ReleasedOffsets(image.released)
    for segment in gone:
        if not remembered.store.dead_tails(segment.combined_segment_id):
            released.add(segment.entry_block)
    bounds = [
        DeclaredGap(partition, 0, offset, epoch, GapReason.RELEASED)
        for partition, epoch, offset, _ in released.all()
        if offset
    ]
    starts = [
        DeclaredGap(partition, 0, offset, epoch, GapReason.LOG_START)
        for partition, epoch, offset, _ in image.log_starts
    ]
    return [*bounds, *starts, *image.gaps]


def unpublished_gaps(gaps: Sequence[DeclaredGap], told: RemoteWalMetadataStore) -> list[DeclaredGap]:
    """Return those of the gaps, released offsets and log starts among them, that the topic does not have."""
    image = told.image()
    declared = set(image.gaps)
    starts = {(partition, epoch): offset for partition, epoch, offset, _ in image.log_starts}
    unwanted: defaultdict[PartitionAndEpoch, list[OffsetRange]] = defaultdict(list)
    for gap in sorted(declared):
        if gap.reason is GapReason.NOT_WANTED:
            unwanted[gap.topic_id_partition, gap.leader_epoch].append((gap.from_offset, gap.to_offset))

    def is_published(gap: DeclaredGap) -> bool:
        key = (gap.topic_id_partition, gap.leader_epoch)
        if gap.reason is GapReason.RELEASED:
            of_its_epoch = LeaderEpochs([(gap.leader_epoch, 0)])
            return told.released_up_to(gap.topic_id_partition, of_its_epoch) >= gap.to_offset
        if gap.reason is GapReason.LOG_START:
            return starts.get(key, 0) >= gap.to_offset
        if gap.reason is GapReason.NOT_WANTED:  # the store joins those that touch
            behind = bisect_right(unwanted[key], (gap.from_offset, NO_END))
            return behind > 0 and unwanted[key][behind - 1][1] >= gap.to_offset
        return gap in declared

    return [gap for gap in gaps if not is_published(gap)]


def read_snapshots(
    storage: RemoteWalStorageManager, cluster_id: str, progress: Progress = lambda _what, _done: None
) -> RememberedMetadata:
    """Read the newest snapshot of each broker; nothing if `storage` keeps none."""
    remembered = RememberedMetadata()
    blobs = storage.blobs
    for image, doubt in SnapshotKeeper(blobs, cluster_id, -1, 0).newest_of_each() if blobs is not None else ():
        if not remembered.snapshots:  # an older one tells no more than it
            remembered.doubt = remembered.doubt or doubt
        if image is None:
            continue
        remembered.store.join(image)
        remembered.rebuilt_ms = max(remembered.rebuilt_ms, image.rebuilt_ms)
        try:
            archived = decode_archive(image.extras[EXTRA_NAME]) if EXTRA_NAME in image.extras else []
        except SnapshotError as error:
            remembered.doubt = remembered.doubt or str(error)
            continue
        for record in archived:
            remembered.archive.apply(record)
        remembered.snapshots += 1
        progress("snapshots", remembered.snapshots)
    if remembered.doubt:
        remembered.store.topic.doubted(TopicDoubt.UNREADABLE, remembered.doubt)
    return remembered
