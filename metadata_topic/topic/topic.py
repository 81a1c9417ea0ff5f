"""The metadata topics themselves: their names, settings and layout, created when they are missing."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, Self, cast

import structlog

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.responses import UNKNOWN_TOPIC_OR_PARTITION
from metadata_topic.records.errors import TopicNotKnownError, TopicSetupError
from metadata_topic.topic.topic_requirements import (
    UNLIMITED,
    TopicLayout,
    longer_retention,
    retention_needed_ms,
)

log = structlog.get_logger(__name__)

METADATA_TOPIC = "__remote_wal_log_metadata"
SETTINGS_TOPIC = "__remote_wal_topic_settings"

REPLICATION_KEY = "remote.wal.log.metadata.topic.replication.factor"


@dataclass(frozen=True, slots=True)
class MetadataTopicSettings:
    """How the metadata topics are created. Existing topics are not changed."""

    num_partitions: int = 12
    replication_factor: int = 3
    """`remote.wal.log.metadata.topic.replication.factor`; of both topics"""
    retention_ms: int = 8 * 24 * 60 * 60 * 1000
    """Longer than any topic's local.retention.ms and the grace time before an object is deleted; see `covering` and
    `topic_requirements`. The default covers Kafka's own of 7 days; -1: without end.
    """

    @property
    def min_insync_replicas(self) -> int:
        """How many replicas must be in sync: one may be missing, if there is more than one."""
        return max(1, self.replication_factor - 1)

    def covering(self, longest_kept_ms: int, grace_ms: int) -> Self:
        """Return the settings with a retention long enough for objects. It is never lowered."""
        needed_ms = retention_needed_ms(longest_kept_ms, grace_ms)
        return replace(self, retention_ms=longer_retention(self.retention_ms, needed_ms))

    def metadata_topic_config(self) -> dict[str, str]:
        """Return the configuration with which the metadata topic is created."""
        return {
            "cleanup.policy": "delete",
            "retention.ms": str(self.retention_ms),
            "retention.bytes": str(UNLIMITED),
            # Retention removes only whole closed segments, so they must not stay open for long.
            "segment.ms": str(_segment_ms(self.retention_ms)),
            "compression.type": "producer",
            "min.insync.replicas": str(self.min_insync_replicas),
            "unclean.leader.election.enable": "false",
        }

    def settings_topic_config(self) -> dict[str, str]:
        """Return the configuration with which the settings topic is created."""
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "min.insync.replicas": str(self.min_insync_replicas),
            "unclean.leader.election.enable": "false",
        }


_WEEK_MS: Final = 7 * 24 * 60 * 60 * 1000


def _segment_ms(retention_ms: int) -> int:
    return _WEEK_MS if retention_ms == UNLIMITED else max(60_000, retention_ms // 8)


class Broker(NamedTuple):
    """A live broker: its id and rack."""

    broker_id: int
    rack: str | None


class AdminLike(Protocol):
    """The subset of an admin client that creating the topics needs; `confluent_admin` makes the real one."""

    def brokers(self) -> list[Broker]: ...

    def partition_counts(self) -> dict[str, int]:
        """Return every topic with the number of its partitions."""

    def layout(self, topic: str) -> TopicLayout | None:
        """Return the topic's layout; None when it does not exist. Raises KafkaClusterError."""

    def create(self, topic: str, assignment: list[list[int]], config: Mapping[str, str]) -> bool:
        """Create a topic; False when it already exists. Raises KafkaClusterError."""

    def topic_config(self, topic: str) -> dict[str, str]: ...


def replica_assignment(brokers: Sequence[Broker], partition_count: int, replication_factor: int) -> list[list[int]]:
    """Return the replicas of each partition, the preferred leader first.

    Partition p is led by a broker whose agent publishes to p (`metadata_partition`), so that publishing stays inside
    the zone; if no broker's agent does, the brokers take turns. The other replicas are spread over the other racks
    first. Raises TopicSetupError when there are too few brokers.
    """
    if len(brokers) < replication_factor:
        raise TopicSetupError(
            "create metadata topic",
            REPLICATION_KEY,
            f"replication factor {replication_factor} needs as many live brokers, there are {len(brokers)}",
            f"start more brokers, or set {REPLICATION_KEY} to {max(1, len(brokers))}",
        )
    ordered = sorted(brokers)
    leaders: dict[int, Broker] = {}
    for broker in ordered:
        leaders.setdefault(metadata_partition(broker.broker_id, partition_count), broker)
    assignment = []
    for partition in range(partition_count):
        leader = leaders.get(partition, ordered[partition % len(ordered)])
        at = ordered.index(leader)
        # Take turns among the followers too, or the leader's neighbour would follow everything.
        turn = at + 1 + partition // len(ordered)
        others = [b for b in (*ordered[turn % len(ordered) :], *ordered[: turn % len(ordered)]) if b != leader]
        assignment.append([b.broker_id for b in _spread(leader, others, replication_factor)])
    return assignment


