"""Reads topics, settings and offsets by the admin client, and records by Spark's connector. Blocks."""

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Final

from kafka_cluster.client_config import KafkaClientConfig, from_java_properties
from kafka_cluster.cluster import EARLIEST, LATEST, KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.responses import NO_LEADER_TO_ASK, UNKNOWN_TOPIC_OR_PARTITION, DescribedTopic, Responses
from kafka_log.topic_partition import TopicId
from metadata_topic.kip405.kip405 import REMOTE_LOG_METADATA_TOPIC
from metadata_topic.records.topic_doubt import EpochEnds
from metadata_topic.settings.settings_topic import read_settings
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import (
    ALL_AS_BEFORE,
    NO_LIMIT,
    AgentsRetention,
    KeptFor,
    ends_by_local_retention,
    is_tiered,
    local_retention_ms,
    log_retention_ms,
    longer,
)
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC
from retention_job.errors import SourceError
from retention_job.settings import KafkaSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CLIENT_ID: Final = "remote-wal-report"
_AS_RETENTION: Final = -2
"""The value of a local limit that means the limit of the whole log."""
_RECORDS_PER_TASK: Final = 250_000
"""Limits a task, so that a long partition is several tasks. A short one is one, as each costs a dozen round trips."""
FETCHING: Final = {
    "kafka.allow.auto.create.topics": "false",
    "kafka.max.poll.records": "20000",
    "kafka.fetch.min.bytes": str(1024 * 1024),
    "kafka.fetch.max.wait.ms": "100",
    "kafka.max.partition.fetch.bytes": str(8 * 1024 * 1024),
}
RAW_COLUMNS: Final = "key BINARY, value BINARY, partition INT, offset LONG, timestamp_ms LONG"


@dataclass(frozen=True, slots=True)
class Topic:
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
        """Return a setting of the topic as number; None if it is absent or no number."""
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
        """The longest time for which an agent keeps the topic's entries, apart from an archive; None if unknown.

        It is bounded by how long brokers, or the tier, keep the log.
        """
        log_ms = self._log_ms
        return None if log_ms is None else self.agents.longest_of(self.settings, self.replication_factor, log_ms)

    @property
    def kept_shortest(self) -> KeptFor | None:
        """The time for which every agent keeps the topic's entries; None if unknown."""
        log_ms = self._log_ms
        return None if log_ms is None else self.agents.shortest_of(self.settings, self.replication_factor, log_ms)

    @property
    def kept_ms(self) -> int | None:
        """How long the topic's entries are kept, in ms, by the agent that keeps them longest, while all replicas are in
        sync.

        -1: as long as the log. None: unknown, or the entries wait for the archive.
        """
        kept = self._kept_by_age
        return None if kept is None or self.settings.archive else kept.retention_ms

    @property
    def held_ms(self) -> int:
        """How long entries are kept for a replica that is not in sync, in ms; 0 if no age releases them, or if
        unknown."""
        kept = self._kept_by_age
        return 0 if kept is None or kept.retention_ms == NO_LIMIT else kept.lagging_ms

    @property
    def _kept_by_age(self) -> KeptFor | None:
        """The longest time after which agents delete by age, whether or not the log's start or the tier comes first."""
        local_ms = local_retention_ms(self.config)
        if local_ms is None:
            return None
        limit_ms = local_ms if self._ends_by_local_retention else NO_LIMIT
        return self.agents.longest_of(self.settings, self.replication_factor, limit_ms)

    @property
    def _log_ms(self) -> int | None:
        of = local_retention_ms if self._ends_by_local_retention else log_retention_ms
        return of(self.config)

    @property
    def _ends_by_local_retention(self) -> bool:
        return ends_by_local_retention(self.settings, tiered=self.is_tiered)

    @property
    def is_tiered(self) -> bool:
        """Whether KIP-405's remote storage is on for the topic, and copies its segments."""
        return is_tiered(self.config)


