"""All runs that object storage holds, by partition: from the metadata topic if there is one, else from the objects.

With metadata, the store's listing is compared with it. A finished segment that is not listed is lost, or out of reach
if its bucket did not answer or is unknown; its entries are kept, because they show how far the logs went. A listed
object that is not finished in the metadata (its agent died between upload and publication) is complete, because an
upload is all or nothing; its own footer gives its content. What the metadata marks as deleted does not count. For a
recovery, a finished object whose deletion has begun counts as long as it is listed: the agent that is to delete it
judges it again, and may hold it back (`rlm.lifecycle.expiration`). For readers it does not count, as it may go at once.

What a leader declared dead is dead in the segment that it named. A finished segment is always named separately, so
nothing else is removed from it. In archive objects, which nobody names, what an epoch holds beyond its declared end is
dead too, if nothing contradicts it (`recovery.metadata.epoch_ends`).
What a log lost without an election is left out of finished and unpublished objects alike.

Without metadata, every object's footer is read: a request for each. An object whose footer cannot be read is reported.
What leaders declared, and no object shows, is taken from the newest snapshot.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.archive_records import ArchiveObjectCommitted
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.errors import SnapshotError
from metadata_topic.records.offset_ranges import NO_END
from metadata_topic.records.records import (
    MetadataRecord,
    PublishedSegment,
    RemoteWalLogSegmentMetadataUpdate,
    RemoteWalTopicRebuilt,
)
from metadata_topic.records.states import DELETING, FINISHED, STARTED
from metadata_topic.store.archive.archive_recovery import records_from_objects
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.held_records import HeldRecords, LocalLosses, lost_from
from metadata_topic.store.released_offsets import ReleasedUpTo
from metadata_topic.store.snapshots.archive_snapshot import EXTRA_NAME, decode_archive
from metadata_topic.store.snapshots.snapshot import SegmentPortion
from metadata_topic.store.snapshots.snapshot_keeper import NO_SNAPSHOT, NewestSnapshot
from metadata_topic.store.snapshots.sparse_store import SnapshotOnlySegments, SparseStore
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.store_image import StoreImage
from plugin.archive_storage import ArchiveStorage
from plugin.errors import IncompleteListingError
from plugin.format.archive_object_id import StoredObjectId
from plugin.format.entry_column_batches import Bools, LogFilter, decode_blocks
from plugin.format.entry_columns import DIGEST_VERSION
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StoredSegment
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from plugin.store_loop import ask_each
from recovery.logs.log_plan import EpochStart, LogRuns, PlanRules
from recovery.logs.stored_run import StoredObject, StoredRun
from recovery.metadata.epoch_ends import EpochEnds
from recovery.metadata.footers import Progress, UnreadableObject, read_footers
from recovery.patience import IMPATIENT, Patience

DeadTails = Mapping[tuple[StoredObjectId, TopicIdPartition, int], int]

DeadFrom = Callable[[RemoteLogSegmentMetadataEntry], int | None]
"""Returns the offset from which an object's entry is dead; None: all of it lives."""

_MOST_LOOKS: Final = 4
_TOLD_EACH: Final = 100_000
_UNKNOWN_BUCKET = "a bucket that is not known here"