def _spread(leader: Broker, others: list[Broker], replication_factor: int) -> list[Broker]:
    chosen = [leader]
    while len(chosen) < replication_factor:
        uses = {broker: sum(c.rack == broker.rack for c in chosen) for broker in others}
        chosen.append(min((b for b in others if b not in chosen), key=lambda b: uses[b]))
    return chosen


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def ensure_topics(
    client_config: KafkaClientConfig,
    settings: MetadataTopicSettings,
    timeout_s: float = 30.0,
    admin: AdminLike | None = None,
    wait: Callable[[float], object] = _pause,
) -> None:
    """Create the two topics if they are missing. Safe to call from many agents. Existing topics are left as they are.

    Blocks until brokers know both. Raises KafkaClusterError, whose `retriable` tells whether waiting (for brokers to
    come) may help.
    """
    admin = admin or confluent_admin(client_config, timeout_s)
    there = admin.partition_counts()
    wanted = (
        (METADATA_TOPIC, settings.num_partitions, settings.metadata_topic_config()),
        (SETTINGS_TOPIC, 1, settings.settings_topic_config()),
    )
    for topic, partition_count, config in wanted:
        if topic not in there:
            assignment = replica_assignment(admin.brokers(), partition_count, settings.replication_factor)
            if admin.create(topic, assignment, config):
                log.info("metadata_topic_created", topic=topic, partitions=partition_count, config=config)
        _wait_until_known(admin, topic, timeout_s, wait)


def _wait_until_known(admin: AdminLike, topic: str, timeout_s: float, wait: Callable[[float], object]) -> None:
    """Wait for a new topic that not every broker knows yet."""
    pause_s = 0.1
    for _ in range(max(1, int(timeout_s / pause_s))):
        if admin.layout(topic) is not None:
            return
        wait(pause_s)
    raise TopicSetupError("create topic", topic, f"made, but not to be seen within {timeout_s} s")


class _TopicAdmin:
    """Asks a cluster about the metadata topics, and creates them."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    def brokers(self) -> list[Broker]:
        return [Broker(one.broker_id, one.rack) for one in self._cluster.brokers()]

    def partition_counts(self) -> dict[str, int]:
        return {name: len(topic.partitions) for name, topic in self._cluster.listing().topics.items()}

    def layout(self, topic: str) -> TopicLayout | None:
        listed = self._cluster.listing(topic).topics[topic]
        if listed.error_code == UNKNOWN_TOPIC_OR_PARTITION:
            return None
        if listed.error_code:
            raise self._cluster.refused(f"list topic {topic}", listed.error_code)
        return TopicLayout(len(listed.partitions), listed.replication_factor)

    def create(self, topic: str, assignment: list[list[int]], config: Mapping[str, str]) -> bool:
        return self._cluster.create_topic(topic, assignment, config)

    def topic_config(self, topic: str) -> dict[str, str]:
        config = self._cluster.topic_configurations([topic]).get_all({UNKNOWN_TOPIC_OR_PARTITION})
        if topic not in config:
            raise TopicNotKnownError("describe topic", topic, "the broker does not know it")
        return config[topic]


def confluent_admin(client_config: KafkaClientConfig, timeout_s: float) -> AdminLike:
    return cast(AdminLike, _TopicAdmin(KafkaCluster(client_config, "remote-wal-metadata-admin", timeout_s)))


def metadata_partition(broker_id: int, partition_count: int) -> int:
    """Return the one partition that the agent of `broker_id` writes.

    All records of an agent share a partition, so readers see them in the order of publication. The topic is laid out so
    that the agent's own broker leads this partition (`metadata_topic.topic.topic.replica_assignment`), so publishing
    does not cross zones. KIP-405 hashes the topic partition instead; here a record is about many partitions.
    """
    if broker_id < 0 or partition_count < 1:
        raise ValueError(f"no metadata partition for broker {broker_id} among {partition_count}")
    return broker_id % partition_count
