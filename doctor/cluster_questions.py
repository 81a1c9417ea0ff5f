"""Asks Kafka about the brokers, the metadata topic, and the topics that replicate through object storage."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from doctor.facts import Cluster, EnabledTopic, MetadataTopic, Unknown
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.responses import TOPIC_AUTHORIZATION_FAILED, ClusterListing
from kafka_log.broker_files.server_properties import BrokerProperties, Endpoint, parse_broker_properties
from kafka_log.errors import BrokerPropertiesError
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import (
    NO_LIMIT,
    AgentsRetention,
    KeptFor,
    is_tiered,
    local_retention_ms,
    log_retention_ms,
    why_not_as_local,
)
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC

_CLIENT_ID = "remote-wal-doctor"


def cluster_of(client: KafkaClientConfig, timeout_s: float) -> KafkaCluster:
    """Return a KafkaCluster for the doctor, under its own client id."""
    return KafkaCluster(client, _CLIENT_ID, timeout_s)


def ask_cluster(client: KafkaClientConfig, timeout_s: float) -> Cluster:
    """Return the living brokers and the metadata topic. Blocks. Raises KafkaClusterError."""
    cluster = cluster_of(client, timeout_s)
    listing = cluster.listing()
    metadata, settings = _metadata_topic(cluster, listing), _config(cluster, listing, SETTINGS_TOPIC)
    return Cluster(frozenset(listing.brokers), metadata, settings)


def ask_properties(
    client: KafkaClientConfig, broker_ids: Iterable[int], timeout_s: float
) -> dict[int, BrokerProperties | Unknown]:
    """Return these brokers' settings, as each reports its own. Keys with Kafka's defaults are not in `raw`. Blocks."""
    cluster = cluster_of(client, timeout_s)
    return {one: _properties(cluster, one) for one in sorted(broker_ids)}


def _properties(cluster: KafkaCluster, broker_id: int) -> BrokerProperties | Unknown:
    try:
        told = cluster.broker_configurations([broker_id]).get_all()[broker_id]
        return parse_broker_properties(told, Path(f"broker {broker_id}"))
    except KafkaClusterError as error:
        return Unknown(error.reason)
    except BrokerPropertiesError as error:
        return Unknown(str(error))


def ask_zones(client: KafkaClientConfig, timeout_s: float) -> dict[int, str | None]:
    """Return the living brokers' zones. Blocks. Raises KafkaClusterError."""
    return {one.broker_id: one.rack for one in cluster_of(client, timeout_s).brokers()}


def ask_way(client: KafkaClientConfig, server: str, timeout_s: float) -> dict[int, Endpoint]:
    """Return the living brokers' addresses, as this server's listener reports them. Blocks. Raises
    KafkaClusterError."""
    asked = cluster_of(replace(client, bootstrap_servers=server), timeout_s)
    return {one.broker_id: Endpoint(one.host, one.port) for one in asked.brokers()}


def _metadata_topic(cluster: KafkaCluster, listing: ClusterListing) -> MetadataTopic | Unknown:
    config = _config(cluster, listing, METADATA_TOPIC)
    if isinstance(config, Unknown):
        return config
    return MetadataTopic(config, listing.topics[METADATA_TOPIC].replication_factor)


def _config(cluster: KafkaCluster, listing: ClusterListing, topic: str) -> Mapping[str, str] | Unknown:
    if topic not in listing.topics:
        return Unknown(f"{topic} is not there: no agent has made it, or this client may not describe it")
    try:
        return cluster.topic_configurations([topic]).get_all()[topic]
    except KafkaClusterError as error:
        return Unknown(str(error))


def ask_topics(
    client: KafkaClientConfig, settings: Mapping[str, TopicSettings], retention: AgentsRetention, timeout_s: float
) -> dict[str, EnabledTopic]:
    """Describe the enabled topics. Blocks. A topic whose configuration cannot be read has an unknown retention.

    Raises KafkaClusterError.
    """
    cluster = cluster_of(client, timeout_s)
    names = sorted(name for name, topic in settings.items() if topic.enable)
    described = {topic.name: topic for topic in cluster.topics(names)}
    found = {}
    for name, config in cluster.topic_configurations(names).each():
        known = {} if isinstance(config, KafkaClusterError) else config
        topic = described.get(name)
        enabled = enabled_topic(known, settings[name], retention, topic.replication_factor if topic is not None else 0)
        is_hidden = topic is not None and topic.error_code == TOPIC_AUTHORIZATION_FAILED
        found[name] = replace(enabled, is_hidden=is_hidden)
    return found


def enabled_topic(
    config: Mapping[str, str], settings: TopicSettings, retention: AgentsRetention, replication_factor: int
) -> EnabledTopic:
    """Build an EnabledTopic from the topic's configuration in Kafka."""
    has_tier = settings.archive or is_tiered(config)
    local_ms = local_retention_ms(config)
    kept = None if local_ms is None else retention.longest_of(settings, replication_factor, local_ms)
    log_ms = log_retention_ms(config)
    metadata_ms = None if log_ms is None else retention.longest_of(settings, replication_factor, log_ms).lagging_ms
    return EnabledTopic(
        local_ms,
        has_tier,
        kept=kept,
        metadata_ms=metadata_ms,
        is_archived=settings.archive,
        grows=_grows(config, settings, kept),
        is_durable=settings.is_durable,
        replicas=replication_factor,
    )


def _grows(config: Mapping[str, str], settings: TopicSettings, kept: KeptFor | None) -> bool:
    """Whether storage grows without bound, and nobody has asked for that."""
    is_endless = kept is not None and kept.retention_ms == NO_LIMIT
    return is_endless and settings.wal_retention_ms != NO_LIMIT and why_not_as_local(config) is not None
