"""Switches topics on, as `remote-wal topics enable` does."""

from collections.abc import Iterable
from dataclasses import replace

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.settings.settings_topic import SettingsWriter
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from metadata_topic.settings.wal_retention import AS_LOCAL

LINKED = TopicSettings(enable=True, link_policy=LinkPolicy.ALWAYS)
"""Settings that link every byte."""
LINKED_AND_KEPT = replace(LINKED, wal_retention_ms=AS_LOCAL)
"""Settings that also keep the whole log in objects, as long as brokers keep it."""


def set_topics(bootstrap_servers: str, topics: Iterable[str], settings: TopicSettings | None = None) -> None:
    """Give these topics settings; by default they link by cost. Agents follow within seconds.

    Raises MetadataTopicError.
    """
    writer = SettingsWriter(KafkaClientConfig(bootstrap_servers, {"log_level": 0}))
    try:
        for topic in topics:
            writer.set_topic(topic, settings or TopicSettings(enable=True))
    finally:
        writer.close()
