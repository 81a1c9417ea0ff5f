"""What is stored: by the metadata topic and by the objects alone, in a real store."""

import gc
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.archive_records import ArchiveObjectCommitted
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.records.gap_record import RemoteWalGapDeclaration
from metadata_topic.records.records import PublishedSegment, RemoteWalLogSegmentMetadataUpdate
from metadata_topic.records.states import FINISHED
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import with_archive
from metadata_topic.store.snapshots.snapshot import read_image, snapshot_chunks
from metadata_topic.store.snapshots.snapshot_keeper import NewestSnapshot
from metadata_topic.store.snapshots.sparse_store import SparseStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.format.archive_object import OpenArchiveObject
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.format.entry_column_batches import LogFilter
from plugin.loading import StorageSpec, load_storage_manager
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from plugin.store_loop import ask
from recovery.logs.log_plan import EpochStart, Gap, PlanRules
from recovery.metadata.inventory import Inventory, from_metadata, from_objects
from tests.recovery.stored_objects import Records, records, started
from tests.rlm.archive_rig import MemoryArchive

ORDERS, CLICKS = (TopicIdPartition(TopicId(name.ljust(16)), 0) for name in (b"orders", b"clicks"))
CLASS = "plugin.local_directory.LocalWalStorageManager"
Published = RemoteWalCombinedLogSegmentMetadata | RemoteWalLogSegmentMetadataUpdate | RemoteWalGapDeclaration


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[RemoteWalStorageManager]:
    manager = load_storage_manager(
        StorageSpec(CLASS, None, {"directory": str(tmp_path)}), StorageContext("cluster-1", 1)
    )
    yield manager
    manager.close()


class Leader:
    def __init__(self, storage: RemoteWalStorageManager, broker_id: int, since_ms: int = 0) -> None:
        """The nth object is written n milliseconds after `since_ms`."""
        self._storage = storage
        self._broker_id = broker_id
        self._sequence = since_ms

    def upload(self, *parts: Records) -> RemoteWalCombinedLogSegmentMetadata:
        """The object's metadata, as it would be published."""
        self._sequence += 1
        segment_id = CombinedSegmentId(self._broker_id, 1, self._sequence)
        records_of_parts = [data for _, _, _, data in parts]
        update = ask(self._storage.copy_log_segment_data(started(segment_id, *parts), records_of_parts))
        return RemoteWalCombinedLogSegmentMetadata(
            segment_id, update.entries, FINISHED, self._sequence, update.size_bytes, update.custom_metadata
        )


def _told(*published: Published) -> RemoteWalMetadataStore:
    store = RemoteWalMetadataStore()
    store.apply_all(
        (PublishedSegment.of(one) if isinstance(one, RemoteWalCombinedLogSegmentMetadata) else one, (0, number))
        for number, one in enumerate(published)
    )
    return store


def _found(
    storage: RemoteWalStorageManager,
    *published: Published,
    archived: ArchiveStore | None = None,
    archive: MemoryArchive | None = None,
    is_recovery: bool = False,
) -> Inventory:
    """What the whole topic tells; a snapshot of any age and the rest of the topic tell the same."""
    archived = archived or ArchiveStore()
    whole = from_metadata(_told(*published), archived, storage, archive, is_recovery=is_recovery)
    for told in range(len(published) + 1):
        store = SparseStore()
        store.restore(read_image(b"".join(snapshot_chunks(_told(*published[:told]).image()))))
        store.apply_all(
            (
                PublishedSegment.of(one) if isinstance(one, RemoteWalCombinedLogSegmentMetadata) else one,
                (0, told + number),
            )
            for number, one in enumerate(published[told:])
        )
        store.settle()
        found = from_metadata(store, archived, storage, archive, is_recovery=is_recovery)
        assert _comparable(found) == _comparable(whole)
        logs = [ORDERS, CLICKS]
        for wanted in ([], [ORDERS], [ORDERS.topic_id], logs):
            some = from_metadata(store, archived, storage, archive, wanted=LogFilter(wanted), is_recovery=is_recovery)
            kept = [log for log in logs if log in wanted or log.topic_id in wanted]
            assert {log: set(runs) for log, runs in some.runs.items()} == {
                log: set(whole.runs[log]) for log in kept if log in whole.runs
            }
    return whole