@dataclass(frozen=True, slots=True)
class Offsets:
    """The start and end offsets of a topic's partitions."""

    earliest: Mapping[int, int]
    latest: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Cluster:
    brokers: frozenset[int]
    """The brokers that are up, and those whose agents are registered."""
    topics: tuple[Topic, ...]
    offsets: Mapping[str, Offsets]
    """The offsets of all topics, by name."""
    unanswered: frozenset[tuple[str, int]] = frozenset()
    """Partitions whose offsets are not known, as no leader answers for them."""
    hidden: frozenset[TopicId] = frozenset()
    """Topics that are not among `topics`, and not known to be deleted: their entries are kept."""
    metadata_epochs: Mapping[int, int] = field(default_factory=dict)
    """The leader epochs of the metadata topic's partitions, before the offsets were asked and after; lacks those not
    known, and those that changed meanwhile."""

    @property
    def metadata_topic(self) -> Topic:
        """The topic `__remote_wal_log_metadata`."""
        return next(topic for topic in self.topics if topic.name == METADATA_TOPIC)

    @property
    def retentions(self) -> dict[str, int | None]:
        """The retentions by which segments are judged: `Topic.kept_ms` by hexadecimal id, if the feature is on."""
        told = {topic.topic_id.hex(): topic.kept_ms for topic in self.topics if topic.settings.enable}
        return told | dict.fromkeys((topic_id.hex() for topic_id in self.hidden), None)

    @property
    def held_ms(self) -> int:
        """For how long agents keep entries for replicas that are not in sync, in ms; 0 if all are in sync, or
        NO_LIMIT."""
        lagging = (topic for topic in self.topics if topic.settings.enable and topic.has_lagging_replica)
        return reduce(longer, (topic.held_ms for topic in lagging), 0)


