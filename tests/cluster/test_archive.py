"""The archive, over the S3 protocol: its objects hold the log's bytes, what they were made of goes, and so do they.

In between they alone hold what was uploaded: an agent that starts then uploads nothing anew, and a broker that comes
back then reads from them what it missed.
"""

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_log.broker_files.leader_epoch_checkpoint import read_leader_epochs
from kafka_log.segment_files import list_segments, log_file_name
from kafka_log.topic_partition import TopicIdPartition
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import LINKED_AND_KEPT, set_topics
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.workload.replica_comparison import compare_replicas
from metadata_topic.store.archive.archive_store import ArchiveStore
from plugin.archive_storage import ArchiveStorage, load_archive_storage
from plugin.loading import ARCHIVE_IMPL_PREFIX, StorageSpec
from plugin.remote_wal_storage_manager import StorageContext
from plugin.store_loop import ask, ask_each
from tests.cluster.agent_views import FAULTS, AgentCounters, Sample, read_metrics
from tests.cluster.agent_views import RECORD_BYTES as REPLICATED_BYTES
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.replica_moves import delete_topic, wait_for_isr
from tests.cluster.script import PATIENCE_S, Script
from tests.cluster.stored_log import followed_metadata
from tests.cluster.test_lifecycle import HASTY_AGENTS, living, objects
from tests.faulty_store import DEFAULT_BUCKET, FaultyFront, FaultyServer
from tests.metadata_topic.store_oracles import archived_up_to

ARCHIVE_CLASS = "plugin.s3.S3WalStorageManager"
LEADER, OTHER, FOLLOWER = 1, 2, 3
RECORDS, RECORD_BYTES = 3000, 1000
LAST_OFFSET = RECORDS - 1
PATIENT_AGENTS = {
    # A slow machine, which may take its time here as in the store, is no reason to send bytes inline.
    "remote.wal.link.wait.max.ms": "10000",
    "remote.wal.hydration.timeout.ms": "10000",
}