def _comparable(found: Inventory) -> Inventory:
    by_log = ({log: sorted(runs, key=repr) for log, runs in of.items()} for of in (found.runs, found.lost))
    runs, lost = by_log
    return replace(found, runs=runs, lost=lost, lost_objects=sorted(found.lost_objects, key=repr))


def test_objects_alone_tell_what_the_metadata_tells(storage: RemoteWalStorageManager) -> None:
    leader = Leader(storage, 1)
    uploads = [leader.upload(records(ORDERS, 0, 0, 4)), leader.upload(records(ORDERS, 1, 5, 9))]

    by_objects = from_objects(storage, None)
    by_metadata = _found(storage, *uploads)

    assert set(by_objects.runs[ORDERS]) == set(by_metadata.runs[ORDERS])
    assert by_objects.objects == by_metadata.objects == 2
    plan = by_objects.log_runs(ORDERS).plan(PlanRules())
    assert (plan.end_offset, plan.leader_epochs) == (10, (EpochStart(0, 0), EpochStart(1, 5)))


def test_an_upload_that_was_never_published_is_taken(storage: RemoteWalStorageManager) -> None:
    leader = Leader(storage, 1)
    published, _unpublished = leader.upload(records(ORDERS, 0, 0, 4)), leader.upload(records(ORDERS, 0, 5, 9))

    inventory = _found(storage, published)

    assert inventory.unpublished_objects == 1
    assert inventory.log_runs(ORDERS).plan(PlanRules()).end_offset == 10


@pytest.mark.parametrize(("begins", "start"), [((8,), 8), ((8, 0), 0), ((), 0)])
def test_an_upload_that_was_never_published_hides_nothing_behind_where_the_logs_upload_began(
    storage: RemoteWalStorageManager, begins: tuple[int, ...], start: int
) -> None:
    """An agent that died stored offsets 0 to 4 and told nobody; its successor began with the active segment, at 8."""
    Leader(storage, 1).upload(records(ORDERS, 0, 0, 4))
    store = _told(Leader(storage, 2).upload(records(ORDERS, 1, 8, 12)))
    gaps = tuple(DeclaredGap(ORDERS, 0, begin, 1, GapReason.BEFORE_UPLOAD) for begin in begins)
    store.apply(RemoteWalGapDeclaration(2, 1, 0, gaps, 0))

    inventory = from_metadata(store, ArchiveStore(), storage, None)
    plan = inventory.log_runs(ORDERS).plan(PlanRules(before_upload=tuple(inventory.before_upload.get(ORDERS, ()))))

    assert (plan.start_offset, plan.end_offset) == ((8, 13) if start else (0, 5))
    assert plan.gap == (None if start else Gap(5, 8))


def test_what_a_log_has_lost_and_objects_hold_is_no_part_of_it(storage: RemoteWalStorageManager) -> None:
    """The broker led again after a power cut, from offset 5 on, and wrote one more record."""
    leader = Leader(storage, 1)
    uploads = [leader.upload(records(ORDERS, 0, first, first + 4)) for first in (0, 5)]
    loss = DeclaredGap(ORDERS, 5, 10, 2, GapReason.LOST_LOCALLY)

    inventory = _found(storage, *uploads, RemoteWalGapDeclaration(1, 1, 0, (loss,), 0))

    assert inventory.held == {ORDERS: 1}
    assert inventory.log_runs(ORDERS).plan(PlanRules()).end_offset == 5
    assert ORDERS not in inventory.declared_gaps


def test_what_an_unclean_election_may_have_brought_back_is_told_and_left_out(storage: RemoteWalStorageManager) -> None:
    """The log may have epoch 0's records again up to 10, or others of epoch 2, which nobody stored."""
    stored = [
        Leader(storage, 1).upload(records(ORDERS, 0, 0, 9)),
        Leader(storage, 2).upload(records(ORDERS, 3, 10, 14)),
    ]
    loss = DeclaredGap(ORDERS, 5, 10, 2, GapReason.LOST_LOCALLY)

    inventory = _found(storage, *stored, RemoteWalGapDeclaration(1, 1, 0, (loss,), 0))

    assert inventory.held == {ORDERS: 1}
    plan = inventory.log_runs(ORDERS).plan(PlanRules())
    assert (plan.end_offset, plan.gap) == (5, Gap(5, 10))


