"""What is stored: by the metadata topic and by the objects alone, in a real store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.archive_store import ArchiveStore
from metadata_topic.records import PublishedSegment, RemoteWalLogSegmentMetadataUpdate
from metadata_topic.states import FINISHED
from plugin.loading import load_storage_manager
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext
from plugin.segment_metadata import (
    UNKNOWN_POSITION,
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from recovery.inventory import from_metadata, from_objects
from recovery.log_plan import EpochStart, Gap, PlanRules
from recovery.metadata_notes import NotedMetadata
from tests.recovery.stored_objects import Records, records

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)
CLASS = "plugin.local_directory.LocalWalStorageManager"


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[RemoteWalStorageManager]:
    manager = load_storage_manager(CLASS, None, {"directory": str(tmp_path)}, StorageContext("cluster-1", 1))
    yield manager
    manager.close()


class Leader:
    """Uploads, and publishes to a store."""

    def __init__(self, storage: RemoteWalStorageManager, broker_id: int) -> None:
        self._storage = storage
        self._broker_id = broker_id
        self._sequence = 0

    def upload(self, *parts: Records) -> RemoteWalCombinedLogSegmentMetadata:
        """The object's metadata, as it would be published."""
        self._sequence += 1
        segment_id = CombinedSegmentId(self._broker_id, 1, self._sequence)
        entries = tuple(
            RemoteLogSegmentMetadataEntry(
                partition, epoch, first, first + data.count(b"payload") - 1, UNKNOWN_POSITION, UNKNOWN_POSITION, 0
            )
            for partition, epoch, first, data in parts
        )
        started = RemoteWalCombinedLogSegmentMetadata(
            segment_id, entries, RemoteLogSegmentState.COPY_SEGMENT_STARTED, self._sequence
        )
        update = self._storage.copy_log_segment_data(started, [data for _, _, _, data in parts])
        return RemoteWalCombinedLogSegmentMetadata(
            segment_id, update.entries, FINISHED, self._sequence, update.size_bytes, update.custom_metadata
        )


def _noted(*published: RemoteWalCombinedLogSegmentMetadata | RemoteWalLogSegmentMetadataUpdate) -> NotedMetadata:
    noted = NotedMetadata()
    noted.store.apply_all(
        (PublishedSegment.of(one) if isinstance(one, RemoteWalCombinedLogSegmentMetadata) else one, (0, number))
        for number, one in enumerate(published)
    )
    return noted


def test_objects_alone_tell_what_the_metadata_tells(storage: RemoteWalStorageManager) -> None:
    leader = Leader(storage, 1)
    uploads = [leader.upload(records(ORDERS, 0, 0, 4)), leader.upload(records(ORDERS, 1, 5, 9))]

    by_objects = from_objects(storage, None)
    by_metadata = from_metadata(_noted(*uploads), ArchiveStore(), storage, None)

    assert set(by_objects.runs[ORDERS]) == set(by_metadata.runs[ORDERS])
    assert by_objects.objects == by_metadata.objects == 2
    plan = by_objects.log_runs(ORDERS).plan(PlanRules())
    assert (plan.end_offset, plan.leader_epochs) == (10, (EpochStart(0, 0), EpochStart(1, 5)))


def test_an_upload_that_was_never_published_is_taken(storage: RemoteWalStorageManager) -> None:
    leader = Leader(storage, 1)
    published, _unpublished = leader.upload(records(ORDERS, 0, 0, 4)), leader.upload(records(ORDERS, 0, 5, 9))

    inventory = from_metadata(_noted(published), ArchiveStore(), storage, None)

    assert inventory.unpublished_objects == 1
    assert inventory.log_runs(ORDERS).plan(PlanRules()).end_offset == 10


def test_an_object_that_the_store_has_lost_is_named_and_ends_the_log(storage: RemoteWalStorageManager) -> None:
    leader = Leader(storage, 1)
    uploads = [leader.upload(records(ORDERS, 0, 5 * number, 5 * number + 4)) for number in range(3)]
    storage.delete_log_segment_data(uploads[1].combined_segment_id)

    inventory = from_metadata(_noted(*uploads), ArchiveStore(), storage, None)

    assert inventory.lost_objects == [str(uploads[1].combined_segment_id)]
    assert inventory.log_runs(ORDERS).plan(PlanRules()).gap == Gap(5, 10)


def test_what_is_to_be_deleted_counts_for_nothing(storage: RemoteWalStorageManager) -> None:
    leader = Leader(storage, 1)
    kept, going = leader.upload(records(ORDERS, 0, 0, 4)), leader.upload(records(ORDERS, 0, 5, 9))
    deletion = RemoteWalCombinedLogSegmentMetadata(
        going.combined_segment_id, (), RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 9
    )

    inventory = from_metadata(_noted(kept, going, deletion), ArchiveStore(), storage, None)

    assert inventory.log_runs(ORDERS).plan(PlanRules()).end_offset == 5


@pytest.mark.parametrize(("new_epoch", "epochs"), [(1, (EpochStart(0, 0), EpochStart(1, 5))), (3, (EpochStart(0, 0),))])
def test_records_declared_dead_are_left_out_and_the_next_epoch_begins_there(
    storage: RemoteWalStorageManager, new_epoch: int, epochs: tuple[EpochStart, ...]
) -> None:
    upload = Leader(storage, 1).upload(records(ORDERS, 0, 0, 9))
    [entry] = upload.entries
    dead = RemoteLogSegmentMetadataEntry(ORDERS, 0, 5, 9, entry.start_file_position, entry.end_file_position, 0)
    declared = RemoteWalLogSegmentMetadataUpdate(upload.combined_segment_id, (dead,), 2, new_epoch, 10)

    inventory = from_metadata(_noted(upload, declared), ArchiveStore(), storage, None)

    plan = inventory.log_runs(ORDERS).plan(PlanRules())
    assert (plan.end_offset, plan.gap) == (5, None)
    assert plan.leader_epochs == epochs


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
    other = load_storage_manager(CLASS, None, {"directory": str(tmp_path)}, StorageContext("cluster-2", 1))

    assert not from_objects(other, None).runs
    other.close()
