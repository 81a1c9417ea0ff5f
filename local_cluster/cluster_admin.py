"""Asks and changes a running cluster, over the protocol's own client, with deadlines.

Every wait is for an answer of a broker, never for time to pass. Any broker may answer, and just after a change they
differ for some milliseconds: before you rely on a change, wait for it by its own method.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.broker_config import KAFKAS_IN_SYNC
from local_cluster.polling import WaitTimeoutError, wait_until
from recovery.errors import ReassignmentError
from recovery.reassignment.admin import ReassignmentAdmin
from recovery.reassignment.plan import Move, TopicPartition

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, NewTopic

REQUEST_TIMEOUT_S = 15.0

CLIENT_CONFIG: Mapping[str, object] = {
    # Brokers come and go here on purpose: reconnect at once, and do not print each refused connection.
    "log_level": 0,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    # A topic that a test deleted stays deleted.
    "allow.auto.create.topics": False,
}


class ClusterAdminError(Exception):
    """The cluster refused an order; the message names it."""


class ClusterUnsettledError(ClusterAdminError):
    """The connection broke during the order, as when the controllers elect; whether it took effect is unknown."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition in a broker's metadata. `leader` is -1 if there is none."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReplicaSummary:
    """Counts over all topics, including internal ones."""

    topics: int
    partitions: int
    under_replicated: int
    """Partitions with a replica out of sync."""
    without_leader: int