def offsets_by_topic(
    earliest: Mapping[tuple[str, int], int],
    latest: Mapping[tuple[str, int], int],
    partitions: Mapping[str, Sequence[int]],
) -> dict[str, Offsets]:
    """Return offsets by topic.

    Both ends were asked for at once: a start that has passed the reported end counts as the end as well.
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


class Kafka:
    """The report job's requests to the cluster."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source

    def client_config(self) -> KafkaClientConfig:
        """Return the configuration for librdkafka. Raises SourceError for a property that cannot be translated."""
        try:
            return from_java_properties(self._source.bootstrap_servers, self._source.client_properties)
        except KafkaClusterError as error:
            raise SourceError("configure", "Kafka client", str(error)) from error

    def cluster(self) -> Cluster:
        """Ask for topics, settings and offsets as they are now.

        Raises SourceError if the cluster does not respond, or has no metadata topic.
        """
        client = self.client_config()
        try:
            return _ask(KafkaCluster(client, _CLIENT_ID, self._source.timeout_s))
        except KafkaClusterError as error:
            hint = error.hint or "is --bootstrap-server right?"
            raise SourceError(error.operation, self._source.bootstrap_servers, error.reason, hint) from error

    def with_hidden(self, cluster: Cluster, topic_ids: Iterable[TopicId]) -> Cluster:
        """Return the cluster, with those of these topics marked as hidden that it lacks and that are not known to be
        deleted. Raises SourceError."""
        unseen = {*topic_ids} - {one.topic_id for one in cluster.topics} - cluster.hidden
        if not unseen:
            return cluster
        client = KafkaCluster(self.client_config(), _CLIENT_ID, self._source.timeout_s)
        try:
            hidden = client.maybe_there(unseen, TopicId(cluster.metadata_topic.topic_id))
        except KafkaClusterError as error:
            raise SourceError(error.operation, self._source.bootstrap_servers, error.reason) from error
        return replace(cluster, hidden=cluster.hidden | hidden)

    def epoch_ends(self, epochs: Mapping[int, int]) -> EpochEnds:
        """Return where these leader epochs of the metadata topic's partitions end now. Raises SourceError."""
        client = KafkaCluster(self.client_config(), _CLIENT_ID, self._source.timeout_s)
        try:
            return client.ends_of_epochs(METADATA_TOPIC, epochs.items())
        except KafkaClusterError as error:
            raise SourceError(error.operation, self._source.bootstrap_servers, error.reason) from error

    def records(
        self, spark: "SparkSession", topic: str, starting: Mapping[int, int], ending: Mapping[int, int]
    ) -> "DataFrame":
        """Return a table RAW_COLUMNS of the records [starting, ending) of each partition of a topic."""
        if not any(end > starting.get(partition, 0) for partition, end in ending.items()):
            return spark.createDataFrame([], RAW_COLUMNS)
        reader = spark.read.format("kafka").options(**FETCHING)
        for name, value in self._source.client_properties.items():
            reader = reader.option(f"kafka.{name}", value)
        return (
            reader.option("kafka.bootstrap.servers", self._source.bootstrap_servers)
            .option("subscribe", topic)
            .option("startingOffsets", json.dumps({topic: dict(starting)}))
            .option("endingOffsets", json.dumps({topic: dict(ending)}))
            .option("maxRecordsPerPartition", str(_RECORDS_PER_TASK))
            # The topic's own retention may remove records during the reading; that is not an error.
            .option("failOnDataLoss", "false")
            .load()
            .selectExpr("key", "value", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms")
        )


def _ask(cluster: KafkaCluster) -> Cluster:
    listing = cluster.listing()
    for needed in (METADATA_TOPIC, SETTINGS_TOPIC):
        if needed not in listing.topics:
            raise SourceError("read", needed, "the cluster shows no such topic", "have agents ever run here?")
    # Ask side by side: one question after the other costs a dozen round trips to a cluster that may be far away.
    with ThreadPoolExecutor(1, thread_name_prefix="settings-topic") as pool:
        told = pool.submit(read_settings, cluster.client)
        # Leaves out topics that were deleted since they were listed, and topics that this client may not describe.
        described = {one.name: one for one in cluster.topics(sorted(listing.topics)) if not one.error_code}
        ids = {name: one.topic_id for name, one in described.items()}
        partitions = {name: [one.partition for one in listing.topics[name].partitions] for name in sorted(ids)}
        unanswered = {
            (name, one.partition) for name in partitions for one in listing.topics[name].partitions if one.leader_id < 0
        }
        asked = [
            (name, number)
            for name, numbers in partitions.items()
            for number in numbers
            if (name, number) not in unanswered
        ]
        configs, earliest, latest = (
            cluster.topic_configurations(partitions), cluster.offsets(asked, EARLIEST), cluster.offsets(asked, LATEST)
        )  # fmt: skip
        deleted = {UNKNOWN_TOPIC_OR_PARTITION}
        given = configs.get_all(deleted)
        starts, ends = _told(earliest, unanswered), _told(latest, unanswered)
        offsets = offsets_by_topic(starts, ends, partitions)
        known = told.result()
    for name, number in sorted(unanswered):
        if name in (METADATA_TOPIC, REMOTE_LOG_METADATA_TOPIC):
            raise SourceError("read", f"{name}-{number}", "it has no leader", "without it nothing can be judged")
    retention = AgentsRetention.registered(known.agents.values())
    topics = tuple(
        Topic(
            topic_id,
            name,
            tuple(one.partition for one in listing.topics[name].partitions),
            listing.topics[name].replication_factor,
            known.of(name, topic_id) or TopicSettings(),
            given.get(name, {}),
            retention,
            any(one.is_lagging for one in listing.topics[name].partitions),
        )
        for name, topic_id in ids.items()
    )
    bound = {one.topic_id for one in known.topics.values() if one.topic_id is not None}
    hidden = cluster.maybe_there(bound - set(ids.values()), ids[METADATA_TOPIC])
    # Below the offsets may be records of a leader that was elected after the first question: what its predecessor's
    # epoch lacks is not lost.
    epochs = dict(_epochs(described[METADATA_TOPIC]) & _epochs(*cluster.topics([METADATA_TOPIC])))
    brokers = frozenset(listing.brokers) | set(known.agents)
    return Cluster(brokers, topics, offsets, frozenset(unanswered), hidden, epochs)


def _epochs(topic: DescribedTopic) -> set[tuple[int, int]]:
    return {(one.partition, one.leader_epoch) for one in topic.partitions if one.leader_epoch >= 0}


def _told(answers: Responses[tuple[str, int], int], unanswered: set[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the offsets that leaders tell, without those of deleted topics; add the others to `unanswered`."""
    found = {}
    for where, answer in answers.each():
        if not isinstance(answer, KafkaClusterError):
            found[where] = answer
        elif answer.code in NO_LEADER_TO_ASK:
            unanswered.add(where)
        elif answer.code != UNKNOWN_TOPIC_OR_PARTITION:
            raise answer
    return found
