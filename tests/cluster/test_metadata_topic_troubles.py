"""A metadata topic that brokers made, that an operator spoiled, that was deleted, that grew: on Kafka's defaults."""

from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, NewPartitions, NewTopic, ResourceType

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC
from tests.cluster.agent_views import describe, readiness
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.replica_moves import delete_topic, set_topic_setting
from tests.cluster.script import PATIENCE_S, PLAIN, Script

STALLED = "metadata_publication_stalled"


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """With a metadata topic as a broker makes it for whoever asks: one partition, one replica."""
    agents = QuickAgents(overrides=quick(unpublished_max_ms=3000))
    directory = tmp_path_factory.mktemp("troubles") / "cluster"
    with LocalCluster.create(directory, settings=ClusterSettings(agents)) as cluster:
        cluster.format()
        for broker_id in cluster.broker_ids:
            cluster.start_broker(broker_id, wait=False)
        cluster.wait_for_brokers(cluster.broker_ids)
        client = cluster.admin.client
        client.create_topics([NewTopic(METADATA_TOPIC, 1, 1)])[METADATA_TOPIC].result(30)
        cluster.start()
        yield cluster


def config(cluster: LocalCluster, topic: str) -> dict[str, str]:
    """Empty while the broker that is asked does not know of the topic."""
    [future] = cluster.admin.client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    try:
        return {key: entry.value for key, entry in future.result(30).items()}
    except KafkaException:
        return {}


def is_refused(cluster: LocalCluster, broker_id: int) -> bool:
    return readiness(cluster, broker_id)[0] == 503


def wait_until_all_is_published(cluster: LocalCluster) -> None:
    """What is uploaded all the time is published all the time."""

    def publishes(broker_id: int) -> bool:
        told = describe(cluster, broker_id)
        return told["metadata_stalled"] is None and told["metadata_pending"] < 50

    for broker_id in cluster.broker_ids:
        wait_until(partial(publishes, broker_id), f"agent {broker_id} has published", PATIENCE_S)


def test_metadata_is_published_whatever_happens_to_its_topic(cluster: LocalCluster, topic: str) -> None:
    with Script(cluster, topic) as script:
        # Given a topic that nobody made on purpose, it is used as it is, and complained of.
        status, told = readiness(cluster, 1)
        assert (status, told.splitlines()[0]) == (200, "ready")
        assert "a partition has 1 replicas, not 3: kafka-reassign-partitions.sh" in told
        script.create_topic()
        script.produce(PLAIN)
        script.expect_links_to_be_used()
        wait_until_all_is_published(cluster)

        # When it is compacted, nothing is published, nor uploaded or linked, until it is mended.
        set_topic_setting(cluster, METADATA_TOPIC, "cleanup.policy", "compact")
        for broker_id in cluster.broker_ids:
            wait_until(partial(is_refused, cluster, broker_id), "it is refused", PATIENCE_S)
        assert f"--alter --topic {METADATA_TOPIC} --add-config cleanup.policy=delete" in readiness(cluster, 1)[1]
        script.expect_inline_bytes()
        script.expect_growth("remote_wal_faults_total", reason=STALLED)
        set_topic_setting(cluster, METADATA_TOPIC, "cleanup.policy", "delete")
        wait_until_all_is_published(cluster)
        script.expect_links_to_be_used()

        # When it is deleted under load, one agent makes it anew as it must be, and nobody by asking for it.
        delete_topic(cluster.admin, METADATA_TOPIC)
        wait_until(lambda: len(cluster.admin.partitions(METADATA_TOPIC)) == 12, "it is made anew", PATIENCE_S)
        cluster.admin.wait_for_full_isr(METADATA_TOPIC)
        assert all(len(state.replicas) == 3 for state in cluster.admin.partitions(METADATA_TOPIC))
        made = wait_until(lambda: config(cluster, METADATA_TOPIC), "it is known", PATIENCE_S)
        assert (made["min.insync.replicas"], made["retention.ms"]) == ("2", "691200000")
        wait_until_all_is_published(cluster)
        script.expect_links_to_be_used()

        # When it is given more partitions, publishing goes on.
        more = cluster.admin.client.create_partitions([NewPartitions(METADATA_TOPIC, 16)])
        more[METADATA_TOPIC].result(30)
        script.expect_links_to_be_used()
        wait_until_all_is_published(cluster)

        script.expect_promises()
    assert made_by_asking(cluster, METADATA_TOPIC, SETTINGS_TOPIC) == []


def made_by_asking(cluster: LocalCluster, *topics: str) -> list[str]:
    """What the brokers say of topics that they were asked for and made."""
    return [
        line
        for broker_id in cluster.broker_ids
        for line in (cluster.layout.broker_directory(broker_id) / "kafka.log").read_text(errors="replace").splitlines()
        if "auto-creation" in line and any(topic in line for topic in topics)
    ]