class ClusterAdmin:
    """An admin client with the requests that a local cluster needs. Thread safe."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._client: AdminClient | None = None

    @property
    def client(self) -> "AdminClient":
        """confluent_kafka's own client, for requests without a method here."""
        if self._client is None:
            from confluent_kafka.admin import AdminClient

            self._client = AdminClient({"bootstrap.servers": self.bootstrap_servers, **CLIENT_CONFIG})
        return self._client

    def registered_brokers(self, timeout_s: float = REQUEST_TIMEOUT_S) -> frozenset[int]:
        """Return the brokers that are registered and not fenced; empty if none answers."""
        from confluent_kafka import KafkaException

        try:
            return frozenset(self.client.list_topics(timeout=timeout_s).brokers)
        except KafkaException:
            return frozenset()

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = 3,
        config: Mapping[str, str] | None = None,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Create a topic, and wait until every partition has a leader and all its replicas are in sync.

        `assignment[p]` are partition p's replicas, the preferred leader first; it overrides the two numbers. Unless
        `config` says otherwise, acks=all needs two in-sync replicas out of three, which is the usual setting. Raises
        ClusterAdminError, WaitTimeoutError.
        """
        from confluent_kafka.admin import NewTopic

        count = len(assignment) if assignment is not None else partitions
        fewest = replication_factor if assignment is None else min(map(len, assignment))
        wanted = {"min.insync.replicas": str(min(KAFKAS_IN_SYNC, fewest)), **(config or {})}
        if assignment is None:
            topic = NewTopic(name, count, replication_factor, config=wanted)
        else:
            replicas = [list(brokers) for brokers in assignment]
            topic = NewTopic(name, count, replica_assignment=replicas, config=wanted)
        self._create(topic, f"create topic {name}")
        self.wait_for_full_isr(name, partitions=count)

    @retry(
        retry=retry_if_exception_type(ClusterUnsettledError),
        stop=stop_after_attempt(10),
        wait=wait_fixed(0.5),
        reraise=True,
    )
    def _create(self, topic: "NewTopic", order: str) -> None:
        if topic.topic not in self.client.list_topics(timeout=REQUEST_TIMEOUT_S).topics:
            self._settle(self.client.create_topics([topic]), order)

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raises ClusterAdminError."""
        self._settle(self.client.delete_topics([name]), f"delete topic {name}")

    def partitions(self, topic: str) -> tuple[PartitionState, ...]:
        """Return the topic's partitions in order; empty if the topic is not known (yet), or no broker answers."""
        from confluent_kafka import KafkaException

        try:
            known = self.client.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics.get(topic)
        except KafkaException:
            return ()
        if known is None or known.error is not None:
            return ()
        return tuple(
            PartitionState(topic, number, state.leader, tuple(state.replicas), tuple(sorted(state.isrs)))
            for number, state in sorted(known.partitions.items())
        )

    def replica_summary(self) -> ReplicaSummary | None:
        """Return counts over all topics; None if no broker answers."""
        from confluent_kafka import KafkaException

        try:
            topics = self.client.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        except KafkaException:
            return None
        states = [state for topic in topics.values() for state in topic.partitions.values()]
        return ReplicaSummary(
            len(topics),
            len(states),
            sum(len(state.isrs) < len(state.replicas) for state in states),
            sum(state.leader < 0 for state in states),
        )

    def in_sync_replicas(self, topic: str) -> dict[int, tuple[int, ...]]:
        """Return broker ids in sync, by partition."""
        return {state.partition: state.in_sync for state in self.partitions(topic)}

    def leader_of(self, topic: str, partition: int = 0) -> int | None:
        """Return the leader's broker id; None if the partition has none now."""
        for state in self.partitions(topic):
            if state.partition == partition and state.leader >= 0:
                return state.leader
        return None

    def wait_for_leader(
        self,
        topic: str,
        partition: int = 0,
        *,
        other_than: int | None = None,
        expected: int | None = None,
        timeout_s: float = 60.0,
    ) -> int:
        """Wait for a leader that fits, and return its id. Raises WaitTimeoutError."""

        def fitting_leader() -> PartitionState | None:
            for state in self.partitions(topic):
                if state.partition == partition and state.leader >= 0 and state.leader != other_than:
                    return state if expected in (None, state.leader) else None
            return None

        wanted = f"broker {expected}" if expected is not None else f"a broker other than {other_than}"
        return wait_until(fitting_leader, f"{wanted} leads {topic}-{partition}", timeout_s).leader

    def wait_for_full_isr(
        self, topic: str, *, partitions: int | None = None, timeout_s: float = 60.0
    ) -> tuple[PartitionState, ...]:
        """Wait until all partitions have a leader and all replicas in sync, and return them. Raises
        WaitTimeoutError.
        """

        def full() -> tuple[PartitionState, ...]:
            states = self.partitions(topic)
            if partitions is not None and len(states) != partitions:
                return ()
            whole = all(len(state.in_sync) == len(state.replicas) and state.leader >= 0 for state in states)
            return states if whole else ()

        try:
            return wait_until(full, f"all replicas of {topic} are in sync", timeout_s)
        except WaitTimeoutError as error:
            raise WaitTimeoutError(f"{error}; the partitions are {self.partitions(topic)}") from None

    def wait_for_isr(
        self, topic: str, broker_ids: Sequence[int], *, partition: int = 0, timeout_s: float = 60.0
    ) -> None:
        """Wait until exactly these brokers are in sync. Raises WaitTimeoutError."""
        wanted = tuple(sorted(broker_ids))
        wait_until(
            lambda: self.in_sync_replicas(topic).get(partition) == wanted,
            f"the ISR of {topic}-{partition} is {wanted}",
            timeout_s,
        )

    def reassign(self, topic: str, replicas: Mapping[int, Sequence[int]], timeout_s: float = 120.0) -> None:
        """Give partitions other replicas (partition to broker ids), and wait until they are the only ones.

        Raises ClusterAdminError, WaitTimeoutError.
        """
        self.begin_reassignment(topic, replicas)
        wanted = {number: tuple(brokers) for number, brokers in replicas.items()}

        def moved() -> bool:
            now = {state.partition: state for state in self.partitions(topic)}
            return all(
                number in now and now[number].replicas == brokers and now[number].in_sync == tuple(sorted(brokers))
                for number, brokers in wanted.items()
            )

        wait_until(moved, f"{topic} is on {wanted}", timeout_s)

    def begin_reassignment(self, topic: str, replicas: Mapping[int, Sequence[int]]) -> None:
        """Start a reassignment without waiting for its end. Raises ClusterAdminError."""
        with self._reassignments() as admin:
            moves = [Move(TopicPartition(topic, number), (), tuple(brokers)) for number, brokers in replicas.items()]
            refused = {where: why for where, why in admin.submit(moves).items() if why is not None}
        if refused:
            raise ClusterAdminError(f"reassign {topic}: {refused}")

    def move_leader(self, topic: str, partition: int, broker_id: int, timeout_s: float = 60.0) -> None:
        """Make an in-sync replica the preferred leader, and the leader.

        Raises ClusterAdminError, WaitTimeoutError.
        """
        known: dict[int, tuple[int, ...]] = {}

        def is_known() -> bool:  # a topic made just now is not known to every broker
            known.update({state.partition: state.replicas for state in self.partitions(topic)})
            return partition in known

        wait_until(is_known, f"{topic}-{partition} is known", timeout_s)
        replicas = known[partition]
        self.reassign(topic, {partition: [broker_id, *(other for other in replicas if other != broker_id)]}, timeout_s)
        with self._reassignments() as admin:
            admin.elect_preferred([TopicPartition(topic, number) for number in known])
        self.wait_for_leader(topic, partition, expected=broker_id, timeout_s=timeout_s)

    def elect_preferred_leaders(self) -> None:
        """Elect the preferred leaders of all partitions, as far as possible now."""
        from confluent_kafka import ElectionType, KafkaException

        with contextlib.suppress(KafkaException):
            self.client.elect_leaders(ElectionType.PREFERRED, None).result(REQUEST_TIMEOUT_S)

    @contextlib.contextmanager
    def _reassignments(self) -> Iterator[ReassignmentAdmin]:
        try:
            with ReassignmentAdmin(KafkaClientConfig(self.bootstrap_servers), REQUEST_TIMEOUT_S) as admin:
                yield admin
        except ReassignmentError as error:
            raise ClusterAdminError(str(error)) from error

    def _settle(self, futures: Mapping[str, object], order: str) -> None:
        from confluent_kafka import KafkaError, KafkaException

        for future in futures.values():
            try:
                future.result(REQUEST_TIMEOUT_S)  # type: ignore[attr-defined]
            except KafkaException as error:
                reason = error.args[0]
                broken = reason.code() in (KafkaError._DESTROY_BROKER, KafkaError._TRANSPORT)
                kind = ClusterUnsettledError if broken or reason.retriable() else ClusterAdminError
                raise kind(f"{order}: {reason.str()}") from error
            except TimeoutError as error:
                raise ClusterAdminError(f"{order}: no answer within {REQUEST_TIMEOUT_S:g} s") from error
