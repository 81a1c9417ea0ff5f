"""The whole life of objects beside KIP-405 and the archive: each is gone in the end, whoever is killed on the way."""

import dataclasses
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import LINKED_AND_KEPT, set_topics
from local_cluster.polling import wait_until
from metadata_topic.records.states import FINISHED
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.loading import ARCHIVE_IMPL_PREFIX
from tests.cluster.conftest import STORAGE_PLUGINS, BreakableStore, cluster_of
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.recovery_commands import run_command
from tests.cluster.replica_moves import delete_topic
from tests.cluster.script import PATIENCE_S, PLAIN, Script, expect_whole_objects
from tests.cluster.stored_log import followed_metadata
from tests.cluster.test_lifecycle import HASTY_AGENTS, expect_nothing_left, living, objects

GONE_FOR_GOOD_MS = 4000
RECORD = b"\xa5" * 10_000
RECORDS_PER_SEGMENT = 1_048_576 // len(RECORD)
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    # What goes before this is over goes because it is on the tier.
    "local.retention.ms": "3600000",
}

ARCHIVE_SWITCHES = "archive-switches"
Step = tuple[str, str, str]
"""A switch, its value, and whose."""
WAL_STEPS: list[Step] = [(f"die-{step}-put", "", "switches") for step in ("before", "mid", "after")]
ARCHIVE_STEPS: list[Step] = [(f"die-{step}-put", "", ARCHIVE_SWITCHES) for step in ("before", "mid", "after")]
RELEASE_STEPS: list[Step] = [
    ("die-before-delete", "", "switches"),
    ("die-after-delete", "", "switches"),
    ("die-after-put-ms", "5", ARCHIVE_SWITCHES),
]
"""Deletions of what was archived, and the time about the archive object's commit, in which its sources are released."""
DELETION_STEPS: list[Step] = [
    ("die-before-deletion-started", "", "switches"),
    ("die-after-deletion-finished", "", "switches"),
    ("die-after-deletion-finished", "", "switches"),
]
"""Both ends of the deletions of what was archived."""
LAST_STEPS: list[Step] = [
    ("die-before-delete", "", ARCHIVE_SWITCHES),
    ("die-after-delete", "", ARCHIVE_SWITCHES),
    ("die-before-delete", "", ARCHIVE_SWITCHES),
]


def settings(directory: Path) -> ClusterSettings:
    """The archive stands beside the cluster's directory."""
    (directory / "archive").mkdir()
    return ClusterSettings(
        QuickAgents(BreakableStore(), _agents(directory / "archive", directory / "cluster" / ARCHIVE_SWITCHES)),
        {"log.segment.delete.delay.ms": "100", "broker.session.timeout.ms": "4000"},
        tiered_storage=True,
    )


cluster = cluster_of(settings)


def _agents(archive_directory: Path, archive_switches: Path) -> Mapping[str, str]:
    archive = {
        "directory": str(archive_directory),
        "switches": str(archive_switches),
    }
    return {
        **HASTY_AGENTS,
        "remote.wal.uncommitted.ttl.ms": "12000",
        **quick(takeover_ms=GONE_FOR_GOOD_MS, expiration_interval_s=0.5),
        "remote.log.wal.storage.manager.class.path": str(STORAGE_PLUGINS),
        "remote.wal.archive.enable": "true",
        "remote.wal.archive.storage.manager.class.name": BreakableStore().class_name,
        **{ARCHIVE_IMPL_PREFIX + key: value for key, value in archive.items()},
        **quick(archive_object_min_bytes=20000, archive_object_max_bytes=100000, archive_run_bytes=20000),
        "remote.wal.archive.object.max.age.ms": "1000",
        **quick(archive_look_s=0.2, archive_prepared_ttl_ms=5000, archive_delete_grace_ms=1000),
        **quick(archive_care_s=0.5),
    }


@pytest.fixture(scope="module")
def stores(cluster: LocalCluster) -> Iterator[tuple[RemoteWalMetadataStore, ArchiveStore]]:
    archive = ArchiveStore()
    with followed_metadata(cluster, archive) as store:
        yield store, archive


