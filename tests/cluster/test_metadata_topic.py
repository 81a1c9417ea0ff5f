"""The metadata topics on three real brokers: layout, order, and an outage below min.insync.replicas."""

import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial

import pytest

from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.topic_partition import TopicId, TopicIdPartition
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from metadata_topic.settings.settings_topic import SettingsReader, SettingsWriter, read_settings
from metadata_topic.settings.topic_settings import AgentRegistration, LinkPolicy, TopicSettings
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from metadata_topic.topic.publication_queue import PublisherSettings
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC, MetadataTopicSettings, ensure_topics
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from tests.cluster.replica_moves import in_sync_replicas, leader_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

STARTED, FINISHED = RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED
ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster.create(tmp_path_factory.mktemp("metadata") / "cluster") as cluster:
        cluster.start()
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> KafkaClientConfig:
    client = KafkaClientConfig(cluster.bootstrap_servers)
    ensure_topics(client, MetadataTopicSettings())
    return client


def record(broker_id: int, sequence: int, state: RemoteLogSegmentState) -> RemoteWalCombinedLogSegmentMetadata:
    entry = RemoteLogSegmentMetadataEntry(ORDERS, broker_id, sequence * 10, sequence * 10 + 9, 64, 764, sequence)
    finished = state is FINISHED
    return RemoteWalCombinedLogSegmentMetadata(
        CombinedSegmentId(broker_id, 1, sequence), (entry,) if finished else (), state, 1, 800 if finished else -1
    )


def test_each_agents_partition_is_led_by_its_own_broker(cluster: LocalCluster, client: KafkaClientConfig) -> None:
    ensured = ensure_topics(client, MetadataTopicSettings())
    assert (ensured.metadata_partitions, ensured.created, ensured.deviations) == (12, (), ())

    def leads_its_partition(broker_id: int) -> bool:
        return leader_of(cluster.admin, METADATA_TOPIC, broker_id % 12) == broker_id

    for broker_id in cluster.broker_ids:
        wait_until(
            partial(leads_its_partition, broker_id),
            f"broker {broker_id} leads its agent's partition",
            30.0,
        )
    assert set(in_sync_replicas(cluster.admin, SETTINGS_TOPIC)) == {0}


def test_three_agents_records_reach_a_reader_and_a_later_reader_sees_the_same(
    cluster: LocalCluster, client: KafkaClientConfig
) -> None:
    store = RemoteWalMetadataStore()
    reader = RemoteWalMetadataConsumer(client, store, rack="az1")
    publishers = [RemoteWalMetadataPublisher(client, b, time.monotonic) for b in cluster.broker_ids]
    reader.start()
    try:
        for publisher in publishers:
            publisher.start()
        for sequence in range(500):
            for broker_id, publisher in zip(cluster.broker_ids, publishers, strict=True):
                publisher.publish(record(broker_id, sequence, STARTED))
                publisher.publish(record(broker_id, sequence, FINISHED))
        assert all(publisher.flush(60.0) for publisher in publishers)
        assert reader.read_to_end(60.0)
        assert store.totals()[FINISHED].segments >= 1500
        assert store.counters.get("step_regression", 0) == 0

        later_store = RemoteWalMetadataStore()
        later = RemoteWalMetadataConsumer(client, later_store)
        later.start()
        assert later.wait_until_ready(60.0)
        later.close()
        assert later_store.progress == store.progress
        for broker_id in cluster.broker_ids:
            mine = list(later_store.segments(broker_id=broker_id))
            assert mine == list(store.segments(broker_id=broker_id))
            assert [found.combined_segment_id.sequence for found in mine[:500]] == list(range(500))
    finally:
        for publisher in publishers:
            publisher.close()
        reader.close()


def test_below_min_insync_replicas_publications_wait_and_then_arrive_in_order(
    cluster: LocalCluster, client: KafkaClientConfig
) -> None:
    writer, *others = cluster.broker_ids
    publisher = RemoteWalMetadataPublisher(client, writer, time.monotonic, PublisherSettings(retry_pause_ms=200))
    publisher.start()
    try:
        publisher.publish(record(writer, 10_000, STARTED))
        assert publisher.flush(30.0)
        for broker_id in others[:2]:
            cluster.broker(broker_id).pause()
        for sequence in range(10_000, 10_200):
            publisher.publish(record(writer, sequence, FINISHED))
        assert not publisher.flush(3.0)
        assert publisher.pending == 200
        assert publisher.oldest_pending_age_s(time.monotonic()) > 2.0
        for broker_id in others[:2]:
            cluster.broker(broker_id).resume()
        assert publisher.flush(120.0)
    finally:
        for broker_id in others[:2]:
            cluster.broker(broker_id).resume()
        publisher.close()
    store = RemoteWalMetadataStore()
    reader = RemoteWalMetadataConsumer(client, store)
    reader.start()
    try:
        assert reader.wait_until_ready(60.0)
    finally:
        reader.close()
    arrived = [s.combined_segment_id.sequence for s in store.segments(FINISHED, broker_id=writer)]
    assert [sequence for sequence in arrived if sequence >= 10_000] == list(range(10_000, 10_200))
    assert store.counters.get("step_regression", 0) == 0


def test_settings_are_followed_and_read_once(cluster: LocalCluster, client: KafkaClientConfig) -> None:
    seen: list[Mapping[str, TopicSettings]] = []
    changed = threading.Semaphore(0)

    def on_change(topics: Mapping[str, TopicSettings]) -> None:
        seen.append(topics)
        changed.release()

    wanted = TopicSettings(True, LinkPolicy.LATENCY, 40)
    agent = AgentRegistration(1, 5, "http://127.0.0.1:1", "127.0.0.1:2", "0.1.0", 3)
    reader, writer = SettingsReader(client, on_change), SettingsWriter(client)
    reader.start()
    try:
        assert reader.wait_until_ready(60.0)
        writer.register_agent(agent)
        writer.set_topic("orders", wanted)
        assert changed.acquire(timeout=30)
        assert seen == [{"orders": wanted}]
        assert read_settings(client) == ({"orders": wanted}, {1: agent})
        writer.clear_topic("orders")
        assert changed.acquire(timeout=30)
        assert read_settings(client)[0] == {}
    finally:
        writer.close()
        reader.close()
