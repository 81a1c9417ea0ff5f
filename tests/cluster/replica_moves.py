"""What tests do to topics, replicas and leaders of a cluster, each with the wait for its effect."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import REQUEST_TIMEOUT_S, ClusterAdmin, ClusterAdminError, settle
from local_cluster.polling import wait_until
from recovery.errors import ReassignmentError
from recovery.reassignment.admin import ReassignmentAdmin
from recovery.reassignment.plan import Move, TopicPartition


def delete_topic(admin: ClusterAdmin, name: str) -> None:
    """Delete a topic. Raises ClusterAdminError."""
    settle(admin.client.delete_topics([name]), f"delete topic {name}")


def in_sync_replicas(admin: ClusterAdmin, topic: str) -> dict[int, tuple[int, ...]]:
    """Return broker ids in sync, by partition."""
    return {state.partition: state.in_sync for state in admin.partitions(topic)}


def leader_of(admin: ClusterAdmin, topic: str, partition: int = 0) -> int | None:
    """Return the leader's broker id; None if the partition has none now."""
    for state in admin.partitions(topic):
        if state.partition == partition and state.leader >= 0:
            return state.leader
    return None


def wait_for_isr(
    admin: ClusterAdmin, topic: str, broker_ids: Sequence[int], *, partition: int = 0, timeout_s: float = 60.0
) -> None:
    """Wait until exactly these brokers are in sync. Raises WaitTimeoutError."""
    wanted = tuple(sorted(broker_ids))
    wait_until(
        lambda: in_sync_replicas(admin, topic).get(partition) == wanted,
        f"the ISR of {topic}-{partition} is {wanted}",
        timeout_s,
    )


def reassign(admin: ClusterAdmin, topic: str, replicas: Mapping[int, Sequence[int]], timeout_s: float = 120.0) -> None:
    """Give partitions other replicas (partition to broker ids), and wait until they are the only ones.

    Raises ClusterAdminError, WaitTimeoutError.
    """
    begin_reassignment(admin, topic, replicas)
    wanted = {number: tuple(brokers) for number, brokers in replicas.items()}

    def moved() -> bool:
        now = {state.partition: state for state in admin.partitions(topic)}
        return all(
            number in now and now[number].replicas == brokers and now[number].in_sync == tuple(sorted(brokers))
            for number, brokers in wanted.items()
        )

    wait_until(moved, f"{topic} is on {wanted}", timeout_s)


def begin_reassignment(admin: ClusterAdmin, topic: str, replicas: Mapping[int, Sequence[int]]) -> None:
    """Start a reassignment without waiting for its end. Raises ClusterAdminError."""
    with _reassignments(admin) as mover:
        moves = [Move(TopicPartition(topic, number), (), tuple(brokers)) for number, brokers in replicas.items()]
        refused = {where: why for where, why in mover.submit(moves).items() if why is not None}
    if refused:
        raise ClusterAdminError(f"reassign {topic}: {refused}")


def move_leader(admin: ClusterAdmin, topic: str, partition: int, broker_id: int, timeout_s: float = 60.0) -> None:
    """Make an in-sync replica the preferred leader, and the leader. Raises ClusterAdminError, WaitTimeoutError."""
    known: dict[int, tuple[int, ...]] = {}

    def is_known() -> bool:  # a topic made just now is not known to every broker
        known.update({state.partition: state.replicas for state in admin.partitions(topic)})
        return partition in known

    wait_until(is_known, f"{topic}-{partition} is known", timeout_s)
    others = [other for other in known[partition] if other != broker_id]
    reassign(admin, topic, {partition: [broker_id, *others]}, timeout_s)
    with _reassignments(admin) as mover:
        mover.elect_preferred([TopicPartition(topic, number) for number in known])
    admin.wait_for_leader(topic, partition, expected=broker_id, timeout_s=timeout_s)


def elect_preferred_leaders(admin: ClusterAdmin) -> None:
    """Elect the preferred leaders of all partitions, as far as possible now."""
    with contextlib.suppress(KafkaException):
        admin.client.elect_leaders(ElectionType.PREFERRED, None).result(REQUEST_TIMEOUT_S)


@contextlib.contextmanager
def _reassignments(admin: ClusterAdmin) -> Iterator[ReassignmentAdmin]:
    try:
        with ReassignmentAdmin(KafkaClientConfig(admin.bootstrap_servers), REQUEST_TIMEOUT_S) as mover:
            yield mover
    except ReassignmentError as error:
        raise ClusterAdminError(str(error)) from error


def set_topic_setting(cluster: LocalCluster, topic: str, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    [future] = cluster.admin.client.incremental_alter_configs([resource]).values()
    future.result(30)


TIERED_TOPIC = {
    "remote.storage.enable": "true",
    # A segment may go from the local log as soon as it is on the tier. (By age, Kafka would roll and tier the active
    # segment too.)
    "local.retention.bytes": "1",
    # The smallest that Kafka takes.
    "segment.bytes": "1048576",
}
"""Settings that make a topic of a cluster with `tiered_storage` go to the tier within seconds."""


def elect_uncleanly(admin: ClusterAdmin, topic: str, partition: int, broker_id: int) -> None:
    """Wait until this replica leads, which is not in sync, and the only one that lives. Raises WaitTimeoutError."""

    def leads() -> bool:
        with contextlib.suppress(KafkaException, TimeoutError):
            wanted = [KafkaPartition(topic, partition)]
            admin.client.elect_leaders(ElectionType.UNCLEAN, wanted).result(15.0)
        return leader_of(admin, topic, partition) == broker_id

    wait_until(leads, f"broker {broker_id} leads {topic}-{partition}", interval_s=0.5)