def test_an_unpublished_upload_of_what_a_log_has_lost_is_no_part_of_it(storage: RemoteWalStorageManager) -> None:
    """Nobody can name it, and what the lost records' epoch had in their place is left out."""
    published = Leader(storage, 1).upload(records(ORDERS, 0, 0, 4)), Leader(storage, 2).upload(records(ORDERS, 1, 5, 9))
    Leader(storage, 3).upload(records(ORDERS, 0, 3, 9))
    Leader(storage, 4).upload(records(ORDERS, 0, 10, 14))  # behind all that the leader knew of
    loss = DeclaredGap(ORDERS, 5, 10, 2, GapReason.LOST_LOCALLY)

    inventory = _found(storage, *published, RemoteWalGapDeclaration(1, 1, 0, (loss,), 0))

    assert inventory.unpublished_objects == 2
    plan = inventory.log_runs(ORDERS).plan(PlanRules())
    assert (plan.end_offset, plan.gap) == (5, None)


def test_an_object_that_the_store_has_lost_is_named_and_ends_the_log(storage: RemoteWalStorageManager) -> None:
    leader = Leader(storage, 1)
    uploads = [leader.upload(records(ORDERS, 0, 5 * number, 5 * number + 4)) for number in range(3)]
    ask(storage.delete_log_segment_data(uploads[1].combined_segment_id))

    inventory = _found(storage, *uploads)

    assert [lost.object_id for lost in inventory.lost_objects] == [uploads[1].combined_segment_id]
    assert inventory.log_runs(ORDERS).plan(PlanRules()).gap == Gap(5, 10)


def test_what_is_being_deleted_counts_for_a_recovery_while_it_is_there(storage: RemoteWalStorageManager) -> None:
    leader = Leader(storage, 1)
    kept, going = leader.upload(records(ORDERS, 0, 0, 4)), leader.upload(records(ORDERS, 0, 5, 9))
    deletion = RemoteWalCombinedLogSegmentMetadata(
        going.combined_segment_id, (), RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 9
    )

    def end(*, is_recovery: bool) -> int:
        inventory = _found(storage, kept, going, deletion, is_recovery=is_recovery)
        assert not inventory.lost_objects
        return inventory.log_runs(ORDERS).plan(PlanRules()).end_offset

    assert (end(is_recovery=False), end(is_recovery=True)) == (5, 10)
    ask(storage.delete_log_segment_data(going.combined_segment_id))
    assert end(is_recovery=True) == 5


@pytest.mark.parametrize(("new_epoch", "epochs"), [(1, (EpochStart(0, 0), EpochStart(1, 5))), (3, (EpochStart(0, 0),))])
def test_records_declared_dead_are_left_out_and_the_next_epoch_begins_there(
    storage: RemoteWalStorageManager, new_epoch: int, epochs: tuple[EpochStart, ...]
) -> None:
    upload = Leader(storage, 1).upload(records(ORDERS, 0, 0, 9))
    [entry] = upload.entries
    dead = RemoteLogSegmentMetadataEntry(ORDERS, 0, 5, 9, entry.start_file_position, entry.end_file_position, 0)
    declared = RemoteWalLogSegmentMetadataUpdate(upload.combined_segment_id, (dead,), 2, new_epoch, 10)

    inventory = _found(storage, upload, declared)

    plan = inventory.log_runs(ORDERS).plan(PlanRules())
    assert (plan.end_offset, plan.gap) == (5, None)
    assert plan.leader_epochs == epochs


def _declared_dead(
    upload: RemoteWalCombinedLogSegmentMetadata, dead_from: int, by_epoch: int, declared_ms: int = 10
) -> RemoteWalLogSegmentMetadataUpdate:
    [entry] = upload.entries
    return RemoteWalLogSegmentMetadataUpdate(
        upload.combined_segment_id, (replace(entry, first_offset=dead_from),), 2, by_epoch, declared_ms
    )


def _deletion(
    storage: RemoteWalStorageManager, upload: RemoteWalCombinedLogSegmentMetadata
) -> RemoteWalCombinedLogSegmentMetadata:
    ask(storage.delete_log_segment_data(upload.combined_segment_id))
    return RemoteWalCombinedLogSegmentMetadata(
        upload.combined_segment_id, (), RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, 20
    )


