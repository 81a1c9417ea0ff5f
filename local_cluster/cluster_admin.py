"""Asks and changes a running cluster, over the protocol's own client, with deadlines; switches topics on.

Every wait is for an answer of a broker, never for time to pass. Any broker may answer, and just after a change they
differ for some milliseconds: before you rely on a change, wait for it by its own method.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_fixed

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from local_cluster.broker_config import KAFKAS_IN_SYNC
from local_cluster.polling import WaitTimeoutError, wait_until
from metadata_topic.settings.settings_table import TOPICS
from metadata_topic.settings.settings_topic import SettingsWriter, known_id
from metadata_topic.settings.topic_settings import LinkPolicy, TopicSettings
from metadata_topic.settings.wal_retention import AS_LOCAL

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
LINKED = TopicSettings(enable=True, link_policy=LinkPolicy.ALWAYS)
"""Settings that link every byte."""
LINKED_AND_KEPT = replace(LINKED, wal_retention_ms=AS_LOCAL)
"""Settings that also keep the whole log in objects, as long as brokers keep it."""


class ClusterAdminError(Exception):
    """The cluster refused a request of the admin client; the message names it."""


class ClusterUnsettledError(ClusterAdminError):
    """The connection broke during a request, as when controllers elect; whether it took effect is unknown."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition in a broker's metadata: leader, replicas, in-sync replicas. `leader` is -1 if there is none."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class ClusterAdmin:
    """An admin client with the requests that a local cluster needs. Thread-safe."""

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
        """Return the brokers that are registered and not fenced; empty if no broker responds."""
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
            settle(self.client.create_topics([topic]), order)

    def partitions(self, topic: str) -> tuple[PartitionState, ...]:
        """Return the topic's partitions in order; empty if the topic is not known yet, or no broker responds."""
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

    def wait_for_leader(
        self,
        topic: str,
        partition: int = 0,
        *,
        other_than: int | None = None,
        expected: int | None = None,
        timeout_s: float = 60.0,
    ) -> int:
        """Wait until the partition has a leader that is `expected`, or not `other_than`, and return it. Raises
        WaitTimeoutError."""

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


def settle(futures: Mapping[str, object], order: str) -> None:
    """Wait for the responses to requests of the admin client. Raises ClusterAdminError."""
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


def set_topics(bootstrap_servers: str, topics: Iterable[str], settings: TopicSettings | None = None) -> None:
    """Change topics' settings as `remote-wal topics enable` does; by default they link by cost. Agents follow within
    seconds.

    Raises MetadataTopicError.
    """
    client, wanted = KafkaClientConfig(bootstrap_servers, {"log_level": 0}), settings or TopicSettings(enable=True)
    described = KafkaCluster(client, "set-topics", REQUEST_TIMEOUT_S).topics(list(topics))
    writer = SettingsWriter(client)
    try:
        writer.put(TOPICS, {one.name: replace(wanted, topic_id=known_id(one)) for one in described})
    finally:
        writer.close()
