"""What a living agent has stored and the topic lacks is known of, though nobody tells."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.local_directory import LocalWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata
from plugin.store_loop import ask, ask_each
from rlm.lifecycle.unpublished_segments import UnpublishedSegments

STARTED, FINISHED = RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
SINCE_MS = 5_000


class Rig:
    def __init__(self, storage: LocalWalStorageManager) -> None:
        self.storage, self.store = storage, RemoteWalMetadataStore()
        self.unregistered: list[int] = []
        self.untold = UnpublishedSegments(storage, self.store, lambda: self.unregistered)

    def registered(self, broker_id: int) -> None:
        self.store.apply(RemoteWalNodeRegistration(broker_id, 7, broker_id, 0))

    def stored(self, broker_id: int, sequence: int) -> CombinedSegmentId:
        segment_id = CombinedSegmentId(broker_id, 7, sequence)
        ask(self.storage.copy_log_segment_data(RemoteWalCombinedLogSegmentMetadata(segment_id, (), STARTED, 0), []))
        return segment_id

    def told(self, segment_id: CombinedSegmentId, state: RemoteLogSegmentState, at_ms: int) -> None:
        self.store.apply(RemoteWalCombinedLogSegmentMetadata(segment_id, (), state, at_ms, 100))

    @property
    def found(self) -> int:
        return len(self.untold.stored_ms(SINCE_MS))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    storage = LocalWalStorageManager()
    storage.configure({"directory": str(tmp_path)}, StorageContext("cluster", 1))
    yield Rig(storage)
    storage.close()


def test_what_has_no_end_in_the_topic_is_found_with_the_time_of_its_storing(rig: Rig) -> None:
    rig.registered(1)
    rig.stored(1, 0)
    rig.told(rig.stored(1, 1), STARTED, 1_000)
    rig.told(rig.stored(1, 2), FINISHED, 1_000)
    rig.told(rig.stored(1, 3), DELETING, 1_000)
    assert rig.found == 2
    listed = {
        one.combined_segment_id.sequence: one.last_modified_ms for one in ask_each(rig.storage.list_log_segments(1))
    }
    assert sorted(rig.untold.stored_ms(SINCE_MS)) == sorted([listed[0], listed[1]])


def test_an_agent_that_told_of_a_later_end_has_told_of_all_before_it(rig: Rig) -> None:
    rig.registered(1)
    rig.stored(1, 0)
    rig.told(rig.stored(1, 1), FINISHED, SINCE_MS)
    assert rig.found == 0


def test_what_another_agent_told_later_tells_nothing_of_this_one(rig: Rig) -> None:
    rig.registered(1)
    rig.registered(2)
    rig.stored(1, 0)
    rig.told(rig.stored(2, 0), FINISHED, SINCE_MS)
    assert rig.found == 1


def test_a_beginning_and_a_deletion_that_are_told_of_later_tell_of_no_end(rig: Rig) -> None:
    rig.registered(1)
    rig.stored(1, 0)
    rig.told(rig.stored(1, 1), DELETING, SINCE_MS)
    rig.told(rig.stored(1, 2), STARTED, SINCE_MS)
    assert rig.found == 2


def test_an_agent_whose_registration_is_not_told_either_is_not_missed(rig: Rig) -> None:
    rig.stored(3, 0)
    assert rig.found == 0
    rig.unregistered = [3]
    assert rig.found == 1
