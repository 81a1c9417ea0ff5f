"""A gateway's object goes with the last segment that names it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.adopted_records import AdoptionTable, BatchSource, TableLine
from plugin.format.adoption_note import AdoptionNote
from plugin.local_directory import LocalWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext
from plugin.router_object_id import EPOCH_MS, RouterObjectId
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from plugin.store_loop import ask, ask_each
from rlm.lifecycle.expiration import AGE_MS, AdoptedObjects

STARTED, FINISHED = RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING, DELETED = RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
EPOCH = 1000
OLD_MS = (EPOCH + 1) * EPOCH_MS + AGE_MS


def source(number: int) -> RouterObjectId:
    return RouterObjectId(2, 9, EPOCH, number)


def note(*numbers: int) -> bytes:
    lines = [TableLine(112, 0, 600, BatchSource(source(one), b""), 0, bytes(8), bytes(4)) for one in numbers]
    table = AdoptionTable(tuple(lines))
    return AdoptionNote.of(table, table.encode(), 112).encode()


class Rig:
    def __init__(self, storage: LocalWalStorageManager) -> None:
        self.storage, self.store = storage, RemoteWalMetadataStore()
        self.now_ms = OLD_MS
        self.adopted = AdoptedObjects(storage, self.store.find_adopters, lambda: self.now_ms)
        for number in (0, 1, 2):
            ask(storage.blobs.put_blob(source(number).blob_name, b"records"))

    def tell(self, sequence: int, state: RemoteLogSegmentState, custom_metadata: bytes) -> CombinedSegmentId:
        segment_id = CombinedSegmentId(1, 7, sequence)
        self.store.apply(RemoteWalCombinedLogSegmentMetadata(segment_id, (), state, 5, 100, custom_metadata))
        return segment_id

    @property
    def left(self) -> set[str]:
        return {blob.name for blob in ask_each(self.storage.blobs.list_blobs("router"))}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    storage = LocalWalStorageManager()
    storage.configure({"directory": str(tmp_path)}, StorageContext("cluster", 1))
    yield Rig(storage)
    storage.close()


def test_what_may_yet_be_adopted_stays(rig: Rig) -> None:
    first = rig.tell(0, FINISHED, note(0))
    rig.now_ms = OLD_MS - 1
    rig.adopted.segment_deleted(first, note(0))
    assert source(0).blob_name in rig.left


def test_a_segment_that_adopts_nothing_takes_nothing_along(rig: Rig) -> None:
    rig.adopted.segment_deleted(rig.tell(0, FINISHED, b"bucket"), b"bucket")
    assert len(rig.left) == 3


def test_who_names_what_does_not_depend_on_the_order_of_records(rig: Rig) -> None:
    segment_id = rig.tell(0, FINISHED, note(0))
    rig.tell(0, STARTED, b"")
    assert rig.store.find_adopters(source(0)) == {segment_id}
    rig.tell(1, STARTED, b"")
    assert rig.store.find_adopters(source(1)) == frozenset()
    rig.tell(1, FINISHED, note(1))
    assert rig.store.find_adopters(source(1)) == {CombinedSegmentId(1, 7, 1)}
    rig.tell(0, DELETED, b"")
    rig.tell(0, FINISHED, note(0))
    assert rig.store.find_adopters(source(0)) == frozenset()


def test_a_restored_store_knows_it_too(rig: Rig) -> None:
    segment_id = rig.tell(0, FINISHED, note(0))
    restored, joined = RemoteWalMetadataStore(), RemoteWalMetadataStore()
    restored.restore(rig.store.image())
    joined.join(rig.store.image())
    assert restored.find_adopters(source(0)) == joined.find_adopters(source(0)) == {segment_id}