@dataclass(slots=True)
class Inventory:
    """All that object storage holds, by partition, and what is known of missing objects."""

    wanted: LogFilter | None = None
    """The logs whose runs are kept; None: all."""
    runs: dict[TopicIdPartition, list[StoredRun]] = field(default_factory=dict)
    lost: dict[TopicIdPartition, list[StoredRun]] = field(default_factory=dict)
    """Runs in the metadata whose objects are gone, or unreachable."""
    known_starts: dict[TopicIdPartition, list[EpochStart]] = field(default_factory=dict)
    declared_gaps: dict[TopicIdPartition, list[DeclaredGap]] = field(default_factory=dict)
    """Missing records that the leaders declared."""
    before_upload: dict[TopicIdPartition, list[DeclaredGap]] = field(default_factory=dict)
    """Where the upload of a log began, according to the leaders."""
    released: dict[TopicIdPartition, list[ReleasedUpTo]] = field(default_factory=dict)
    """Up to where records went with their objects, because they were not wanted any more."""
    held: dict[TopicIdPartition, int] = field(default_factory=dict)
    """How many runs hold records that the log has lost (`metadata_topic.store.held_records`)."""
    log_starts: dict[TopicIdPartition, list[ReleasedUpTo]] = field(default_factory=dict)
    """Where logs began, according to their leaders."""
    unreadable: list[UnreadableObject] = field(default_factory=list)
    lost_objects: list[StoredObject] = field(default_factory=list)
    """Objects in the metadata that no answering store has."""
    unreachable: dict[StoredObjectId, str] = field(default_factory=dict)
    """The bucket of each object in the metadata that cannot be looked for now."""
    unanswered: frozenset[str] = frozenset()
    """Buckets that did not answer, with unknown other content."""
    objects: int = 0
    """Objects that can be read, of whatever logs."""
    unpublished_objects: int = 0
    """Those of them that are not finished in the metadata."""
    archived: frozenset[StoredObjectId] = frozenset()
    """The archive's objects, by the metadata."""
    newest_ms: int | None = None
    """When the newest object of `objects` was written, by its writer's clock."""
    foreign_objects: int = 0
    """Keys under the cluster's prefix that are not ours."""
    doubts: tuple[str, ...] = ()
    """Why the metadata topic may lack what leaders declared, and objects that are lost."""

    def partitions(self) -> set[TopicIdPartition]:
        """Return the partitions of which records are stored, or were."""
        return {*self.runs, *self.lost}

    def log_runs(self, partition: TopicIdPartition) -> LogRuns:
        """Return all runs of one partition."""
        return LogRuns(self.runs.get(partition, ()), self.lost.get(partition, ()), self.known_starts.get(partition, ()))

    def log_rules(self, partition: TopicIdPartition, *, is_compacted: bool, log_start: int | None) -> PlanRules:
        """Return what is known of one partition's log besides its runs; `log_start` is what its leader reports."""
        return PlanRules(
            may_have_holes=is_compacted,
            declared_gaps=tuple(self.declared_gaps.get(partition, ())),
            before_upload=tuple(self.before_upload.get(partition, ())),
            released=tuple(self.released.get(partition, ())),
            log_start=log_start,
            log_starts=tuple(self.log_starts.get(partition, ())),
        )

    def unreachable_in(self, partition: TopicIdPartition, from_offset: int, to_offset: int) -> list[str]:
        """Return the unreachable buckets that have any of the offsets [from, to)."""
        runs = self.lost.get(partition, ())
        found = {
            self.unreachable[run.stored_in.object_id]
            for run in runs
            if run.first_offset < to_offset
            and run.living_last_offset >= from_offset
            and run.stored_in.object_id in self.unreachable
        }
        return sorted(found)


def look_until_steady(look: Callable[[], Inventory]) -> Inventory:
    """Return the inventory of `look` once it misses no object, or misses the same objects twice in a row.

    Agents delete objects meanwhile: what was finished when the metadata was read may be gone from the listing, and what
    was listed without metadata may be gone before its footer is read.
    """
    inventory = look()
    for _ in range(_MOST_LOOKS - 1):
        if not (before := _missed(inventory)):
            break
        inventory = look()
        inventory.lost_objects = [one for one in inventory.lost_objects if one.object_id in before]
        inventory.unreadable = [one for one in inventory.unreadable if not one.is_gone or one.key in before]
        if before == _missed(inventory):
            break
    return inventory


def _missed(inventory: Inventory) -> set[StoredObjectId | str]:
    gone = {one.key for one in inventory.unreadable if one.is_gone}
    return {one.object_id for one in inventory.lost_objects} | gone


