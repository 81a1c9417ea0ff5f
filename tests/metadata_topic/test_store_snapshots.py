"""The metadata store starts from a snapshot where there is one in time, and is saved when it has changed."""

import asyncio
from itertools import count
from pathlib import Path

import pytest

from kafka_log.topic_partition import TopicId
from metadata_topic.records.records import RemoteWalTopicRebuilt
from metadata_topic.records.states import FINISHED
from metadata_topic.records.topic_doubt import TopicDoubt
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import EXTRA_NAME
from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper
from metadata_topic.store.snapshots.store_snapshots import FILE_NAME, StoreSnapshots, TopicMemory
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.topic_continuity import RememberedTopic
from plugin.segment_metadata import CombinedSegmentId, RemoteWalCombinedLogSegmentMetadata
from plugin.wrappers.guarded_storage import GuardedStorageManager
from tests.metadata_topic.fake_blobs import FakeBlobs
from tests.rlm.memory_storage import MemoryStorage

SEGMENT = CombinedSegmentId(1, 7, 0)
_TIMES_MS = count(1000)


class MemoryStorageWithBlobs(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.kept = FakeBlobs()

    @property
    def blobs(self) -> FakeBlobs:
        return self.kept


def _snapshots(
    store: RemoteWalMetadataStore, storage: GuardedStorageManager, state_directory: Path = Path("/nowhere")
) -> StoreSnapshots:
    keeper = SnapshotKeeper(storage.blobs, "c", 1, 7)
    memory = TopicMemory(state_directory)
    return StoreSnapshots(store, ArchiveStore(), keeper, storage, lambda: next(_TIMES_MS), memory, 0.01)


def _store(segments: int) -> RemoteWalMetadataStore:
    store = RemoteWalMetadataStore()
    for n in range(segments):
        segment_id = SEGMENT._replace(sequence=n)
        store.apply(RemoteWalCombinedLogSegmentMetadata(segment_id, (), FINISHED, 5, 10), (0, n))
    return store


def test_what_was_saved_is_what_the_next_agent_starts_from() -> None:
    storage = GuardedStorageManager()
    storage.arrived(MemoryStorageWithBlobs())
    assert _snapshots(_store(3), storage).save_if_changed()
    image = _snapshots(RemoteWalMetadataStore(), storage).load()
    assert image is not None
    assert image.progress == {0: 3}
    assert EXTRA_NAME in image.extras
    assert [segment.combined_segment_id.sequence for segment in image.segments] == [0, 1, 2]


def test_only_a_store_that_has_read_on_is_saved() -> None:
    storage = GuardedStorageManager()
    storage.arrived(MemoryStorageWithBlobs())
    store = _store(1)
    snapshots = _snapshots(store, storage)
    assert snapshots.save_if_changed()
    assert not snapshots.save_if_changed()
    store.apply(RemoteWalCombinedLogSegmentMetadata(SEGMENT._replace(sequence=9), (), FINISHED, 5, 10), (0, 9))
    assert snapshots.save_if_changed()
    store_of_the_next = RemoteWalMetadataStore()
    restarted = _snapshots(store_of_the_next, storage)
    image = restarted.load()
    assert image is not None
    store_of_the_next.restore(image)
    assert not restarted.save_if_changed()


def test_a_storage_that_is_not_there_in_time_is_done_without() -> None:
    storage = GuardedStorageManager()
    snapshots = _snapshots(_store(1), storage)
    assert snapshots.load() is None
    assert not snapshots.save_if_changed()
    assert snapshots.counters == {}


@pytest.mark.parametrize("manager", [MemoryStorage(), MemoryStorageWithBlobs()])
def test_a_storage_without_blobs_or_without_a_snapshot_is_done_without(manager: MemoryStorage) -> None:
    storage = GuardedStorageManager()
    storage.arrived(manager)
    assert _snapshots(_store(1), storage).load() is None
    assert _snapshots(_store(1), storage).save_if_changed() is isinstance(manager, MemoryStorageWithBlobs)


@pytest.mark.parametrize("is_read", [True, False])
async def test_it_is_saved_at_the_interval_once_the_topic_was_read(is_read: bool) -> None:
    storage, manager = GuardedStorageManager(), MemoryStorageWithBlobs()
    storage.arrived(manager)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await _snapshots(_store(1), storage).run(600.0, lambda: is_read, sleep)
    assert slept == [600.0] * 3
    assert len(manager.kept.blobs) == is_read


def test_while_the_topic_is_in_doubt_nothing_is_saved_and_the_next_agent_doubts_it_again(tmp_path: Path) -> None:
    storage, manager = GuardedStorageManager(), MemoryStorageWithBlobs()
    storage.arrived(manager)
    store = _store(3)
    assert store.topic.reads(TopicId(b"a" * 16), {0: 3})
    assert _snapshots(store, storage, tmp_path).save_if_changed()
    saved = dict(manager.kept.blobs)

    next_store = RemoteWalMetadataStore()
    snapshots = _snapshots(next_store, storage, tmp_path)
    image = snapshots.load()
    assert image is not None
    next_store.restore(image)
    assert not next_store.topic.reads(TopicId(b"b" * 16), {0: 9})
    next_store.apply(RemoteWalCombinedLogSegmentMetadata(SEGMENT._replace(sequence=9), (), FINISHED, 5, 10), (0, 8))
    assert not snapshots.save_if_changed()
    assert manager.kept.blobs == saved

    later = RemoteWalMetadataStore()
    assert _snapshots(later, GuardedStorageManager(), tmp_path).load() is None  # the store does not answer
    later.topic.reads(TopicId(b"b" * 16), {0: 9})
    assert set(later.topic.doubts) == {TopicDoubt.BEGAN_ANEW}
    later.apply(RemoteWalTopicRebuilt(TopicId(b"b" * 16), 77), (0, 9))
    assert _snapshots(later, storage, tmp_path).save_if_changed()
    assert manager.kept.blobs != saved


def test_a_memory_of_the_topic_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("[]")
    assert TopicMemory(tmp_path).load() is None
    TopicMemory(tmp_path).save(RememberedTopic(None, {3: 7}, 2))
    assert TopicMemory(tmp_path).load() == RememberedTopic(None, {3: 7}, 2)
