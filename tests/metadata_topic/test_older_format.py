"""What agents of an earlier release wrote is read: records and bucket; its snapshot is refused.

`recorded/format_2026_11_24.json` holds what the code of that day made of the calls that the tests name.
"""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from agent.identity import AgentLock
from metadata_topic.records import archive_records, serde
from metadata_topic.records.records import MetadataRecord, UnknownRecord
from metadata_topic.records.states import DELETED, DELETING, FINISHED
from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper
from metadata_topic.store.store import RemoteWalMetadataStore, StoreFile
from plugin.local_directory import LocalWalStorageManager
from plugin.remote_wal_storage_manager import StorageContext, blobs_of
from plugin.segment_metadata import CombinedSegmentId
from plugin.store_loop import ask, ask_each
from tests.metadata_topic.metadata_strategies import ORDERS, PAYMENTS

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recorded" / "format_2026_11_24.json").read_text())
STORED = [CombinedSegmentId(1, 7, sequence) for sequence in range(6)]


def laid_out(place: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b64decode(content))
    return place


@pytest.fixture
def storage(tmp_path: Path) -> LocalWalStorageManager:
    manager = LocalWalStorageManager()
    bucket = laid_out(tmp_path / "bucket", RECORDED["bucket"])
    manager.configure({"directory": str(bucket)}, StorageContext("cluster-1", 1))
    return manager


def records() -> list[MetadataRecord]:
    return [serde.decode_or_keep_out(b64decode(key), b64decode(value)) for key, value in RECORDED["metadata"]]


def expect_all_known(store: RemoteWalMetadataStore) -> None:
    """Six objects, the first of which is being deleted; another with a digest, that an election killed; gaps."""
    assert [store.state_of(one) for one in STORED] == [DELETING, *[FINISHED] * 5]
    gaps = [(gap.from_offset, gap.to_offset) for gap in store.declared_gaps(ORDERS)]
    assert gaps == [(70, 80)]
    assert {(gap.from_offset, gap.to_offset) for gap in store.declared_gaps(PAYMENTS)} >= {(30, 40)}
    assert store.dead_tails(CombinedSegmentId(1, 1, 9))
    assert store.registration_of(2) is not None
    assert store.state_of(CombinedSegmentId(1, 1, 9)) not in (None, DELETED)


def test_metadata_records_are_read() -> None:
    store = RemoteWalMetadataStore()
    for at, record in enumerate(records()):
        assert not isinstance(record, UnknownRecord)
        store.apply_all([(record, (0, at))])
    expect_all_known(store)
    archived = [archive_records.decode(b64decode(key), b64decode(value)) for key, value in RECORDED["archive"]]
    assert [type(one).__name__ for one in archived] == ["ArchiveObjectPrepared", "ArchiveObjectCommitted"]


def test_the_bucket_is_read_without_its_snapshot(storage: LocalWalStorageManager) -> None:
    listed = sorted(ask_each(storage.list_log_segments()), key=lambda one: one.combined_segment_id)
    assert [one.combined_segment_id for one in listed] == STORED
    footers = [ask(storage.fetch_segment_metadata(one)).entries for one in listed]
    assert [(entries[0].first_offset, entries[0].last_offset) for entries in footers] == [
        (10 * at, 10 * at + 9) for at in range(6)
    ]
    keeper = SnapshotKeeper(blobs_of(storage, "read", "snapshot"), "cluster-1", 1, 8)
    assert keeper.load() is None
    assert keeper.counters == {"refused": 1}


def test_an_agent_starts_with_the_state_directory(tmp_path: Path) -> None:
    state = laid_out(tmp_path / "state", RECORDED["state"])
    lock = AgentLock(state)
    assert lock.next_incarnation(lambda: 0) == 1_700_000_000_001
    lock.release()
    store = RemoteWalMetadataStore(StoreFile(state, "cluster-1", 1))
    assert not store.progress