@pytest.fixture
def restored_to_8(storage: RemoteWalStorageManager) -> list[Published]:
    """What is told after a recovery to a point in time, whose log ends at 8, by the leader of epoch 2: between losing
    its leader and having one again the partition had none, in epoch 1. What is dead as a whole is deleted.
    """
    leader = Leader(storage, 1)
    kept, dead = leader.upload(records(ORDERS, 0, 0, 9)), leader.upload(records(ORDERS, 0, 10, 14))
    return [kept, dead, _declared_dead(kept, 8, 2), _declared_dead(dead, 10, 2), _deletion(storage, dead)]


@pytest.mark.parametrize("loss", [None, DeclaredGap(ORDERS, 4, 20, 3, GapReason.LOST_LOCALLY)])
def test_objects_alone_do_not_bring_back_what_a_snapshot_knows_as_dead(
    storage: RemoteWalStorageManager, restored_to_8: list[Published], loss: DeclaredGap | None
) -> None:
    store = _told(*restored_to_8)
    gaps = (DeclaredGap(ORDERS, 20, 30, 4, GapReason.RETENTION), *([loss] if loss else []))
    store.apply(RemoteWalGapDeclaration(1, 1, 0, gaps, 30))

    inventory = from_objects(storage, None, snapshot=NewestSnapshot(store.image()))

    plan = inventory.log_runs(ORDERS).plan(PlanRules())
    assert (plan.end_offset, plan.gap) == (4 if loss else 8, None)
    assert inventory.declared_gaps == {ORDERS: [gaps[0]]}
    assert from_objects(storage, None).log_runs(ORDERS).plan(PlanRules()).end_offset == 10


def test_an_unpublished_upload_behind_a_declared_end_is_the_logs_because_only_clocks_tell_which_was_first(
    storage: RemoteWalStorageManager,
) -> None:
    leader = Leader(storage, 1)
    kept = leader.upload(records(ORDERS, 0, 0, 9))
    leader.upload(records(ORDERS, 0, 5, 19))

    for declared_ms in (0, 10**15):
        inventory = _found(storage, kept, _declared_dead(kept, 8, 2, declared_ms))
        assert inventory.log_runs(ORDERS).plan(PlanRules()).end_offset == 20
        assert inventory.unpublished_objects == 1


def test_what_is_written_behind_a_restored_logs_end_is_the_log(
    storage: RemoteWalStorageManager, restored_to_8: list[Published]
) -> None:
    later = Leader(storage, 1, since_ms=30)
    published = later.upload(records(ORDERS, 2, 8, 16))
    later.upload(records(ORDERS, 2, 17, 18))

    inventory = _found(storage, *restored_to_8, published)

    plan = inventory.log_runs(ORDERS).plan(PlanRules())
    assert (plan.end_offset, plan.gap) == (19, None)
    assert plan.leader_epochs == (EpochStart(0, 0), EpochStart(2, 8))


def test_a_second_point_in_time_before_the_first_one_counts(
    storage: RemoteWalStorageManager, restored_to_8: list[Published]
) -> None:
    kept = restored_to_8[0]
    assert isinstance(kept, RemoteWalCombinedLogSegmentMetadata)
    between = Leader(storage, 1, since_ms=30).upload(records(ORDERS, 2, 8, 16))
    again = [_declared_dead(kept, 3, 4, 50), _declared_dead(between, 8, 4, 50)]

    inventory = _found(storage, *restored_to_8, between, *again)

    plan = inventory.log_runs(ORDERS).plan(PlanRules())
    assert (plan.end_offset, plan.gap, plan.leader_epochs) == (3, None, (EpochStart(0, 0),))


def test_what_an_unclean_election_brought_back_and_was_uploaded_anew_is_the_log(
    storage: RemoteWalStorageManager,
) -> None:
    old = Leader(storage, 1).upload(records(ORDERS, 0, 0, 9))
    declared = _declared_dead(old, 5, by_epoch=1)
    brought_back = Leader(storage, 3, since_ms=30)
    anew = brought_back.upload(records(ORDERS, 0, 5, 7))
    brought_back.upload(records(ORDERS, 0, 8, 9))  # not published

    inventory = _found(storage, old, declared, anew)

    plan = inventory.log_runs(ORDERS).plan(PlanRules())
    assert (plan.end_offset, plan.gap, plan.leader_epochs) == (10, None, (EpochStart(0, 0),))