@pytest.fixture
def archive_settings(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of a bucket of the test's own; combined segments are in a directory meanwhile."""
    credentials = tmp_path / "credentials"
    credentials.write_text("[default]\naws_access_key_id = local\naws_secret_access_key = local\n")
    with FaultyServer(FaultyFront(), [DEFAULT_BUCKET]) as server:
        yield {
            "bucket": DEFAULT_BUCKET,
            "endpoint.url": server.endpoint_url,
            "region": "us-east-1",
            "allow.http": "true",
            "credentials.file": str(credentials),
        }


@pytest.fixture
def cluster(tmp_path: Path, archive_settings: dict[str, str]) -> Iterator[LocalCluster]:
    archive = {
        "remote.wal.archive.enable": "true",
        "remote.wal.archive.storage.manager.class.name": ARCHIVE_CLASS,
        **{ARCHIVE_IMPL_PREFIX + key: value for key, value in archive_settings.items()},
        **quick(archive_object_min_bytes=50000, archive_object_max_bytes=100000, archive_run_bytes=20000),
        "remote.wal.archive.object.max.age.ms": "1000",
        **quick(archive_look_s=0.2, archive_delete_grace_ms=1000, archive_care_s=0.5, snapshot_interval_s=1),
    }
    settings = ClusterSettings(QuickAgents(overrides={**HASTY_AGENTS, **PATIENT_AGENTS, **archive}))
    with LocalCluster.create(tmp_path / "cluster", settings=settings) as cluster:
        cluster.start()
        yield cluster


@pytest.mark.timeout(280)
def test_an_archived_log_is_in_the_archive_byte_for_byte_and_read_from_there_until_its_topic_is_deleted(
    life: Script, archive_settings: dict[str, str]
) -> None:
    # broker 3 is away -> 3 MB are produced, uploaded, archived; the combined segments go -> the leader's agent starts
    # anew -> broker 3 comes back and reads what it missed from the archive -> the topic is deleted, all goes
    life.create_topic(assignment=[[LEADER, OTHER, FOLLOWER]])
    _archive_topic(life)
    partition = _partition(life)
    life.cluster.broker(FOLLOWER).terminate(60.0)
    wait_for_isr(life.cluster.admin, life.topic, [LEADER, OTHER], timeout_s=PATIENCE_S)
    archive = ArchiveStore()
    with (
        followed_metadata(life.cluster, archive) as store,
        closing(_archive_storage(life, archive_settings)) as storage,
    ):
        _produce(life)
        epochs = read_leader_epochs(_log(life))
        wait_until(lambda: archived_up_to(archive, partition, epochs) == LAST_OFFSET, "all is archived", PATIENCE_S)
        wait_until(lambda: objects(life.cluster) == 0, "the combined segments are gone", PATIENCE_S)
        wait_until(lambda: not living(store), "their metadata is, too", PATIENCE_S)
        _expect_the_logs_bytes(life, storage)

        life.expect_growth("remote_wal_metadata_snapshots_total", outcome="saved")
        life.kill_agent(LEADER)
        shutil.rmtree(life.cluster.layout.agent_directory(LEADER))
        life.start_agent(LEADER)
        life.expect_growth("remote_wal_metadata_snapshots_total", outcome="loaded")
        _expect_nothing_uploaded_anew(life)

        _expect_a_follower_to_be_served_by_the_archive(life)

        delete_topic(life.cluster.admin, life.topic)
        wait_until(lambda: not list(ask_each(storage.list())), "the archive is empty", PATIENCE_S)
        wait_until(lambda: not archive.topic_id_partitions(), "its metadata is, too", PATIENCE_S)


def _expect_nothing_uploaded_anew(life: Script) -> None:
    """The leader's new agent knows that all is stored, and has stored nothing."""

    def knows_all() -> bool:
        return [led["uploaded_offset"] for led in life.partitions_of_agents()] == [RECORDS]

    def told() -> dict[Sample, float]:
        with suppress(OSError):  # it takes its time
            return read_metrics(life.cluster, LEADER)
        return {}

    wait_until(knows_all, "the new agent knows what is archived", PATIENCE_S)
    counted = wait_until(told, "the new agent tells its counters", PATIENCE_S)
    assert counted["remote_wal_uploaded_segments_total", ()] == 0


def _expect_a_follower_to_be_served_by_the_archive(life: Script) -> None:
    """It comes back, and gets by links, not across zones, what the archive alone holds."""
    counters, leader = AgentCounters(life.cluster), AgentCounters(life.cluster, [LEADER])
    life.cluster.start_broker(FOLLOWER)
    life.cluster.admin.wait_for_full_isr(life.topic, timeout_s=PATIENCE_S)
    comparison = compare_replicas(life.cluster, life.topic, PATIENCE_S)
    assert comparison.identical, str(comparison)
    missed_bytes = comparison.compared_bytes
    assert missed_bytes >= RECORDS * RECORD_BYTES
    _expect_about(missed_bytes, leader, REPLICATED_BYTES, path="linked")
    _expect_about(missed_bytes, leader, "remote_wal_catch_up_found_bytes_total")
    _expect_about(missed_bytes, counters, "remote_wal_catch_up_read_bytes_total")
    # What else crosses: metadata that it missed, and answers without records, however long it takes.
    crossed = leader.growth("remote_wal_peer_bytes_total", role="leader", direction="sent")
    assert crossed <= 0.1 * missed_bytes


def _expect_about(missed_bytes: int, counters: AgentCounters, name: str, **labels: str) -> None:
    """This counter has grown by at least nine tenths of the bytes, and by no byte twice, but for a few."""
    try:
        wait_until(lambda: counters.growth(name, **labels) >= 0.9 * missed_bytes, f"{name} {labels}", PATIENCE_S)
    except WaitTimeoutError as error:
        grown, faults = counters.growth(name, **labels), counters.grown_labels(FAULTS, "reason")
        raise WaitTimeoutError(f"{error}: {grown} of {missed_bytes}; faults meanwhile: {faults}") from None
    assert counters.growth(name, **labels) <= 1.1 * missed_bytes


def _archive_topic(life: Script) -> None:
    archived = dataclasses.replace(LINKED_AND_KEPT, archive=True)
    set_topics(life.cluster.bootstrap_servers, [life.topic], archived)


def _partition(life: Script) -> TopicIdPartition:
    topic_id = life.topic_id()
    assert topic_id is not None
    return TopicIdPartition(topic_id, 0)


def _produce(life: Script) -> None:
    producer = Producer({"bootstrap.servers": life.cluster.bootstrap_servers, "batch.num.messages": "20"})
    for number in range(RECORDS):
        producer.produce(life.topic, f"{number:0{RECORD_BYTES}}".encode(), partition=0)
        if number % 100 == 0:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0


def _log(life: Script) -> Path:
    directory = life.cluster.layout.partition_directory(life.cluster.admin.wait_for_leader(life.topic), life.topic, 0)
    assert directory is not None
    return directory


def _expect_the_logs_bytes(life: Script, storage: ArchiveStorage) -> None:
    log = b"".join((_log(life) / log_file_name(base)).read_bytes() for base in sorted(list_segments(_log(life))))
    held = b""
    expected_offset = 0
    for stored in sorted(ask_each(storage.list()), key=lambda stored: stored.object_id.first_offset):
        assert stored.object_id.first_offset == expected_offset
        for run in ask(storage.fetch_runs(stored)):
            held += ask(storage.fetch(stored.object_id, run.start_file_position, run.end_file_position))
        expected_offset = stored.object_id.last_offset + 1
    assert expected_offset == RECORDS
    assert held == log


def _archive_storage(life: Script, settings: dict[str, str]) -> ArchiveStorage:
    context = StorageContext(life.cluster.layout.cluster_id, 1)
    return load_archive_storage(StorageSpec(ARCHIVE_CLASS, None, settings, ARCHIVE_IMPL_PREFIX), context)
