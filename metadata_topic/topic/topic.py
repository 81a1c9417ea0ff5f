"""The metadata topics themselves: their names, settings and layout, created when they are missing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import structlog

from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.responses import DescribedBroker
from metadata_topic.records.errors import TopicSetupError
from metadata_topic.topic.topic_requirements import UNLIMITED, longer_retention, retention_needed_ms

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


def replica_assignment(
    brokers: Sequence[DescribedBroker], partition_count: int, replication_factor: int
) -> list[list[int]]:
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
    ordered = sorted(brokers, key=lambda broker: broker.broker_id)
    leaders: dict[int, DescribedBroker] = {}
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


def _spread(leader: DescribedBroker, others: list[DescribedBroker], replication_factor: int) -> list[DescribedBroker]:
    chosen = [leader]
    while len(chosen) < replication_factor:
        uses = {broker: sum(c.rack == broker.rack for c in chosen) for broker in others}
        chosen.append(min((b for b in others if b not in chosen), key=lambda b: uses[b]))
    return chosen


def ensure_topics(cluster: KafkaCluster, settings: MetadataTopicSettings) -> None:
    """Create the two topics if they are missing. Safe to call from many agents. Existing topics are left as they are.

    For some tenths of a second, not every broker knows a new topic. Blocks. Raises KafkaClusterError, whose `retriable`
    tells whether waiting (for brokers to come) may help.
    """
    there = cluster.listing().topics
    wanted = (
        (METADATA_TOPIC, settings.num_partitions, settings.metadata_topic_config()),
        (SETTINGS_TOPIC, 1, settings.settings_topic_config()),
    )
    for topic, partition_count, config in wanted:
        if topic not in there:
            assignment = replica_assignment(cluster.brokers(), partition_count, settings.replication_factor)
            if cluster.create_topic(topic, assignment, config):
                log.info("metadata_topic_created", topic=topic, partitions=partition_count, config=config)


def metadata_partition(broker_id: int, partition_count: int) -> int:
    """Return the one partition that the agent of `broker_id` writes.

    All records of an agent share a partition, so readers see them in the order of publication. The topic is laid out so
    that the agent's own broker leads this partition (`metadata_topic.topic.topic.replica_assignment`), so publishing
    does not cross zones. KIP-405 hashes the topic partition instead; here a record is about many partitions.
    """
    if broker_id < 0 or partition_count < 1:
        raise ValueError(f"no metadata partition for broker {broker_id} among {partition_count}")
    return broker_id % partition_count