def from_objects(
    storage: RemoteWalStorageManager,
    archive: ArchiveStorage | None,
    progress: Progress = lambda _what, _done: None,
    patience: Patience = IMPATIENT,
    wanted: LogFilter | None = None,
    snapshot: NewestSnapshot = NO_SNAPSHOT,
) -> Inventory:
    """Build the inventory from the objects themselves, without what leaders had declared dead by the snapshot.

    Raises RemoteStorageError when the store fails.
    """
    image = snapshot.image or StoreImage({})
    ends = EpochEnds(image.ends, image.released)
    inventory = Inventory(wanted, known_starts=ends.starts(), doubts=(snapshot.doubt,) if snapshot.doubt else ())
    _add_declared(inventory, image)
    held = HeldRecords()
    held.add(gap for gap in image.gaps if gap.reason is GapReason.LOST_LOCALLY)
    dead = _dead_tails(image)

    def dead_from(segment_id: CombinedSegmentId, entry: RemoteLogSegmentMetadataEntry) -> int | None:
        told = dead.get((segment_id, entry.topic_id_partition, entry.leader_epoch))
        found = [offset for offset in (told, lost_from(entry, held.losses)) if offset is not None]
        return min(found, default=None)

    _add_footers(inventory, storage, _listed(inventory, storage, progress).values(), progress, patience, dead_from)
    if archive is not None:
        for record in records_from_objects(archive):
            stored = StoredObject(record.object_id, record.size_bytes, record.event_timestamp_ms)
            _add_entries(inventory, stored, record.runs)
    inventory.foreign_objects = storage.request_counts.foreign_objects
    _end_epochs(inventory, ends, _archived_in(inventory, image) if image.ends else frozenset())
    return inventory


def _archived_in(inventory: Inventory, image: StoreImage) -> frozenset[StoredObjectId]:
    try:
        known = decode_archive(image.extras[EXTRA_NAME]) if EXTRA_NAME in image.extras else ()
        return frozenset(record.object_id for record in known if isinstance(record, ArchiveObjectCommitted))
    except SnapshotError as error:
        inventory.doubts += (str(error),)
        return frozenset()


def from_metadata(
    store: RemoteWalMetadataStore,
    archived: ArchiveStore,
    storage: RemoteWalStorageManager,
    archive: ArchiveStorage | None,
    progress: Progress = lambda _what, _done: None,
    patience: Patience = IMPATIENT,
    wanted: LogFilter | None = None,
    *,
    is_recovery: bool = False,
) -> Inventory:
    """Build the inventory from the metadata topic's content, compared with a listing. Raises RemoteStorageError when
    the store fails."""
    image = store.image()
    ends = EpochEnds(image.ends, image.released)
    inventory = Inventory(wanted, known_starts=ends.starts(), doubts=tuple(store.topic.doubts.values()))
    snapshot_only = store.snapshot_only if isinstance(store, SparseStore) else SnapshotOnlySegments()
    listed = _listed(inventory, storage, progress, snapshot_only)
    inventory.foreign_objects = storage.request_counts.foreign_objects
    _add_declared(inventory, image)
    dead = _dead_tails(image)
    losses = store.local_losses()
    for partition in losses:  # held, and not the log's any more
        for run in store.held_runs(partition):
            inventory.held[partition] = inventory.held.get(partition, 0) + 1
            key = (run.combined_segment_id, partition, run.entry.leader_epoch)
            dead[key] = min(run.entry.first_offset, dead.get(key, run.entry.first_offset))
    unpublished = []
    for done, segment in enumerate(image.segments):
        found = listed.pop(segment.combined_segment_id, None)
        going = found if is_recovery and segment.state is DELETING and segment.entry_count else None
        if segment.state is FINISHED or going is not None:
            stored = _stored_as(segment)
            if going is not None:  # the record's time is when the deletion began
                stored = replace(stored, written_ms=going.last_modified_ms, is_going=True)
            dead_from = _named_dead(segment.combined_segment_id, dead)
            if found is None:
                _not_listed(inventory, storage, stored)
            _add_entries(inventory, stored, segment.metadata.entries, dead_from, is_lost=found is None)
        elif segment.state is STARTED and found is not None:
            unpublished.append(found)
        if done % 1000 == 0:
            progress("metadata", done)
    _add_snapshot_only(inventory, storage, snapshot_only, dead, progress)
    unpublished += [stored for segment_id, stored in listed.items() if store.state_of(segment_id) is None]
    inventory.unpublished_objects = len(unpublished)
    lost = _without_ends(losses)
    _add_footers(inventory, storage, unpublished, progress, patience, lambda _, entry: lost_from(entry, lost))
    _add_archive(inventory, archived, archive)
    inventory.archived = frozenset(object_id for object_id, _ in archived.objects(FINISHED))
    _end_epochs(inventory, ends, inventory.archived)
    return inventory


