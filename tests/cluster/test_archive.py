"""The archive, over the S3 protocol: its objects hold the log's bytes, what they were made of goes, and so do they."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_log.leader_epoch_checkpoint import read_leader_epochs
from kafka_log.segment_files import list_segments, log_file_name
from kafka_log.topic_partition import TopicIdPartition
from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store_front import ObjectStoreFront
from local_cluster.object_store_server import DEFAULT_BUCKET, ObjectStoreServer
from local_cluster.polling import wait_until
from metadata_topic.archive_store import ArchiveStore
from metadata_topic.client_config import KafkaClientConfig
from metadata_topic.consumer import RemoteWalMetadataConsumer
from metadata_topic.settings_topic import SettingsWriter
from metadata_topic.store import RemoteWalMetadataStore
from metadata_topic.topic_settings import LinkPolicy, TopicSettings
from plugin.archive_storage import DEFAULT_ARCHIVE_IMPL_PREFIX, ObjectArchiveStorage, load_archive_storage
from plugin.remote_wal_storage_manager import StorageContext
from tests.cluster.script import PATIENCE_S, Script
from tests.cluster.test_lifecycle import HASTY_AGENTS, living, objects

ARCHIVE_CLASS = "plugin.s3.S3WalStorageManager"
RECORDS = 3000
LAST_OFFSET = RECORDS - 1


@pytest.fixture
def archive_settings(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of a bucket of the test's own; combined segments are in a directory meanwhile."""
    credentials = tmp_path / "credentials"
    credentials.write_text("[default]\naws_access_key_id = local\naws_secret_access_key = local\n")
    with ObjectStoreServer(ObjectStoreFront(), [DEFAULT_BUCKET]) as server:
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
        **{DEFAULT_ARCHIVE_IMPL_PREFIX + key: value for key, value in archive_settings.items()},
        "remote.wal.archive.object.min.bytes": "50000",
        "remote.wal.archive.object.max.bytes": "100000",
        "remote.wal.archive.object.run.bytes": "20000",
        "remote.wal.archive.object.max.age.ms": "1000",
        "remote.wal.archive.task.interval.ms": "200",
        "remote.wal.archive.delete.grace.ms": "1000",
        "remote.wal.archive.care.interval.ms": "500",
        "remote.wal.log.metadata.snapshot.interval.ms": "1000",
    }
    settings = ClusterSettings(AgentsMode(overrides={**HASTY_AGENTS, **archive}))
    with LocalCluster.create(tmp_path / "cluster", settings=settings) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture
def life(cluster: LocalCluster, topic: str) -> Iterator[Script]:
    with Script(cluster, topic) as script:
        yield script


@pytest.mark.timeout(280)
def test_an_archived_log_is_in_the_archive_byte_for_byte_until_its_topic_is_deleted(
    life: Script, archive_settings: dict[str, str]
) -> None:
    life.create_topic(1)
    _archive_topic(life)
    partition = _partition(life)
    store, archive = RemoteWalMetadataStore(), ArchiveStore()
    reader = RemoteWalMetadataConsumer(KafkaClientConfig(life.cluster.bootstrap_servers), store, archive=archive)
    reader.start()
    storage = _archive_storage(life, archive_settings)
    try:
        _produce(life)
        epochs = read_leader_epochs(_log(life))
        wait_until(lambda: archive.archived_up_to(partition, epochs) == LAST_OFFSET, "all is archived", PATIENCE_S)
        wait_until(lambda: objects(life.cluster) == 0, "the combined segments are gone", PATIENCE_S)
        wait_until(lambda: not living(store), "their metadata is, too", PATIENCE_S)
        _expect_the_logs_bytes(life, storage)

        life.expect_growth("remote_wal_metadata_snapshots_total", outcome="saved")
        leader = life.cluster.admin.wait_for_leader(life.topic)
        life.kill_agent(leader)
        life.start_agent(leader)
        life.expect_growth("remote_wal_metadata_snapshots_total", outcome="loaded")

        life.cluster.admin.delete_topic(life.topic)
        wait_until(lambda: not list(storage.list()), "the archive is empty", PATIENCE_S)
        wait_until(lambda: not archive.topic_id_partitions(), "its metadata is, too", PATIENCE_S)
    finally:
        reader.close()
        storage.close()


def _archive_topic(life: Script) -> None:
    writer = SettingsWriter(KafkaClientConfig(life.cluster.bootstrap_servers))
    try:
        writer.set_topic(life.topic, TopicSettings(enable=True, link_policy=LinkPolicy.ALWAYS, archive=True))
    finally:
        writer.close()


def _partition(life: Script) -> TopicIdPartition:
    topic_id = life.topic_id()
    assert topic_id is not None
    return TopicIdPartition(topic_id, 0)


def _produce(life: Script) -> None:
    producer = Producer({"bootstrap.servers": life.cluster.bootstrap_servers, "batch.num.messages": "20"})
    for number in range(RECORDS):
        producer.produce(life.topic, f"{number:0100}".encode(), partition=0)
        if number % 100 == 0:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0


def _log(life: Script) -> Path:
    directory = life.cluster.partition_directory(life.cluster.admin.wait_for_leader(life.topic), life.topic, 0)
    assert directory is not None
    return directory


def _expect_the_logs_bytes(life: Script, storage: ObjectArchiveStorage) -> None:
    log = b"".join((_log(life) / log_file_name(base)).read_bytes() for base in sorted(list_segments(_log(life))))
    held = b""
    expected_offset = 0
    for stored in sorted(storage.list(), key=lambda stored: stored.object_id.first_offset):
        assert stored.object_id.first_offset == expected_offset
        for run in storage.fetch_runs(stored):
            held += storage.fetch(stored.object_id, run.start_file_position, run.end_file_position)
        expected_offset = stored.object_id.last_offset + 1
    assert expected_offset == RECORDS
    assert held == log


def _archive_storage(life: Script, settings: dict[str, str]) -> ObjectArchiveStorage:
    context = StorageContext(life.cluster.layout.cluster_id, 1)
    return load_archive_storage(ARCHIVE_CLASS, None, settings, context, DEFAULT_ARCHIVE_IMPL_PREFIX)