def test_produce_roll_tier_expire_and_delete_leaves_an_empty_bucket_and_no_metadata(
    life: Script, stores: tuple[RemoteWalMetadataStore, ArchiveStore]
) -> None:
    store, _ = stores
    cluster = life.cluster
    cluster.admin.create_topic(life.topic, assignment=[[1, 2, 3]], config=TIERED)
    life.link_topic()

    # Four segments roll and go to the tier; what is in the active one stays.
    produce(life, records=4 * RECORDS_PER_SEGMENT + 10)
    uploaded = wait_until(lambda: store.count_by_state()[FINISHED].segments, "objects are known", PATIENCE_S)
    life.expect_growth("remote_wal_segment_deletions_started_total", reason="tiered")
    wait_until(lambda: 0 < bytes_of(store) < 1_048_576, "objects with closed segments alone are gone", PATIENCE_S)
    assert uploaded > 0
    assert life.counters.growth("remote_wal_segment_deletions_started_total", reason="expired") == 0
    assert life.counters.growth("remote_wal_segment_deletions_started_total", reason="below_log_start") == 0
    assert local_log_start(life) == 0, "the log itself is whole"

    # The rest goes with the local retention, or as the broker rolls and tiers the last segment for it: nothing is left.
    alter(life, "local.retention.ms", "1000")
    wait_until(lambda: not objects(cluster), "all objects are gone", PATIENCE_S)
    assert life.counters.growth("remote_wal_lost_segments_total") == 0

    delete_topic(cluster.admin, life.topic)
    wait_until(lambda: not list(cluster.layout.tiered_storage_directory.rglob("*.log")), "so is the tier", PATIENCE_S)
    expect_nothing_left(cluster, store)


@pytest.mark.thorough
def test_agents_killed_at_each_step_of_upload_archive_and_deletion_reach_the_same_end(
    life: Script, stores: tuple[RemoteWalMetadataStore, ArchiveStore]
) -> None:
    # Each agent leads one partition: it uploads, archives, and deletes what was archived.
    store, archive = stores
    life.create_topic(3)
    archive_topic(life)
    life.produce(PLAIN)
    life.expect_records_to_flow()
    wait_until(lambda: archive.objects(FINISHED), "something is archived", PATIENCE_S)
    for steps in (WAL_STEPS, ARCHIVE_STEPS, RELEASE_STEPS, DELETION_STEPS):
        die_and_come_back(life, steps)
        life.expect_records_to_flow()
    life.expect_promises()
    expect_whole_objects(life.cluster)

    switch(life, LAST_STEPS)
    delete_topic(life.cluster.admin, life.topic)
    come_back(life)
    expect_nothing_left(life.cluster, store)
    archived = life.cluster.layout.directory.parent / "archive"
    wait_until(lambda: not list(archived.rglob("*.rwal")), "the archive is empty", PATIENCE_S)
    wait_until(lambda: not archive.topic_id_partitions(), "its metadata is, too", PATIENCE_S)
    with ThreadPoolExecutor() as pool:
        for told in pool.map(partial(run_command, life.cluster, "orphans"), life.cluster.broker_ids):
            assert told["disagreements"] == []


def die_and_come_back(life: Script, steps: list[Step]) -> None:
    switch(life, steps)
    come_back(life)


def switch(life: Script, steps: list[Step]) -> None:
    for broker_id, (name, value, store) in zip(life.cluster.broker_ids, steps, strict=True):
        life.switch(broker_id, name, value, store=store)


def come_back(life: Script) -> None:
    """Each agent dies of its switch, and is started again: none waits for the others."""
    waiting = set(life.cluster.broker_ids)

    def all_have_died() -> bool:
        for broker_id in sorted(waiting):
            if not life.cluster.agent(broker_id).is_alive():
                waiting.discard(broker_id)
                life.cluster.start_agent(broker_id, wait=False)
        return not waiting

    wait_until(all_have_died, "each agent has died of its switch", PATIENCE_S)
    for broker_id in life.cluster.broker_ids:
        life.cluster.wait_for_agent(broker_id)


def archive_topic(life: Script) -> None:
    archived = dataclasses.replace(LINKED_AND_KEPT, archive=True)
    set_topics(life.cluster.bootstrap_servers, [life.topic], archived)


def produce(life: Script, records: int) -> None:
    producer = Producer({"bootstrap.servers": life.cluster.bootstrap_servers, "batch.size": 100_000})
    for _ in range(records):
        producer.produce(life.topic, RECORD, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def alter(life: Script, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, life.topic, incremental_configs=[entry])
    for future in life.cluster.admin.client.incremental_alter_configs([resource]).values():
        future.result(PATIENCE_S)


def bytes_of(store: RemoteWalMetadataStore) -> int:
    """Of the objects that are not deleted, by the metadata; none while any is being deleted."""
    return 0 if set(living(store)) - {FINISHED.name} else store.count_by_state()[FINISHED].bytes


def local_log_start(life: Script) -> int:
    leader = life.cluster.admin.wait_for_leader(life.topic)
    directory = life.cluster.layout.partition_directory(leader, life.topic, 0)
    assert directory is not None
    return min(int(path.stem) for path in directory.glob("*.log"))
