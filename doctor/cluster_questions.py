"""What is asked of Kafka: the brokers, the metadata topic, and the topics that replicate through object storage."""

import logging
from collections.abc import Mapping
from typing import Any

from doctor.facts import Cluster, EnabledTopic, MetadataTopic, Unknown
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.topic.client_config import LIBRDKAFKA_LOGGER, KafkaClientConfig
from metadata_topic.topic.cluster_descriptions import TOPIC_AUTHORIZATION_FAILED, ClusterDescriptions
from metadata_topic.topic.topic import METADATA_TOPIC, confluent_admin
from rlm.lifecycle.cluster_observer import local_retention_ms


def ask_cluster(client: KafkaClientConfig, timeout_s: float) -> Cluster:
    """Blocks. Raises confluent_kafka.KafkaException."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(
        client.for_confluent(client_id="remote-wal-doctor"), logger=logging.getLogger(LIBRDKAFKA_LOGGER)
    )
    metadata: Any = admin.list_topics(timeout=timeout_s)
    return Cluster(frozenset(metadata.brokers), _metadata_topic(client, metadata, timeout_s))


def _metadata_topic(client: KafkaClientConfig, metadata: Any, timeout_s: float) -> MetadataTopic | Unknown:
    described = metadata.topics.get(METADATA_TOPIC)
    if described is None:
        return Unknown(f"{METADATA_TOPIC} is not there: no agent has made it, or this client may not describe it")
    try:
        config = confluent_admin(client, timeout_s).topic_config(METADATA_TOPIC)
    except MetadataTopicError as error:
        return Unknown(str(error))
    return MetadataTopic(config, min((len(part.replicas) for part in described.partitions.values()), default=0))


def ask_topics(
    client: KafkaClientConfig, settings: Mapping[str, TopicSettings], timeout_s: float
) -> dict[str, EnabledTopic]:
    """The enabled ones. Blocks. What has no readable configuration is taken as of unknown retention.

    Raises DescriptionError.
    """
    admin = confluent_admin(client, timeout_s)
    names = sorted(name for name, topic in settings.items() if topic.enable)
    described = ClusterDescriptions(client, "remote-wal-doctor", timeout_s).topics(names)
    hidden = {topic.name for topic in described if topic.error_code == TOPIC_AUTHORIZATION_FAILED}
    found = {}
    for name in names:
        try:
            config = admin.topic_config(name)
        except MetadataTopicError:
            config = {}
        found[name] = enabled_topic(config, settings[name].archive, is_hidden=name in hidden)
    return found


def enabled_topic(config: Mapping[str, str], archive: bool, *, is_hidden: bool = False) -> EnabledTopic:
    """From the topic's own configuration in Kafka."""
    has_tier = archive or config.get("remote.storage.enable") == "true"
    return EnabledTopic(local_retention_ms(config), has_tier, is_hidden)