def test_an_archive_object_does_not_bring_back_what_follows_a_restored_logs_end_that_it_was_known_with(
    storage: RemoteWalStorageManager, restored_to_8: list[Published]
) -> None:
    archive, archived = MemoryArchive(), ArchiveStore()
    data = records(ORDERS, 0, 0, 14)[3]
    opened = OpenArchiveObject("cluster-1", ArchiveObjectId(ORDERS, 0, 14, CombinedSegmentId(2, 1, 1)), 5, 10**6)
    opened.append(0, 14, memoryview(data), scan_batches(data, 0, len(data)))
    sealed = opened.seal()
    object_id = ArchiveObjectId(ORDERS, 0, 14, CombinedSegmentId(2, 1, 1))
    ask(archive.write(object_id, sealed))
    archived.apply(ArchiveObjectCommitted(object_id, 1, sealed.entries, sealed.size_bytes, 5))

    inventory = _found(storage, *restored_to_8, archived=archived, archive=archive)

    assert len(inventory.runs[ORDERS]) == 2
    assert inventory.log_runs(ORDERS).plan(PlanRules()).end_offset == 8
    snapshot = _told(*restored_to_8).image()
    for image, end in ((with_archive(snapshot, archived), 8), (with_archive(snapshot, ArchiveStore()), 15)):
        assert (
            from_objects(storage, archive, snapshot=NewestSnapshot(image)).log_runs(ORDERS).plan(PlanRules()).end_offset
            == end
        )


def test_damaged_and_foreign_objects_are_told_and_passed_over(storage: RemoteWalStorageManager, tmp_path: Path) -> None:
    leader = Leader(storage, 1)
    leader.upload(records(ORDERS, 0, 0, 4))
    damaged = leader.upload(records(ORDERS, 0, 5, 9))
    path = tmp_path / "cluster-1" / "1" / f"{1:012x}" / f"{damaged.combined_segment_id.sequence:012x}.rwal"
    path.write_bytes(path.read_bytes()[:-3])
    (tmp_path / "cluster-1" / "somebody-elses.txt").write_text("hello")

    inventory = from_objects(storage, None)

    assert [item.key for item in inventory.unreadable] == [str(path.relative_to(tmp_path))]
    assert inventory.foreign_objects == 1
    assert inventory.log_runs(ORDERS).plan(PlanRules()).end_offset == 5


def test_another_clusters_objects_are_not_seen(storage: RemoteWalStorageManager, tmp_path: Path) -> None:
    Leader(storage, 1).upload(records(ORDERS, 0, 0, 4))
    other = load_storage_manager(StorageSpec(CLASS, None, {"directory": str(tmp_path)}), StorageContext("cluster-2", 1))

    assert not from_objects(other, None).runs
    other.close()


def _bytes_of_finished(objects: int) -> int:
    """What a store for one command holds of a snapshot with so many objects, whose portions stay in the snapshot."""
    entry = RemoteLogSegmentMetadataEntry(CLICKS, 0, 0, 9, 0, 100, 0)
    known = PublishedSegment.of(
        RemoteWalCombinedLogSegmentMetadata(CombinedSegmentId(1, 1, 0), (entry,), FINISHED, 1, 200)
    )
    told, store = RemoteWalMetadataStore(), SparseStore()
    told.apply_all(
        (known._replace(combined_segment_id=CombinedSegmentId(1, 1, one)), (0, one)) for one in range(objects)
    )
    image = read_image(b"".join(snapshot_chunks(told.image())))
    tracemalloc.start()
    try:
        store.restore(image)
        store.settle()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_each_object_that_was_finished_before_the_snapshot_takes_some_bytes() -> None:
    """So a recovery may look past millions of objects that hold nothing of its own logs."""
    _bytes_of_finished(1)  # what is imported and made once does not count
    few, many = _bytes_of_finished(1000), _bytes_of_finished(9000)
    assert many - few <= 3 * 8000
