"""Reads what the cluster says about its topics, their settings and offsets. Blocks."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from typing import Final

from kafka_cluster.answers import UNKNOWN_TOPIC_OR_PARTITION, DescribedTopic
from kafka_cluster.client_config import KafkaClientConfig, from_java_properties
from kafka_cluster.cluster import EARLIEST, LATEST, KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from metadata_topic.kip405.kip405 import REMOTE_LOG_METADATA_TOPIC
from metadata_topic.settings.settings_topic import read_settings
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings
from metadata_topic.settings.wal_retention import (
    ALL_AS_BEFORE,
    AgentsRetention,
    KeptFor,
    age_limit_ms,
    is_tiered,
    local_retention_ms,
    longer,
)
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC
from retention_job.errors import SourceError
from retention_job.settings import KafkaSource

_CLIENT_ID: Final = "remote-wal-report"
_AS_RETENTION: Final = -2
"""The value of a local limit that means the limit of the whole log."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now."""

    topic_id: bytes
    name: str
    partitions: tuple[int, ...]
    replication_factor: int
    """The fewest replicas that a partition has, as agents count: while one is moved, the replicas that it leaves count
    too."""
    settings: TopicSettings
    config: Mapping[str, str]
    agents: AgentsRetention = ALL_AS_BEFORE
    has_lagging_replica: bool = False
    """Whether a partition has a replica that is not in sync."""

    def number(self, key: str) -> int | None:
        """Return one of Kafka's settings; None if it is absent or not a number."""
        try:
            return int(self.config[key])
        except (KeyError, ValueError):
            return None

    def local(self, kind: str) -> int | None:
        """Return `local.retention.<kind>` as brokers resolve it: it counts for tiered topics only."""
        local = self.number(f"local.retention.{kind}") if self.is_tiered else None
        return self.number(f"retention.{kind}") if local is None or local == _AS_RETENTION else local

    @property
    def kept_longest(self) -> KeptFor | None:
        """The longest time for which an agent keeps its entries, apart from an archive; None if unknown."""
        local_ms = local_retention_ms(self.config)
        return None if local_ms is None else self.agents.longest_of(*self._told, local_ms)

    @property
    def kept_shortest(self) -> KeptFor | None:
        """The time for which every agent keeps its entries; None if unknown."""
        local_ms = local_retention_ms(self.config)
        return None if local_ms is None else self.agents.shortest_of(*self._told, local_ms)

    @property
    def age_limit_ms(self) -> int | None:
        """The age from which no agent wants its entries, whatever the log holds; -1: none, None: unknown."""
        local_ms = local_retention_ms(self.config)
        if local_ms is None:
            return None
        return self.agents.longest_of(*self._told, age_limit_ms(local_ms, tiered=self.is_tiered)).retention_ms

    @property
    def _told(self) -> tuple[TopicSettings, int]:
        return self.settings, self.replication_factor

    @property
    def is_tiered(self) -> bool:
        """Whether KIP-405's remote storage is on, and copies."""
        return is_tiered(self.config)


@dataclass(frozen=True, slots=True)
class Offsets:
    """The start and end of a topic's log, by partition."""

    earliest: Mapping[int, int]
    latest: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster at one time."""

    brokers: frozenset[int]
    """The brokers that are up, and those whose agents are registered."""
    topics: tuple[Topic, ...]
    offsets: Mapping[str, Offsets]
    """The offsets of all topics, by name."""

    def config_of(self, topic: str) -> Mapping[str, str]:
        """Return Kafka's settings of a topic; empty if the topic does not exist."""
        return next((found.config for found in self.topics if found.name == topic), {})

    @property
    def held_ms(self) -> int:
        """The time for which agents keep entries for replicas that are not in sync; 0 if all are in sync, or
        NO_LIMIT.
        """
        kept = (topic.kept_longest for topic in self.topics if topic.settings.enable and topic.has_lagging_replica)
        return reduce(longer, (one.lagging_ms for one in kept if one is not None), 0)

    @property
    def has_tier(self) -> bool:
        """Whether `__remote_log_metadata` exists."""
        return REMOTE_LOG_METADATA_TOPIC in self.offsets


