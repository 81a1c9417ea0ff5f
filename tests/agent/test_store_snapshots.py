"""The metadata store starts from a snapshot where there is one in time, and is saved when it has changed."""

import asyncio
from collections.abc import Iterator

import pytest

from agent.late_storage import LateStorageManager
from agent.store_snapshots import StoreSnapshots
from metadata_topic.archive_snapshot import EXTRA_NAME
from metadata_topic.archive_store import ArchiveStore
from metadata_topic.snapshot_keeper import SnapshotKeeper
from metadata_topic.states import FINISHED
from metadata_topic.store import RemoteWalMetadataStore
from plugin.blob_storage import StoredBlob
from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata
from tests.rlm.memory_storage import MemoryStorage

SEGMENT = CombinedSegmentId(1, 7, 0)


class MemoryStorageWithBlobs(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.blobs: dict[str, bytes] = {}

    def put_blob(self, name: str, content: bytes) -> None:
        self.blobs[name] = content

    def get_blob(self, blob: StoredBlob) -> bytes:
        return self.blobs[blob.name]

    def list_blobs(self, directory: str) -> Iterator[StoredBlob]:
        for name, content in list(self.blobs.items()):
            if name.startswith(directory + "/"):
                yield StoredBlob(name, len(content))

    def delete_blob(self, name: str) -> None:
        del self.blobs[name]


def _snapshots(store: RemoteWalMetadataStore, storage: LateStorageManager, cluster_id: str = "c") -> StoreSnapshots:
    times = iter(range(1000, 2000))
    keeper = SnapshotKeeper(storage, cluster_id, 1, 7)
    return StoreSnapshots(store, ArchiveStore(), keeper, storage, lambda: next(times), 0.01)


def _store(segments: int) -> RemoteWalMetadataStore:
    store = RemoteWalMetadataStore()
    for n in range(segments):
        segment_id = SEGMENT._replace(sequence=n)
        store.apply(RemoteWalCombinedLogSegmentMetadata(segment_id, (), FINISHED, 5, 10), (0, n))
    return store


def test_what_was_saved_is_what_the_next_agent_starts_from() -> None:
    storage = LateStorageManager()
    storage.arrived(MemoryStorageWithBlobs())
    assert _snapshots(_store(3), storage).save_if_changed()
    image = _snapshots(RemoteWalMetadataStore(), storage).load()
    assert image is not None
    assert image.progress == {0: 3}
    assert EXTRA_NAME in image.extras
    assert [segment.combined_segment_id.sequence for segment in image.segments] == [0, 1, 2]


def test_only_a_store_that_has_read_on_is_saved() -> None:
    storage = LateStorageManager()
    storage.arrived(MemoryStorageWithBlobs())
    store = _store(1)
    snapshots = _snapshots(store, storage)
    assert snapshots.save_if_changed()
    assert not snapshots.save_if_changed()
    store.apply(RemoteWalCombinedLogSegmentMetadata(SEGMENT._replace(sequence=9), (), FINISHED, 5, 10), (0, 9))
    assert snapshots.save_if_changed()
    restarted = _snapshots(RemoteWalMetadataStore(), storage)
    image = restarted.load()
    assert image is not None
    restarted._store.restore(image)
    assert not restarted.save_if_changed()


def test_a_storage_that_is_not_there_in_time_is_done_without() -> None:
    storage = LateStorageManager()
    snapshots = _snapshots(_store(1), storage)
    assert snapshots.load() is None
    assert not snapshots.save_if_changed()
    assert snapshots.counters == {}


@pytest.mark.parametrize("manager", [MemoryStorage(), MemoryStorageWithBlobs()])
def test_a_storage_without_blobs_or_without_a_snapshot_is_done_without(manager: MemoryStorage) -> None:
    storage = LateStorageManager()
    storage.arrived(manager)
    assert _snapshots(_store(1), storage).load() is None
    assert _snapshots(_store(1), storage).save_if_changed() is isinstance(manager, MemoryStorageWithBlobs)


@pytest.mark.parametrize("is_read", [True, False])
async def test_it_is_saved_at_the_interval_once_the_topic_was_read(is_read: bool) -> None:
    storage, manager = LateStorageManager(), MemoryStorageWithBlobs()
    storage.arrived(manager)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await _snapshots(_store(1), storage).run(600.0, lambda: is_read, sleep)
    assert slept == [600.0] * 3
    assert len(manager.blobs) == is_read
