"""The metadata topic is lost, and told anew from the objects alone."""

from typing import Any

from cli.exit_code import ExitCode
from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from metadata_topic.topic.topic import METADATA_TOPIC, MetadataTopicSettings, ensure_topics
from tests.cluster.agent_views import read_metrics
from tests.cluster.recovery_commands import run_command
from tests.cluster.replica_moves import delete_topic
from tests.cluster.script import PATIENCE_S


def lose_metadata_topic(cluster: LocalCluster) -> None:
    """It is deleted and made anew under running agents. Until all of them doubt it."""
    delete_topic(cluster.admin, METADATA_TOPIC)
    wait_until(lambda: not cluster.admin.partitions(METADATA_TOPIC), "the topic is gone", PATIENCE_S)
    ensure_topics(KafkaClientConfig(cluster.bootstrap_servers), MetadataTopicSettings())
    wait_until(lambda: all(in_doubt(cluster)), "all agents doubt the topic", PATIENCE_S)


def rebuild(cluster: LocalCluster, *options: str) -> dict[str, Any]:
    """What `remote-wal metadata rebuild` tells, which may name what earlier tests took away."""
    return run_command(cluster, "metadata rebuild", 1, *options, exit_code=(ExitCode.GOOD, ExitCode.FINDINGS))


def in_doubt(cluster: LocalCluster) -> list[bool]:
    """Of each agent, whether it doubts the topic."""
    name = "remote_wal_metadata_topic_in_doubt"
    return [any(value for (found, _), value in read_metrics(cluster, one).items() if found == name)
            for one in cluster.broker_ids]  # fmt: skip