def offsets_by_topic(
    earliest: Mapping[tuple[str, int], int],
    latest: Mapping[tuple[str, int], int],
    partitions: Mapping[str, Sequence[int]],
) -> dict[str, Offsets]:
    """Return offsets by topic.

    Both ends are asked for at once: a start that has passed the reported end is the end, too.
    """
    return {
        name: Offsets(
            {number: earliest[name, number] for number in numbers if (name, number) in earliest},
            {
                number: max(latest[name, number], earliest.get((name, number), 0))
                for number in numbers
                if (name, number) in latest
            },
        )
        for name, numbers in partitions.items()
    }


def client_config(source: KafkaSource) -> KafkaClientConfig:
    """Return the configuration for librdkafka. Raises SourceError for a property that cannot be translated."""
    try:
        return from_java_properties(source.bootstrap_servers, source.client_properties)
    except KafkaClusterError as error:
        raise SourceError("configure", "Kafka client", str(error)) from error


def read_cluster(source: KafkaSource) -> Cluster:
    """Ask for everything. Raises SourceError if the cluster does not answer, or has no metadata topic."""
    client = client_config(source)
    try:
        return _read(KafkaCluster(client, _CLIENT_ID, source.timeout_s))
    except KafkaClusterError as error:
        hint = "is --bootstrap-server right?"
        raise SourceError(error.operation, source.bootstrap_servers, error.reason, hint) from error


def _read(cluster: KafkaCluster) -> Cluster:
    listing = cluster.listing()
    if METADATA_TOPIC not in listing.topics:
        raise SourceError("read", METADATA_TOPIC, "the cluster shows no such topic", "have agents ever run here?")
    # Ask side by side: one question after the other costs a dozen round trips to a cluster that may be far away.
    with ThreadPoolExecutor(1, thread_name_prefix="settings-topic") as pool:
        told = pool.submit(_settings, cluster.client) if SETTINGS_TOPIC in listing.topics else None
        # Leaves out topics that were deleted since they were listed, and topics that this client may not describe.
        ids = {one.name: bytes(one.topic_id) for one in cluster.topics(sorted(listing.topics)) if not one.error_code}
        partitions = {name: [one.partition for one in listing.topics[name].partitions] for name in sorted(ids)}
        asked = [(name, number) for name, numbers in partitions.items() for number in numbers]
        configs, earliest, latest = (
            cluster.topic_configurations(partitions), cluster.offsets(asked, EARLIEST), cluster.offsets(asked, LATEST)
        )  # fmt: skip
        deleted = {UNKNOWN_TOPIC_OR_PARTITION}
        given = configs.all(deleted)
        offsets = offsets_by_topic(earliest.all(deleted), latest.all(deleted), partitions)
        settings, agents = told.result() if told is not None else ({}, {})
    retention = AgentsRetention.registered(agents.values())
    topics = tuple(
        _topic(topic_id, listing.topics[name], settings.get(name, TopicSettings()), given.get(name, {}), retention)
        for name, topic_id in ids.items()
    )
    return Cluster(frozenset(listing.brokers) | set(agents), topics, offsets)


def _topic(
    topic_id: bytes,
    listed: DescribedTopic,
    settings: TopicSettings,
    config: Mapping[str, str],
    retention: AgentsRetention,
) -> Topic:
    return Topic(
        topic_id,
        listed.name,
        tuple(one.partition for one in listed.partitions),
        listed.replication_factor,
        settings,
        config,
        retention,
        any(one.is_lagging for one in listed.partitions),
    )


def _settings(client: KafkaClientConfig) -> tuple[Mapping[str, TopicSettings], Mapping[int, AgentRegistration]]:
    try:
        return read_settings(client)
    except KafkaClusterError as error:
        raise SourceError("read", SETTINGS_TOPIC, str(error)) from error