def take_in_told(
    before: Inventory, store: SparseStore, archived: ArchiveStore, told: Iterable[MetadataRecord | None]
) -> Inventory | None:
    """Return the inventory updated with what the metadata topic had since, without a listing; None if one is needed.

    Objects count as stored if the topic says so, and their runs are replaced. Anything that changes other objects' runs
    (deaths, lost records, a topic in doubt) needs a listing, and so does what could not be read before.
    """
    if before.unanswered or before.unreachable or before.unreadable:
        return None
    image = store.declared()
    ends = EpochEnds(image.ends, image.released)
    touched = {one.combined_segment_id for one in told if isinstance(one, PublishedSegment)}
    archived_now = frozenset(object_id for object_id, _ in archived.objects(FINISHED))
    archived_new, archived_gone = archived_now - before.archived, before.archived - archived_now
    if (
        any(isinstance(one, RemoteWalLogSegmentMetadataUpdate | RemoteWalTopicRebuilt) for one in told)
        or any(before.wanted is None or log in before.wanted for log in store.local_losses())
        or tuple(store.topic.doubts.values()) != before.doubts
        or ((archived_new or archived_gone) and any(ends.partitions()))
    ):
        return None
    gone: set[StoredObjectId] = {*touched, *archived_gone}

    def kept(of_state: Mapping[TopicIdPartition, list[StoredRun]]) -> dict[TopicIdPartition, list[StoredRun]]:
        found = ((log, [run for run in runs if run.stored_in.object_id not in gone]) for log, runs in of_state.items())
        return {log: runs for log, runs in found if runs}

    inventory = replace(
        before, runs=kept(before.runs), lost=kept(before.lost), known_starts=ends.starts(), archived=archived_now,
        declared_gaps={}, before_upload={}, released={}, log_starts={},
    )  # fmt: skip
    _add_declared(inventory, image)
    dead = _dead_tails(image)
    for segment_id in touched:
        if (segment := store.published_segment(segment_id)) is not None and segment.state is FINISHED:
            dead_from = _named_dead(segment_id, dead)
            _add_entries(inventory, _stored_as(segment), segment.metadata.entries, dead_from)
    for object_id in archived_new:
        if (record := archived.committed(object_id)) is not None:
            stored = StoredObject(object_id, record.size_bytes, record.event_timestamp_ms)
            _add_entries(inventory, stored, record.runs)
    return inventory


def _without_ends(losses: LocalLosses) -> LocalLosses:
    """Return the losses as they are for objects that nobody published: who declares one knows only what is published,
    but its log has no more of the older epochs from there on."""
    return {log: tuple(one._replace(to_offset=NO_END) for one in of_log) for log, of_log in losses.items()}


def _dead_tails(image: StoreImage) -> dict[tuple[StoredObjectId, TopicIdPartition, int], int]:
    return {
        (tail.combined_segment_id, tail.topic_id_partition, tail.leader_epoch): tail.first_offset for tail in image.dead
    }


def _add_declared(inventory: Inventory, image: StoreImage) -> None:
    for gap in image.gaps:
        if gap.reason.is_hole:
            inventory.declared_gaps.setdefault(gap.topic_id_partition, []).append(gap)
        elif gap.reason is GapReason.BEFORE_UPLOAD:
            inventory.before_upload.setdefault(gap.topic_id_partition, []).append(gap)
    for released in image.released:
        inventory.released.setdefault(released.topic_id_partition, []).append(released)
    for start in image.log_starts:
        inventory.log_starts.setdefault(start.topic_id_partition, []).append(start)


