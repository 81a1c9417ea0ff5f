"""Asks the cluster for its topics, their settings and offsets, by the admin client. Blocks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final, TypeVar

from kafka_cluster.client_config import KafkaClientConfig, from_java_properties
from kafka_cluster.cluster import KafkaCluster
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

T = TypeVar("T")

_CLIENT_ID: Final = "remote-wal-report"
_AS_RETENTION: Final = -2
"""The value of a local limit that means the limit of the whole log."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now; columns as in `schemas.TOPICS`."""

    topic_id: bytes
    name: str
    partitions: tuple[int, ...]
    leaders: tuple[int | None, ...]
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
    def is_kept(self) -> bool:
        """Whether its objects are stored for more than links."""
        return self.settings.enable and self.agents.is_kept(*self._told)

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
    return _Admin(source).read()


class _Admin:
    def __init__(self, source: KafkaSource) -> None:
        from confluent_kafka.admin import AdminClient

        self._source = source
        self._client = client_config(source)
        self._admin = AdminClient(self._client.for_confluent(client_id=_CLIENT_ID))

    def read(self) -> Cluster:
        metadata = self._ask("list topics", lambda: self._admin.list_topics(timeout=self._source.timeout_s))
        if METADATA_TOPIC not in metadata.topics:
            raise SourceError("read", METADATA_TOPIC, "the cluster shows no such topic", "have agents ever run here?")
        # At the same time, because one after the other would take a dozen round trips to a cluster that may be far
        # away.
        with ThreadPoolExecutor(1, thread_name_prefix="settings-topic") as pool:
            told = pool.submit(self._settings) if SETTINGS_TOPIC in metadata.topics else None
            ids = self._ids(sorted(metadata.topics))
            configs, offsets = self._configs_and_offsets(
                {name: sorted(metadata.topics[name].partitions) for name in sorted(ids)}
            )
            settings, agents = told.result() if told is not None else ({}, {})
        retention = AgentsRetention.registered(agents.values())
        described = (
            self._topic(topic_id, metadata.topics[name], settings.get(name, TopicSettings()), configs.get(name, {}))
            for name, topic_id in ids.items()
        )
        topics = tuple(replace(topic, agents=retention) for topic in described)
        return Cluster(frozenset(metadata.brokers) | set(agents), topics, offsets)

    def _topic(self, topic_id: bytes, described: Any, settings: TopicSettings, config: Mapping[str, str]) -> Topic:
        partitions = [described.partitions[number] for number in sorted(described.partitions)]
        return Topic(
            topic_id,
            described.topic,
            tuple(partition.id for partition in partitions),
            tuple(partition.leader if partition.leader >= 0 else None for partition in partitions),
            min((len(partition.replicas) for partition in partitions), default=0),
            settings,
            config,
            has_lagging_replica=any(not set(partition.replicas) <= set(partition.isrs) for partition in partitions),
        )

    def _settings(self) -> tuple[Mapping[str, TopicSettings], Mapping[int, AgentRegistration]]:
        try:
            return read_settings(self._client)
        except KafkaClusterError as error:
            raise SourceError("read", SETTINGS_TOPIC, str(error)) from error

    def _ids(self, names: list[str]) -> dict[str, bytes]:
        """Return ids, without topics that were deleted since they were listed or that this client may not describe."""
        described = self._ask(
            "describe topics",
            lambda: KafkaCluster(self._client, _CLIENT_ID, self._source.timeout_s).topics(names),
        )
        return {topic.name: bytes(topic.topic_id) for topic in described if not topic.error_code}

    def _configs_and_offsets(
        self, partitions: Mapping[str, Sequence[int]]
    ) -> tuple[dict[str, dict[str, str]], dict[str, Offsets]]:
        """Return settings and offsets of topics with these partitions.

        All requests are sent before any answer is awaited.
        """
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import ConfigResource, OffsetSpec, ResourceType

        if not partitions:
            return {}, {}
        timeout_s = self._source.timeout_s
        asked = [TopicPartition(name, number) for name, numbers in partitions.items() for number in numbers]
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in partitions]
        configs = self._admin.describe_configs(resources, request_timeout=timeout_s)
        earliest, latest = (
            self._admin.list_offsets(dict.fromkeys(asked, spec), request_timeout=timeout_s)
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        told = {
            resource.name: {key: entry.value for key, entry in config.items() if entry.value is not None}
            for resource, config in self._results("describe topic settings", configs.items())
        }
        return told, offsets_by_topic(self._listed(earliest), self._listed(latest), partitions)

    def _listed(self, futures: Mapping[Any, "Future[Any]"]) -> dict[tuple[str, int], int]:
        found = self._results("list offsets", futures.items())
        return {(asked.topic, asked.partition): int(answer.offset) for asked, answer in found}

    def _results(self, operation: str, futures: Iterable[tuple[T, "Future[Any]"]]) -> list[tuple[T, Any]]:
        """Return the results, without those of topics that were deleted since they were listed."""
        from confluent_kafka import KafkaError, KafkaException

        found = []
        for asked, future in futures:
            try:
                found.append((asked, future.result(timeout=2 * self._source.timeout_s)))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._unreachable(operation, error.args[0].str()) from error
            except TimeoutError as error:
                raise self._unreachable(operation, f"no answer within {2 * self._source.timeout_s:.0f} s") from error
        return found

    def _ask(self, operation: str, question: Callable[[], T]) -> T:
        from confluent_kafka import KafkaException

        try:
            return question()
        except KafkaException as error:
            raise self._unreachable(operation, error.args[0].str()) from error
        except KafkaClusterError as error:
            raise self._unreachable(operation, error.reason) from error

    def _unreachable(self, operation: str, reason: str) -> SourceError:
        return SourceError(operation, self._source.bootstrap_servers, reason, "is --bootstrap-server right?")
