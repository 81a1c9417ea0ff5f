"""A metadata topic of which retention cut the beginning, read by an agent that has no snapshot."""

from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.records.records import RemoteWalNodeRegistration, RemoteWalTopicRebuilt
from metadata_topic.records.topic_doubt import TopicDoubt
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper
from metadata_topic.store.snapshots.store_snapshots import StoreSnapshots, TopicMemory
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.topic_continuity import RememberedTopic, TopicContinuity
from metadata_topic.topic.reading_positions import ReadingPositions
from metadata_topic.topic.topic_consumer import TopicState
from plugin.wrappers.guarded_storage import GuardedStorageManager
from tests.metadata_topic.test_store_snapshots import MemoryStorageWithBlobs

TOPIC = TopicId(b"i" * 16)


class CutTopic:
    """A consumer of two partitions, of which the second lost its first 5,000 records."""

    def __init__(self, begin: int = 5000) -> None:
        self.begin = begin

    def partition_count(self, _topic: str, _timeout_s: float) -> int:
        return 2

    def end_offsets(self, _topic: str, partitions: Collection[int], _timeout_s: float) -> dict[int, int]:
        return dict.fromkeys(partitions, 9000)

    def begin_offsets(self, _topic: str, partitions: Collection[int], _timeout_s: float) -> dict[int, int]:
        return {partition: partition * self.begin for partition in partitions}

    def state(self, _topic: str) -> TopicState:
        return TopicState(TOPIC, {})

    def ends_of_epochs(self, _topic: str, _asked: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
        return {}

    def assign(self, _topic: str, _positions: Mapping[int, int]) -> None: ...


def taken_up(continuity: TopicContinuity, positions: Mapping[int, int] = {}, begin: int = 5000) -> ReadingPositions:
    reading = ReadingPositions("metadata", 1, 1)
    reading.continuity = continuity
    reading.positions.update(positions)
    reading.take_up(CutTopic(begin))  # type: ignore[arg-type]
    return reading


def test_who_reads_it_without_a_snapshot_does_not_take_it_for_whole() -> None:
    continuity = TopicContinuity()
    assert taken_up(continuity).positions == {0: 0, 1: 5000}
    assert set(continuity.doubts) == {TopicDoubt.GAP}


@pytest.mark.parametrize(("positions", "begin"), [({0: 10, 1: 5000}, 5000), ({}, 0)])
def test_who_read_all_before_that_or_has_its_beginning_does(positions: dict[int, int], begin: int) -> None:
    continuity = TopicContinuity()
    taken_up(continuity, positions, begin)
    assert not continuity.doubts


def test_while_object_storage_may_still_have_a_snapshot_it_is_waited_for() -> None:
    continuity = TopicContinuity()
    continuity.awaits_snapshot = True
    with pytest.raises(MetadataTopicError, match="no snapshot was loaded yet"):
        taken_up(continuity)
    assert not continuity.doubts
    taken_up(continuity, begin=0)


def test_a_rebuild_that_is_read_again_ends_the_doubt_about_what_was_before_it() -> None:
    continuity = TopicContinuity()
    continuity.remember(RememberedTopic(TOPIC, {}, rebuilt_ms=77))
    taken_up(continuity)
    continuity.rebuilt(RemoteWalTopicRebuilt(TOPIC, 77))
    assert not continuity.doubts


def test_a_store_whose_first_record_is_not_the_topics_first_doubts_it() -> None:
    store = RemoteWalMetadataStore()
    store.apply(RemoteWalNodeRegistration(1, 7, 1, 0), (0, 0))
    store.apply(RemoteWalNodeRegistration(1, 8, 1, 0), (0, 100))  # others' records in between were passed over
    assert not store.topic.doubts
    store.apply(RemoteWalNodeRegistration(2, 8, 2, 0), (1, 9000))
    assert set(store.topic.doubts) == {TopicDoubt.GAP}


def test_a_load_that_fails_is_tried_again_and_not_for_ever(tmp_path: Path) -> None:
    storage = GuardedStorageManager()
    store = RemoteWalMetadataStore()
    keeper = SnapshotKeeper(storage.blobs, "cluster", 1, 7)
    memory = TopicMemory(tmp_path)
    snapshots = StoreSnapshots(store, ArchiveStore(), keeper, storage, lambda: 0, memory, 0.0)
    assert snapshots.load() is None
    assert store.topic.awaits_snapshot, "object storage does not answer"
    storage.arrived(MemoryStorageWithBlobs())
    assert snapshots.load() is None
    assert not store.topic.awaits_snapshot, "it has none"
