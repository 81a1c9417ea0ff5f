"""All runs that object storage holds, by partition: from the metadata topic if there is one, else from the objects.

With metadata, the store's listing is compared with it. A finished segment that is not listed is lost, or out of reach
if its bucket did not answer or is unknown; its entries are kept, because they show how far the logs went. A listed
object that is not finished in the metadata (its agent died between upload and publication) is complete, because an
upload is all or nothing; its own footer gives its content. What the metadata marks as deleted, or to be deleted, does
not count.

What a leader declared dead is dead in the segment that it named. A finished segment is always named separately, so
nothing else is removed from it. For objects that nobody could name, unpublished and archived ones, what an epoch holds
beyond its declared end is dead too, if nothing contradicts it (`recovery.metadata.epoch_ends`).
What a log lost without an election is left out of finished and unpublished objects alike.

Without metadata, every object's footer is read: a request for each. An object whose footer cannot be read is reported.
What leaders declared, and no object shows, is taken from the newest snapshot.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.states import FINISHED, STARTED
from metadata_topic.store.archive.archive_recovery import records_from_objects
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.held_records import HeldRecords, lost_from
from metadata_topic.store.released_offsets import ReleasedUpTo
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.store_image import StoreImage
from plugin.archive_storage import ArchiveStorage
from plugin.errors import IncompleteListingError
from plugin.format.archive_object_id import StoredObjectId
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StoredSegment
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry
from recovery.logs.log_plan import EpochStart, LogRuns, PlanRules
from recovery.logs.stored_run import StoredObject, StoredRun
from recovery.metadata.epoch_ends import EpochEnds
from recovery.metadata.footers import Progress, UnreadableObject, read_footers
from recovery.patience import IMPATIENT, Patience

DeadTails = Mapping[tuple[CombinedSegmentId, TopicIdPartition, int], int]

DeadFrom = Callable[[RemoteLogSegmentMetadataEntry], int | None]
"""Returns the offset from which an object's entry is dead; None: all of it lives."""

_MOST_LOOKS: Final = 4
_UNKNOWN_BUCKET = "a bucket that is not known here"


