"""Reads samples of a cluster for `remote-wal estimate` and `reassign`. Changes nothing."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from kafka_cluster.cluster import EARLIEST, LATEST, KafkaCluster
from kafka_cluster.responses import NO_LEADER_TO_ASK, UNKNOWN_TOPIC_OR_PARTITION
from recovery.reassignment.admin import ReassignmentAdmin
from recovery.reassignment.plan import Load, TopicPartition
from retention_job.cost.estimate import Log, Sample, mean_record_bytes

if TYPE_CHECKING:
    from kafka_cluster.client_config import KafkaClientConfig

_NOT_HERE = NO_LEADER_TO_ASK | {UNKNOWN_TOPIC_OR_PARTITION}
"""What is said of partitions that are gone, have no leader or another one: the next sample has them."""


class Sampler:
    """Takes samples of one cluster's offsets, sizes, racks and groups. Close it after use."""

    def __init__(self, client: "KafkaClientConfig", timeout_s: float, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds. Raises ReassignmentError, ClientPropertyError."""
        self._clock = clock
        self._cluster = KafkaCluster(client, "remote-wal-samples", timeout_s)
        self._admin = ReassignmentAdmin(client, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def sample(self) -> Sample:
        """Return a sample of the cluster as it is now. Raises KafkaClusterError, ReassignmentError."""
        placed = self._admin.cluster()
        led = {one.topic_partition: one for one in placed.partitions if one.leader >= 0}
        sizes, at_s = self._admin.replica_sizes(led), self._clock()
        names = [(where.topic, where.partition) for where in led]
        ends = self._cluster.offsets(names, LATEST).get_all(_NOT_HERE)
        starts = self._cluster.offsets(names, EARLIEST).get_all(_NOT_HERE)
        logs = {
            (where.topic, where.partition): Log(
                one.leader, tuple(one.replicas), starts[name], ends[name], sizes[where, one.leader]
            )
            for where, one in led.items()
            if (name := (where.topic, where.partition)) in ends and name in starts and (where, one.leader) in sizes
        }
        return Sample(at_s, placed.racks, logs, self._cluster.committed())


def partition_loads(first: Sample, last: Sample) -> dict[TopicPartition, Load]:
    """Return each partition's load between two samples.

    A record counts with the mean size of records appended between the samples, else of those in the log. Followers read
    everything once, and groups read what they committed between the samples.
    """
    seconds, record_bytes = last.at_s - first.at_s, mean_record_bytes([first, last])
    loads = {}
    for where, log in last.logs.items():
        before = first.logs.get(where, log)
        written = max(0, log.end - before.end)
        read = sum(
            max(0, offsets[where] - first.committed.get(group, {}).get(where, offsets[where]))
            for group, offsets in last.committed.items()
            if where in offsets
        )
        per_s = record_bytes[where] / seconds
        out = (len(log.replicas) - 1) * written + read
        loads[TopicPartition(*where)] = Load(written * per_s, max(1.0, out * per_s), max(1.0, log.size))
    return loads
