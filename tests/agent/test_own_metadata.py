"""What commands read of a living agent's store, beside it."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agent.identity import AgentLock
from agent.own_metadata import own_metadata
from metadata_topic.records.records import MetadataRecord, RemoteWalLogSegmentMetadataUpdate
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import keep_archive
from metadata_topic.store.snapshots.snapshot_keeper import NewestSnapshot
from metadata_topic.store.store import FILE_NAME, RemoteWalMetadataStore, StoreFile
from plugin.store_loop import ask_each
from recovery.metadata.footers import UnreadableObject, read_footers
from tests.metadata_topic.archive_strategies import committed, object_id
from tests.metadata_topic.metadata_strategies import DELETING, FINISHED, dead, entry, segment
from tests.recovery.ruins import CLUSTER, ORDERS, Ruins
from tests.recovery.stored_objects import records
from topic_reader.sources import Source, StoredTopics


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RemoteWalMetadataStore]:
    """The store of an agent that lives."""
    lock, store, archive = AgentLock(tmp_path), RemoteWalMetadataStore(StoreFile(tmp_path, "c")), ArchiveStore()
    keep_archive(store, archive)
    told: list[MetadataRecord] = [
        *(segment(number, entry(number * 10, number * 10 + 9)) for number in range(20)),
        dead(3, entry(35, 39)),
    ]
    archive.apply(committed(object_id(1, 1, 1)))
    store.apply_all([(record, (0, at)) for at, record in enumerate([*told, segment(0, state=DELETING)])])
    with closing(store):
        yield store
    lock.release()


def test_what_a_living_agent_knows_is_read_while_it_goes_on(agent: RemoteWalMetadataStore, tmp_path: Path) -> None:
    own = own_metadata(tmp_path, "c", NewestSnapshot)
    assert own is not None
    store, archive = own
    assert len(store.snapshot_only) == 19
    assert store.state_of(segment(0).combined_segment_id) is DELETING
    assert (store.progress, store.image().dead) == (agent.progress, agent.image().dead)
    assert [one for one, _ in archive.objects(FINISHED)] == [object_id(1, 1, 1)]
    agent.apply(segment(30, entry(300, 309)), (0, 40))
    assert len(list(agent.published_segments())) == 21


def test_only_the_file_of_a_living_agent_of_this_cluster_counts_and_none_is_removed(
    agent: RemoteWalMetadataStore, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with closing(RemoteWalMetadataStore(StoreFile(tmp_path / "other", "c"))):
        assert own_metadata(tmp_path / "other", "c", NewestSnapshot) is None, "no agent lives there"
    assert own_metadata(tmp_path / "missing", "c", NewestSnapshot) is None
    assert own_metadata(tmp_path, "another", NewestSnapshot) is None
    assert agent.progress
    (tmp_path / FILE_NAME).write_bytes(b"no database" * 1000)
    assert own_metadata(tmp_path, "c", NewestSnapshot) is None
    assert (tmp_path / FILE_NAME).exists()


def test_an_agent_that_has_read_less_than_the_newest_snapshot_does_not_count(
    agent: RemoteWalMetadataStore, tmp_path: Path
) -> None:
    snapshot = agent.image()
    own = own_metadata(tmp_path, "c", lambda: NewestSnapshot(snapshot, "a newer one is damaged"))
    assert own is not None
    assert [*own[0].topic.doubts.values()] == ["a newer one is damaged"]
    [at] = agent.progress.values()
    newer = [NewestSnapshot(replace(snapshot, progress=progress)) for progress in ({0: at + 1}, {0: at, 1: 1})]
    assert [own_metadata(tmp_path, "c", iter(newer).__next__) for _ in newer] == [None, None]


def test_a_recovery_without_brokers_takes_what_this_hosts_agent_knows(tmp_path: Path) -> None:
    ruins = Ruins(tmp_path)
    ruins.write()
    ruins.upload(1, records(ORDERS, 0, 0, 4))
    source = Source(tmp_path / "server.properties", cluster_metadata=tmp_path / "controller")
    with StoredTopics.find(source, ["orders"]).stores.opened() as (storage, _):
        [found] = read_footers(storage, list(ask_each(storage.list_log_segments())), lambda _what, _done: None)
    assert not isinstance(found, UnreadableObject)
    dead_from = replace(found.entries[0], first_offset=2)
    lock = AgentLock(tmp_path / "state")
    with closing(RemoteWalMetadataStore(StoreFile(tmp_path / "state", CLUSTER))) as store:
        store.apply(replace(found, state=FINISHED), (0, 0))
        told = RemoteWalLogSegmentMetadataUpdate(found.combined_segment_id, (dead_from,), 1, 9, 1)
        store.apply(told, (0, 1))
        assert _end_of_orders(ruins) == 2, "only the agent knows that the rest is dead"
        assert _end_of_orders(ruins, "--from-objects") == 5
    lock.release()
    assert _end_of_orders(ruins) == 5


def _end_of_orders(ruins: Ruins, *options: str) -> int:
    told = json.loads(ruins.run("recover", "--dry-run", "--json", *options).stdout)
    [end] = [log["end_offset"] for log in told["logs"] if log["log"].startswith("orders")]
    return int(end)
