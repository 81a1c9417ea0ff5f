"""Which partitions this broker leads: leaders from the cluster's metadata, ids and paths from the log directories."""

import logging
from collections.abc import Iterable, Mapping

from kafka_log.log_directory import PartitionDirectory
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.topic.client_config import LIBRDKAFKA_LOGGER, KafkaClientConfig
from rlm.write_path.assignment import Assignment

LedByTopic = Mapping[str, frozenset[int]]


class LeadershipReader:
    """Asks Kafka who leads what. Blocks; for a thread of its own."""

    def __init__(self, client: KafkaClientConfig, broker_id: int, timeout_s: float = 5.0) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient(
            client.for_confluent(client_id=f"remote-wal-agent-{broker_id}-leadership"),
            logger=logging.getLogger(LIBRDKAFKA_LOGGER),
        )
        self._broker_id = broker_id
        self._timeout_s = timeout_s

    def led_partitions(self) -> LedByTopic:
        """The partitions of every topic that this broker leads. Raises confluent_kafka.KafkaException."""
        metadata = self._admin.list_topics(timeout=self._timeout_s)
        return {
            name: frozenset(
                partition.id for partition in topic.partitions.values() if partition.leader == self._broker_id
            )
            for name, topic in metadata.topics.items()
        }


def assignments(
    led: LedByTopic,
    topics: Mapping[str, TopicSettings],
    directories: Iterable[PartitionDirectory],
    default_latency_bound_ms: int,
) -> list[Assignment]:
    """The partitions to take care of: led here, of a topic with the feature on, with a directory of that topic's id."""
    found: list[Assignment] = []
    for directory in directories:
        settings = topics.get(directory.topic)
        if settings is None or not settings.enable or directory.partition not in led.get(directory.topic, ()):
            continue
        partition = TopicIdPartition(directory.topic_id, directory.partition)
        found.append(
            Assignment(
                partition,
                directory.topic,
                directory.path,
                settings.link_policy,
                settings.link_latency_bound_ms or default_latency_bound_ms,
                settings.archive,
            )
        )
    return found
