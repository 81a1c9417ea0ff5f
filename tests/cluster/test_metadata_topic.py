"""The metadata topics on three real brokers: their layout, and an outage below min.insync.replicas."""

import time

import pytest

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_log.topic_partition import TopicId, TopicIdPartition
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from metadata_topic.topic.publication_queue import PublisherSettings
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from metadata_topic.topic.topic import MetadataTopicSettings, ensure_topics
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteLogSegmentMetadataEntry,
    RemoteLogSegmentState,
    RemoteWalCombinedLogSegmentMetadata,
)
from tests.cluster.conftest import cluster_of
from tests.cluster.stored_log import followed_metadata

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

STARTED, FINISHED = RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED
ORDERS = TopicIdPartition(TopicId(b"orders".ljust(16)), 0)


cluster = cluster_of(lambda _: ClusterSettings())


@pytest.fixture(scope="module")
def client(cluster: LocalCluster) -> KafkaClientConfig:
    client = KafkaClientConfig(cluster.bootstrap_servers)
    ensure_topics(KafkaCluster(client, "test", 30.0), MetadataTopicSettings())
    return client


def record(broker_id: int, sequence: int, state: RemoteLogSegmentState) -> RemoteWalCombinedLogSegmentMetadata:
    entry = RemoteLogSegmentMetadataEntry(ORDERS, broker_id, sequence * 10, sequence * 10 + 9, 64, 764, sequence)
    finished = state is FINISHED
    return RemoteWalCombinedLogSegmentMetadata(
        CombinedSegmentId(broker_id, 1, sequence), (entry,) if finished else (), state, 1, 800 if finished else -1
    )


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
        assert publisher.oldest_pending_age_s() > 2.0
        for broker_id in others[:2]:
            cluster.broker(broker_id).resume()
        assert publisher.flush(120.0)
    finally:
        for broker_id in others[:2]:
            cluster.broker(broker_id).resume()
        publisher.close()
    with followed_metadata(cluster) as store:
        pass
    arrived = [s.combined_segment_id.sequence for s in store.published_segments(FINISHED, broker_id=writer)]
    assert [sequence for sequence in arrived if sequence >= 10_000] == list(range(10_000, 10_200))
    assert store.counters.get("step_regression", 0) == 0