def _listed(
    inventory: Inventory,
    storage: RemoteWalStorageManager,
    progress: Progress,
    snapshot_only: SnapshotOnlySegments | None = None,
) -> dict[CombinedSegmentId, StoredSegment]:
    """Return what the answering buckets have, without those that only the snapshot has, which are marked."""
    found: dict[CombinedSegmentId, StoredSegment] = {}
    try:
        for number, stored in enumerate(ask_each(storage.list_log_segments()), start=1):
            if snapshot_only is None or not snapshot_only.note_listed(stored.combined_segment_id):
                found[stored.combined_segment_id] = stored
            if number % _TOLD_EACH == 0:
                progress("listed objects", number)
    except IncompleteListingError as error:
        inventory.unanswered = error.unanswered
    return found


def _add_snapshot_only(
    inventory: Inventory,
    storage: RemoteWalStorageManager,
    snapshot_only: SnapshotOnlySegments,
    dead: DeadTails,
    progress: Progress,
) -> None:
    """Add segments of a snapshot, of which only the wanted entries become runs."""
    done = 0
    for portion, is_only_there, is_listed in snapshot_only.portions():
        for at in np.flatnonzero(is_only_there & ~is_listed).tolist():
            segment, stored = portion[at], _stored(portion, at)
            _not_listed(inventory, storage, stored)
            dead_from = _named_dead(segment.combined_segment_id, dead)
            _add_entries(inventory, stored, segment.metadata.entries, dead_from, is_lost=True)
        if is_listed.any():
            inventory.objects += int(is_listed.sum())
            inventory.newest_ms = max(inventory.newest_ms or 0, int(portion.written_ms[is_listed].max()))
        _add_wanted(inventory, portion, is_listed, dead)
        done += int(is_only_there.sum())
        progress("metadata", done)


def _add_wanted(inventory: Inventory, portion: SegmentPortion, chosen: Bools, dead: DeadTails) -> None:
    wanted = inventory.wanted
    places = np.flatnonzero(chosen) if wanted is None else portion.find_holders(wanted, chosen)
    has_digests = portion.data[portion.block_starts[places]] == DIGEST_VERSION
    for at in places[has_digests].tolist():
        segment = portion[at]
        inventory.objects -= 1  # it is counted already
        dead_from = _named_dead(segment.combined_segment_id, dead)
        _add_entries(inventory, _stored(portion, at), segment.metadata.entries, dead_from)
    places = places[~has_digests & (portion.block_ends > portion.block_starts)[places]]
    found = decode_blocks(portion.data, portion.block_starts[places], portion.block_ends[places])
    if not found.is_good.all():
        raise SnapshotError("read metadata snapshot", "-", "a segment's entries cannot be decoded", "--from-objects")
    rows = slice(None) if wanted is None else np.flatnonzero(wanted.matches(found.topic_ids, found.partition))
    objects: dict[int, StoredObject] = {}
    columns = (found.block, found.partition, found.leader_epoch, found.first_offset, found.last_offset,
               found.start_file_position, found.end_file_position, found.crc32c)  # fmt: skip
    topic_ids = [topic_id.tobytes() for topic_id in found.topic_ids[rows]]
    for topic_id, block, partition, epoch, first, last, start, end, crc in zip(
        topic_ids, *(column[rows].tolist() for column in columns), strict=True
    ):
        log = TopicIdPartition(TopicId(topic_id), partition)
        if wanted is not None and log not in wanted:
            continue
        stored = objects.get(block) or objects.setdefault(block, _stored(portion, int(places[block])))
        living = min(last, dead.get((stored.object_id, log, epoch), last + 1) - 1) if dead else last
        run = StoredRun(stored, epoch, first, last, living, start, end, crc)
        inventory.runs.setdefault(log, []).append(run)


def _stored(portion: SegmentPortion, at: int) -> StoredObject:
    written_ms, size_bytes = int(portion.written_ms[at]), int(portion.size_bytes[at])
    return StoredObject(portion.segment_id(at), size_bytes, written_ms, portion.custom_metadata(at))


def _stored_as(segment: PublishedSegment) -> StoredObject:
    return StoredObject(
        segment.combined_segment_id, segment.size_bytes, segment.event_timestamp_ms, segment.custom_metadata
    )