@dataclass(slots=True)
class Inventory:
    """Everything that is stored."""

    topic_ids: frozenset[TopicId] | None = None
    """The topics whose runs are kept; None: all."""
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
    """Objects with runs in `runs`."""
    unpublished_objects: int = 0
    """Those of them that are not finished in the metadata."""
    foreign_objects: int = 0
    """Keys under the cluster's prefix that are not ours."""

    def partitions(self) -> set[TopicIdPartition]:
        """Return the partitions of which anything is stored, or was."""
        return {*self.runs, *self.lost}

    def log_runs(self, partition: TopicIdPartition) -> LogRuns:
        """Return all runs of one partition."""
        return LogRuns(self.runs.get(partition, ()), self.lost.get(partition, ()), self.known_starts.get(partition, ()))

    def log_rules(self, partition: TopicIdPartition, *, is_compacted: bool, log_start: int | None) -> PlanRules:
        """Return what is known of one partition's log besides its runs; `log_start` is its leader's answer."""
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
    """Return the inventory once it misses nothing, or misses the same objects as the look before.

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
    topic_ids: frozenset[TopicId] | None = None,
    snapshot: StoreImage | None = None,
) -> Inventory:
    """Return what the objects themselves contain, but for what leaders had declared by the time of the snapshot.

    Raises RemoteStorageError when the store fails.
    """
    image = snapshot or StoreImage({}, (), (), (), ())
    ends = EpochEnds(image.ends, image.released)
    inventory = Inventory(topic_ids, known_starts=ends.starts())
    _add_declared(inventory, image)
    held = HeldRecords()
    held.add(gap for gap in image.gaps if gap.reason is GapReason.LOST_LOCALLY)
    dead = _dead_tails(image)

    def dead_from(segment_id: CombinedSegmentId, entry: RemoteLogSegmentMetadataEntry) -> int | None:
        told = dead.get((segment_id, entry.topic_id_partition, entry.leader_epoch))
        found = [offset for offset in (told, lost_from(entry, held.losses)) if offset is not None]
        return min(found, default=None)

    _add_footers(inventory, storage, _listed(inventory, storage).values(), progress, patience, dead_from)
    if archive is not None:
        for record in records_from_objects(archive):
            stored = StoredObject(record.object_id, record.size_bytes, record.event_timestamp_ms)
            _add_entries(inventory, stored, record.runs)
    inventory.foreign_objects = storage.request_counts.foreign_objects
    known = (segment.combined_segment_id for segment in image.segments if segment.state is FINISHED)
    _end_epochs(inventory, ends, frozenset(known if image.ends else ()).__contains__)
    return inventory


def from_metadata(
    store: RemoteWalMetadataStore,
    archived: ArchiveStore,
    storage: RemoteWalStorageManager,
    archive: ArchiveStorage | None,
    progress: Progress = lambda _what, _done: None,
    patience: Patience = IMPATIENT,
    topic_ids: frozenset[TopicId] | None = None,
) -> Inventory:
    """Return the metadata topic's content, compared with the listing. Raises RemoteStorageError when the store
    fails.
    """
    image = store.image()
    ends = EpochEnds(image.ends, image.released)
    inventory = Inventory(topic_ids, known_starts=ends.starts())
    listed = _listed(inventory, storage)
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
        if segment.state is FINISHED:
            stored = StoredObject(
                segment.combined_segment_id, segment.size_bytes, segment.event_timestamp_ms, segment.custom_metadata
            )
            dead_from = _named_dead(segment.combined_segment_id, dead)
            is_there = listed.pop(segment.combined_segment_id, None) is not None
            if not is_there:
                _not_listed(inventory, storage, stored)
            _add_entries(inventory, stored, segment.metadata.entries, dead_from, is_lost=not is_there)
        elif segment.state is STARTED:
            if (found := listed.pop(segment.combined_segment_id, None)) is not None:
                unpublished.append(found)
        else:
            listed.pop(segment.combined_segment_id, None)
        if done % 1000 == 0:
            progress("metadata", done)
    unpublished += [stored for segment_id, stored in listed.items() if store.state_of(segment_id) is None]
    inventory.unpublished_objects = len(unpublished)
    _add_footers(inventory, storage, unpublished, progress, patience, lambda _, entry: lost_from(entry, losses))
    _add_archive(inventory, archived, archive)
    unnamed = {found.combined_segment_id for found in unpublished}
    _end_epochs(inventory, ends, lambda segment_id: segment_id not in unnamed)
    return inventory


def _dead_tails(image: StoreImage) -> dict[tuple[CombinedSegmentId, TopicIdPartition, int], int]:
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


def _listed(inventory: Inventory, storage: RemoteWalStorageManager) -> dict[CombinedSegmentId, StoredSegment]:
    """Return what the answering buckets have."""
    found: dict[CombinedSegmentId, StoredSegment] = {}
    try:
        for stored in storage.list_log_segments():
            found[stored.combined_segment_id] = stored
    except IncompleteListingError as error:
        inventory.unanswered = error.unanswered
    return found


def _not_listed(inventory: Inventory, storage: RemoteWalStorageManager, stored: StoredObject) -> None:
    """Record a finished segment that is not in the listing: lost, unless its bucket is out of reach."""
    place = storage.place_of(stored.custom_metadata)
    if place is None or place in inventory.unanswered:
        inventory.unreachable[stored.object_id] = place or _UNKNOWN_BUCKET
    else:
        inventory.lost_objects.append(stored)


def _end_epochs(inventory: Inventory, ends: EpochEnds, is_finished: Callable[[CombinedSegmentId], bool]) -> None:
    """Leave out what is dead in objects that declarations do not name, as they name only finished segments."""

    def is_named(run: StoredRun) -> bool:
        object_id = run.stored_in.object_id
        return isinstance(object_id, CombinedSegmentId) and is_finished(object_id)

    for partition in ends.partitions():
        into = [
            of_partition[partition] for of_partition in (inventory.runs, inventory.lost) if partition in of_partition
        ]
        runs = [run for of_state in into for run in of_state]
        standing = ends.find_valid(
            partition, [run for run in runs if is_named(run)], [run for run in runs if not is_named(run)]
        )
        for of_state in into:
            of_state[:] = [run if is_named(run) else standing.cut(run) for run in of_state]


def _add_archive(inventory: Inventory, archived: ArchiveStore, archive: ArchiveStorage | None) -> None:
    there = {stored.object_id: stored for stored in archive.list()} if archive is not None else {}
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
    inventory.objects += not is_lost
    into = inventory.lost if is_lost else inventory.runs
    for entry in entries:
        if inventory.topic_ids is not None and entry.topic_id_partition.topic_id not in inventory.topic_ids:
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
