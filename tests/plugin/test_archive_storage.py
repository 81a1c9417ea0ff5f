"""What every backend keeps as an archive."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kafka_log.record_batch import scan_batches
from kafka_log.topic_partition import TopicId, TopicIdPartition
from plugin.archive_storage import ArchiveStorage, StoredArchiveObject, load_archive_storage
from plugin.errors import (
    RemoteResourceNotFoundError,
    RemoteSegmentConflictError,
    RemoteSegmentCorruptError,
    RemoteStorageConfigError,
    RemoteStorageError,
)
from plugin.format.archive_object import OpenArchiveObject
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.format.combined_segment import SealedCombinedSegment
from plugin.loading import StorageSpec
from plugin.remote_wal_storage_manager import StorageContext
from plugin.segment_metadata import CombinedSegmentId
from plugin.store_loop import ask, ask_each
from tests.kafka_log.batches import batches
from tests.plugin.storage_backends import Backend, segment

ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 3)


def archive_object(
    cluster_id: str, sequence: int = 0, first: int = 10, partition: TopicIdPartition = ORDERS, payload: bytes = b"x"
) -> tuple[ArchiveObjectId, SealedCombinedSegment]:
    raw = batches(5, first, records=2, payload=payload)
    object_id = ArchiveObjectId(partition, first, first + 9, CombinedSegmentId(1, 7, sequence))
    building = OpenArchiveObject(cluster_id, object_id, 17, 150)
    building.append(0, first + 9, memoryview(raw), scan_batches(raw, 0, len(raw)))
    return object_id, building.seal()


def test_an_archive_object_is_read_listed_and_deleted(backend: Backend) -> None:
    archive = ArchiveStorage(backend.manager())
    object_id, sealed = archive_object(backend.cluster_id)
    ask(archive.write(object_id, sealed))
    ask(archive.write(object_id, sealed))  # an unknown outcome, tried again
    run = sealed.entries[1]
    whole = b"".join(sealed.chunks)
    assert (
        ask(archive.fetch(object_id, run.start_file_position, run.end_file_position))
        == (whole[run.start_file_position : run.end_file_position])
    )
    (stored,) = ask_each(archive.list())
    assert (stored.object_id, stored.size_bytes) == (object_id, sealed.size_bytes)
    assert ask(archive.fetch_runs(stored)) == sealed.entries
    ask(archive.delete(object_id))
    ask(archive.delete(object_id))
    assert list(ask_each(archive.list())) == []
    with pytest.raises(RemoteResourceNotFoundError):
        ask(archive.fetch(object_id, 0, 1))


def test_other_bytes_under_the_same_id_are_a_conflict(backend: Backend) -> None:
    archive = ArchiveStorage(backend.manager())
    ask(archive.write(*archive_object(backend.cluster_id)))
    with pytest.raises(RemoteSegmentConflictError):
        ask(archive.write(*archive_object(backend.cluster_id, payload=b"other")))


def test_archive_and_combined_segments_share_a_bucket_and_never_meet(backend: Backend) -> None:
    manager = backend.manager()
    archive = ArchiveStorage(manager)
    other = ORDERS._replace(partition=30)
    update = ask(manager.copy_log_segment_data(*segment(0, [b"abc"])))
    ids = [
        archive_object(backend.cluster_id, n, partition=partition)
        for n, partition in enumerate((ORDERS, ORDERS, other))
    ]
    for object_id, sealed in ids:
        ask(archive.write(object_id, sealed))
    assert [stored.combined_segment_id for stored in ask_each(manager.list_log_segments())] == [
        update.combined_segment_id
    ]
    assert manager.request_counts.foreign_objects == 0
    assert {stored.object_id for stored in ask_each(archive.list(ORDERS))} == {ids[0][0], ids[1][0]}
    assert [stored.object_id for stored in ask_each(archive.list(other))] == [ids[2][0]]


def test_an_object_that_is_not_what_its_key_says_is_corrupt(backend: Backend) -> None:
    archive = ArchiveStorage(backend.manager())
    object_id, sealed = archive_object(backend.cluster_id)
    for wrong in (
        object_id._replace(last_offset=20),
        object_id._replace(writer_id=CombinedSegmentId(1, 7, 9)),
        object_id._replace(topic_id_partition=ORDERS._replace(partition=1)),
    ):
        ask(archive.write(wrong, sealed))
        (stored,) = ask_each(archive.list())
        with pytest.raises(RemoteSegmentCorruptError):
            ask(archive.fetch_runs(stored))
        ask(archive.delete(wrong))


def test_an_object_of_another_cluster_is_corrupt(backend: Backend) -> None:
    archive = ArchiveStorage(backend.manager())
    object_id, sealed = archive_object("elsewhere")
    ask(archive.write(object_id, sealed))
    with pytest.raises(RemoteSegmentCorruptError, match="elsewhere"):
        ask(
            archive.fetch_runs(StoredArchiveObject(object_id, next(ask_each(archive.list())).key, sealed.size_bytes, 0))
        )


def test_an_archive_is_loaded_by_its_class_name(tmp_path: Path) -> None:
    context = StorageContext("cluster", 1)
    archive = load_archive_storage(
        StorageSpec("plugin.local_directory.LocalWalStorageManager", None, {"directory": str(tmp_path)}), context
    )
    ask(archive.write(*archive_object("cluster")))
    assert [stored.object_id.first_offset for stored in ask_each(archive.list())] == [10]
    archive.close()
    with pytest.raises(RemoteStorageConfigError, match="archive needs keys"):
        load_archive_storage(StorageSpec("plugin.wrappers.guarded_storage.GuardedStorageManager", None, {}), context)


def test_whatever_a_backend_raises_fails_the_one_call(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = backend.manager()
    archive = ArchiveStorage(manager)
    object_id, sealed = archive_object(backend.cluster_id)
    ask(archive.write(object_id, sealed))
    (stored,) = ask_each(archive.list())

    def broken(*_: object) -> None:
        raise KeyError("a record's bytes")

    for name in ("put", "get", "delete", "list"):
        monkeypatch.setattr(manager.requests, name, broken)
    calls: list[Callable[[], object]] = [
        lambda: ask(archive.write(object_id, sealed)),
        lambda: ask(archive.fetch(object_id, 0, 1)),
        lambda: ask(archive.fetch_runs(stored)),
        lambda: ask(archive.delete(object_id)),
        lambda: list(ask_each(archive.list())),
    ]
    for call in calls:
        with pytest.raises(RemoteStorageError) as caught:
            call()
        assert caught.value.label == "defect"
        assert "record" not in str(caught.value)