def _not_listed(inventory: Inventory, storage: RemoteWalStorageManager, stored: StoredObject) -> None:
    """Record a finished segment that is not in the listing: lost, unless its bucket is out of reach."""
    place = storage.place_of(stored.custom_metadata)
    if place is None or place in inventory.unanswered:
        inventory.unreachable[stored.object_id] = place or _UNKNOWN_BUCKET
    else:
        inventory.lost_objects.append(stored)


def _end_epochs(inventory: Inventory, ends: EpochEnds, archived_then: Container[StoredObjectId]) -> None:
    """Leave out what is dead in archive objects, which declarations do not name.

    `archived_then` are the archive objects that were known when the declarations were read.
    """
    for partition in ends.partitions():
        into = [
            of_partition[partition] for of_partition in (inventory.runs, inventory.lost) if partition in of_partition
        ]
        runs = [(run, run.stored_in.object_id in archived_then) for of_state in into for run in of_state]
        standing = ends.find_valid(
            partition,
            [run for run, is_archived in runs if not is_archived],
            [run for run, is_archived in runs if is_archived],
        )
        for of_state in into:
            of_state[:] = [standing.cut(run) if run.stored_in.object_id in archived_then else run for run in of_state]


def _add_archive(inventory: Inventory, archived: ArchiveStore, archive: ArchiveStorage | None) -> None:
    there = {stored.object_id: stored for stored in ask_each(archive.list())} if archive is not None else {}
    for object_id, _ in archived.objects(FINISHED):
        record = archived.committed(object_id)
        if record is None:
            continue
        listed = there.get(object_id)
        # The record is published again from time to time, so its time stamp alone may be much too young.
        published_ms = record.event_timestamp_ms
        written_ms = min(published_ms, listed.last_modified_ms) if listed is not None else published_ms
        stored = StoredObject(object_id, record.size_bytes, written_ms)
        if listed is None:
            inventory.lost_objects.append(stored)
        _add_entries(inventory, stored, record.runs, is_lost=listed is None)


def _nothing_dead(_entry: RemoteLogSegmentMetadataEntry) -> int | None:
    return None


def _add_footers(
    inventory: Inventory,
    storage: RemoteWalStorageManager,
    listed: Iterable[StoredSegment],
    progress: Progress,
    patience: Patience,
    dead_from: Callable[[CombinedSegmentId, RemoteLogSegmentMetadataEntry], int | None],
) -> None:
    """Read the objects' footers, many at a time."""
    for found in read_footers(storage, listed, progress, patience):
        if isinstance(found, UnreadableObject):
            inventory.unreadable.append(found)
        else:
            stored = StoredObject(
                found.combined_segment_id, found.size_bytes, found.event_timestamp_ms, found.custom_metadata
            )
            _add_entries(inventory, stored, found.entries, partial(dead_from, found.combined_segment_id))


def _named_dead(segment_id: CombinedSegmentId, dead: DeadTails) -> DeadFrom:
    """Return the function for a segment that declarations name."""
    if not dead:
        return _nothing_dead
    return lambda entry: dead.get((segment_id, entry.topic_id_partition, entry.leader_epoch))


def _add_entries(
    inventory: Inventory,
    stored: StoredObject,
    entries: Iterable[RemoteLogSegmentMetadataEntry],
    dead_from: DeadFrom = _nothing_dead,
    *,
    is_lost: bool = False,
) -> None:
    if not is_lost:
        inventory.objects += 1
        inventory.newest_ms = max(inventory.newest_ms or 0, stored.written_ms)
    into = inventory.lost if is_lost else inventory.runs
    for entry in entries:
        if inventory.wanted is not None and entry.topic_id_partition not in inventory.wanted:
            continue
        first_dead = dead_from(entry)
        living_last = entry.last_offset if first_dead is None else min(entry.last_offset, first_dead - 1)
        into.setdefault(entry.topic_id_partition, []).append(_run(stored, entry, living_last))


def _run(stored: StoredObject, entry: RemoteLogSegmentMetadataEntry, living_last_offset: int) -> StoredRun:
    return StoredRun(
        stored,
        entry.leader_epoch,
        entry.first_offset,
        entry.last_offset,
        living_last_offset,
        entry.start_file_position,
        entry.end_file_position,
        entry.crc32c,
        entry.sha256,
    )
