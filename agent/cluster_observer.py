"""What the cluster tells of topics and brokers, asked at long intervals. Blocks; for a thread of its own.

Theory. A topic that is hidden is not a topic that was deleted, and the list of all topics leaves both out alike. Only
when a topic is asked for by its name does Kafka tell them apart, UNKNOWN_TOPIC_OR_PARTITION from
TOPIC_AUTHORIZATION_FAILED. So every name is asked for that this agent has seen or heard of; what is hidden stays as it
is, and while anything is, so do topics of which no name is known, since any of them may be the hidden one.

Any other fault in an answer makes all of it worth nothing, and so does a cluster in which the agents' own metadata
topic is not to be seen: it is not the whole cluster.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import structlog

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.client_config import LIBRDKAFKA_LOGGER, KafkaClientConfig
from metadata_topic.cluster_descriptions import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    ClusterDescriptions,
)
from metadata_topic.topic import METADATA_TOPIC
from rlm.release import NEVER, ClusterView, HiddenTopics, TopicWatch

log = structlog.get_logger(__name__)

K = TypeVar("K")

_LOCAL_RETENTION = "local.retention.ms"
_RETENTION = "retention.ms"
_AS_RETENTION = "-2"
"""The value of local.retention.ms that stands for retention.ms."""


class ClusterUnknownError(Exception):
    """The cluster did not tell enough."""


@dataclass(frozen=True, slots=True)
class Observation:
    """The cluster at one time."""

    view: ClusterView
    brokers: frozenset[int]
    names: Mapping[TopicId, str] = field(default_factory=dict)
    """Of the living topics."""
    hidden: frozenset[str] = frozenset()
    """Topics that this client may not describe, by name: whether they are there is not known."""


def local_retention_ms(config: Mapping[str, str | None]) -> int | None:
    """How long a topic's records stay on the brokers' disks; NEVER for always, None when it is not known.

    Topics without tiered storage keep all of their retention there.
    """
    local = config.get(_LOCAL_RETENTION)
    text = config.get(_RETENTION) if local is None or local == _AS_RETENTION else local
    try:
        value = int(text) if text is not None else None
    except ValueError:
        return None
    return value if value is None or value >= 0 else NEVER


class ClusterObserver:
    """Asks Kafka. One caller at a time."""

    def __init__(self, client: KafkaClientConfig, broker_id: int, watch: TopicWatch, timeout_s: float = 10.0) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient(
            client.for_confluent(client_id=f"remote-wal-agent-{broker_id}-lifecycle"),
            logger=logging.getLogger(LIBRDKAFKA_LOGGER),
        )
        self._descriptions = ClusterDescriptions(client, f"remote-wal-agent-{broker_id}-lifecycle", timeout_s)
        self._watch = watch
        self._timeout_s = timeout_s
        self._seen: dict[TopicId, str] = {}
        """The names of living topics, and of those that were, as long as they are wanted or hidden."""

    def observe(self, wanted: Collection[TopicId], heard_of: Collection[str], now_ms: int) -> Observation:
        """The brokers, which topics are there, and of the wanted ones retention and log start offsets.

        `heard_of` are names of topics that may be among the wanted ones. Raises ClusterUnknownError,
        DescriptionError, and confluent_kafka.KafkaException.
        """
        metadata = self._admin.list_topics(timeout=self._timeout_s)
        if METADATA_TOPIC not in metadata.topics:
            raise ClusterUnknownError(f"the cluster does not show {METADATA_TOPIC}; may this client describe topics?")
        names, hidden = self._describe(sorted({*metadata.topics, *self._seen.values(), *heard_of}))
        view = self._watch.seen(frozenset(names), now_ms, self._hidden_of(names, hidden))
        self._seen = {known: name for known, name in self._seen.items() if known in wanted or name in hidden} | names
        if hidden:
            log.warning("topics_hidden", topics=sorted(hidden), hint="allow the agents' principal to describe them",
                        consequence="nothing is deleted on the ground that a topic is gone")  # fmt: skip
        asked = {topic_id: name for topic_id, name in names.items() if topic_id in wanted}
        partitions = {
            TopicIdPartition(topic_id, number): (name, number)
            for topic_id, name in asked.items()
            if name in metadata.topics
            for number in metadata.topics[name].partitions
        }
        return Observation(
            replace(view, retention_ms=self._retention(asked), log_start=self._log_start(partitions)),
            frozenset(metadata.brokers),
            names,
            hidden,
        )

    def _hidden_of(self, names: Mapping[TopicId, str], hidden: frozenset[str]) -> HiddenTopics:
        known = {topic_id for topic_id, name in self._seen.items() if name in hidden}
        return HiddenTopics(frozenset(known - set(names)), others=bool(hidden))

    def local_retentions_ms(self, names: Iterable[str]) -> dict[str, int]:
        """Of those topics whose retention is known. Raises ClusterUnknownError, and confluent_kafka.KafkaException."""
        return self._retention({name: name for name in names})

    def _describe(self, names: list[str]) -> tuple[dict[TopicId, str], frozenset[str]]:
        """The topics that are there, and the names of those that are hidden."""
        found: dict[TopicId, str] = {}
        hidden: set[str] = set()
        for topic in self._descriptions.topics(names):
            if topic.error_code == TOPIC_AUTHORIZATION_FAILED:
                hidden.add(topic.name)
            elif not topic.error_code:
                found[topic.topic_id] = topic.name
            elif topic.error_code != UNKNOWN_TOPIC_OR_PARTITION:
                raise ClusterUnknownError(f"describing topic {topic.name} failed with Kafka's error {topic.error_code}")
        return found, frozenset(hidden)

    def _retention(self, asked: Mapping[K, str]) -> dict[K, int]:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType

        if not asked:
            return {}
        ids = {name: topic_id for topic_id, name in asked.items()}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in ids]
        found: dict[K, int] = {}
        for resource, future in self._admin.describe_configs(resources, request_timeout=self._timeout_s).items():
            try:
                entries = self._result(future)
            except KafkaException as error:
                log.info("topic_retention_unknown", topic=resource.name, error=str(error))
                continue
            retention_ms = local_retention_ms({key: entry.value for key, entry in entries.items()})
            if retention_ms is not None:
                found[ids[resource.name]] = retention_ms
        return found

    def _log_start(self, partitions: Mapping[TopicIdPartition, tuple[str, int]]) -> dict[TopicIdPartition, int]:
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        if not partitions:
            return {}
        keys = {where: partition for partition, where in partitions.items()}
        wanted = {TopicPartition(*where): OffsetSpec.earliest() for where in keys}
        found: dict[TopicIdPartition, int] = {}
        for asked, future in self._admin.list_offsets(wanted, request_timeout=self._timeout_s).items():
            try:
                found[keys[asked.topic, asked.partition]] = int(self._result(future).offset)
            except KafkaException as error:
                log.info("log_start_unknown", topic=asked.topic, partition=asked.partition, error=str(error))
        return found

    def _result(self, future: "Future[Any]") -> Any:
        try:
            return future.result(timeout=2 * self._timeout_s)
        except TimeoutError as error:
            raise ClusterUnknownError(f"no answer within {2 * self._timeout_s} s") from error


def topics_of(partitions: Iterable[TopicIdPartition]) -> set[TopicId]:
    """Their topics."""
    return {partition.topic_id for partition in partitions}
