"""Asks for topics and brokers with kafka-python, on a new connection for each question. Blocks.

librdkafka 2.16 ends the process ("Assertion 'rko_result' failed") when a broker that knows of no living one answers its
DescribeTopics or DescribeCluster, which may happen while a whole cluster goes down, and when its client is closed
before the answer. An agent must survive that. librdkafka is used only with logins that kafka-python does not support.
"""

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kafka_log.topic_partition import TopicId, topic_id_from_text
from metadata_topic.records.errors import ClientPropertyError, MetadataTopicError
from metadata_topic.topic.client_config import KafkaClientConfig
from metadata_topic.topic.kafka_python_config import kafka_python_settings

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

T = TypeVar("T")

NO_TOPIC_ID: Final = TopicId(bytes(16))
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
TOPIC_AUTHORIZATION_FAILED: Final = 29
UNKNOWN_TOPIC_ID: Final = 100


class DescriptionError(MetadataTopicError):
    """The cluster did not answer, or refused to."""


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """A partition by broker ids; `leader_id` is -1 when there is no leader."""

    partition: int
    leader_id: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic, or why it is not described: Kafka's error code, 0 for none."""

    name: str
    """Empty when it was asked for by its id, and is not described."""
    error_code: int
    topic_id: TopicId = NO_TOPIC_ID
    """The null id when it was asked for by its name, and is not described."""
    partitions: tuple[DescribedPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribedBroker:
    """A living broker."""

    broker_id: int
    rack: str | None
    host: str = ""
    """As the asked listener advertises it."""
    port: int = -1


@dataclass(frozen=True, slots=True)
class ClusterDescriptions:
    """Asks the cluster that `client` leads to; no question takes much longer than `timeout_s`."""

    client: KafkaClientConfig
    client_id: str
    timeout_s: float

    def topics(self, names: Sequence[str]) -> list[DescribedTopic]:
        """Return one for each name; asking creates none. Raises DescriptionError."""
        if not names:
            return []
        return self._ask(
            "describe topics",
            lambda admin: [_topic(described) for described in admin.describe_topics(list(names))],
            lambda admin: _topics_by_librdkafka(admin, names, self.timeout_s),
        )

    def eligible_leaders(self, names: Sequence[str]) -> dict[tuple[str, int], tuple[int, ...]]:
        """Return by topic and partition the brokers not in sync that may still be elected (KIP-966, Kafka 3.7 and
        newer).

        Raises DescriptionError, also if brokers are older, and ClientPropertyError if only librdkafka can log in.
        """
        return self._ask_by_kafka_python(
            "describe eligible leaders", self._settings(), lambda admin: dict(_eligible(admin, list(names)))
        )

    @property
    def can_ask_by_id(self) -> bool:
        """Whether `topics_by_id` may be used: librdkafka can only ask by name."""
        try:
            self._settings()
        except ClientPropertyError:
            return False
        return True

    def topics_by_id(self, topic_ids: Sequence[TopicId]) -> list[DescribedTopic]:
        """Return one for each id (Metadata requests of version 12, KIP-516).

        Raises DescriptionError, and ClientPropertyError if ids cannot be asked for. For an existing topic that this
        client may not describe, a broker answers TOPIC_AUTHORIZATION_FAILED, and UNKNOWN_TOPIC_ID only for one that
        does not exist: ids are no secret to Kafka.
        """
        if not topic_ids:
            return []
        asked = [uuid.UUID(bytes=topic_id) for topic_id in topic_ids]
        return self._ask_by_kafka_python(
            "describe topics by id",
            self._settings(),
            lambda admin: [_topic(described) for described in admin.describe_topics(asked)],
        )

    def brokers(self) -> list[DescribedBroker]:
        """Return the living brokers. Raises DescriptionError."""
        return self._ask(
            "describe cluster",
            lambda admin: [
                DescribedBroker(int(one["broker_id"]), one["rack"] or None, str(one["host"]), int(one["port"]))
                for one in admin.describe_cluster()["brokers"]
                if not one.get("is_fenced", False)
            ],
            lambda admin: [
                DescribedBroker(node.id, node.rack or None, node.host, node.port)
                for node in _result(admin.describe_cluster(request_timeout=self.timeout_s), self.timeout_s).nodes
            ],
        )

    def _ask(
        self,
        operation: str,
        by_kafka_python: "Callable[[KafkaAdminClient], T]",
        by_librdkafka: Callable[[Any], T],
    ) -> T:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            settings = self._settings()
        except ClientPropertyError:
            admin = AdminClient(self.client.for_confluent(client_id=self.client_id))
            try:
                return by_librdkafka(admin)
            except (KafkaException, FutureTimeoutError) as error:
                raise self._error(operation, error) from error
        return self._ask_by_kafka_python(operation, settings, by_kafka_python)

    def _ask_by_kafka_python(
        self, operation: str, settings: dict[str, Any], question: "Callable[[KafkaAdminClient], T]"
    ) -> T:
        from kafka.errors import KafkaError

        # Errors are raised anyway, and warnings, such as that of PLAIN without TLS, would come with each question.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        try:
            with _connected(settings, int(self.timeout_s * 1000)) as client:
                return question(client)
        except (KafkaError, OSError, TimeoutError) as error:
            raise self._error(operation, error) from error

    def _settings(self) -> dict[str, Any]:
        return {**kafka_python_settings(self.client), "client_id": self.client_id}

    def _error(self, operation: str, error: Exception) -> DescriptionError:
        return DescriptionError(operation, self.client.bootstrap_servers, str(error) or type(error).__name__)


@contextmanager
def _connected(settings: dict[str, Any], timeout_ms: int) -> "Iterator[KafkaAdminClient]":
    from kafka.admin import KafkaAdminClient

    made: list[Any] = []

    def make(**config: Any) -> Any:
        made.append(KafkaAdminClient.DEFAULT_CONFIG["kafka_client"](**config))
        return made[0]

    settings = {**settings, "bootstrap_timeout_ms": timeout_ms, "request_timeout_ms": timeout_ms}
    try:
        admin = KafkaAdminClient(**settings, kafka_client=make)
    except BaseException:
        for client in made:  # when no broker answers, the admin client leaves its thread and sockets behind
            client.close()
            client._net.stop()
        raise
    with closing(admin):
        yield admin


def _eligible(admin: "KafkaAdminClient", names: list[str]) -> "Iterator[tuple[tuple[str, int], tuple[int, ...]]]":
    cursor = None
    while names:
        page = admin.describe_topic_partitions(names, cursor=cursor)
        for topic in page["topics"]:
            for one in topic["partitions"]:
                # The last known leader is elected when none is in sync or eligible any more.
                last_known = () if one["isr_nodes"] else one["last_known_elr"] or ()
                found = one["eligible_leader_replicas"] or last_known
                yield (topic["name"], one["partition_index"]), tuple(found)
        cursor = page["next_cursor"]
        names = [name for name in names if cursor is not None and name >= cursor["topic_name"]]


def _topic(described: dict[str, Any]) -> DescribedTopic:
    topic_id = TopicId(uuid.UUID(str(described["topic_id"])).bytes) if described["topic_id"] else NO_TOPIC_ID
    return DescribedTopic(
        described["name"] or "",
        described["error_code"],
        topic_id,
        tuple(
            DescribedPartition(
                one["partition_index"], one["leader_id"], tuple(one["replica_nodes"]), tuple(one["isr_nodes"])
            )
            for one in described["partitions"]
        ),
    )


def _topics_by_librdkafka(admin: Any, names: Sequence[str], timeout_s: float) -> list[DescribedTopic]:
    from confluent_kafka import KafkaException, TopicCollection

    found = []
    for name, future in admin.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s).items():
        try:
            topic = _result(future, timeout_s)
        except KafkaException as error:
            code = error.args[0].code()
            if code < 0:  # librdkafka's own error: the cluster said nothing about the topic
                raise
            found.append(DescribedTopic(name, code))
            continue
        partitions = (
            DescribedPartition(
                one.id,
                -1 if one.leader is None else one.leader.id,
                tuple(node.id for node in one.replicas),
                tuple(node.id for node in one.isr),
            )
            for one in topic.partitions
        )
        found.append(DescribedTopic(name, 0, topic_id_from_text(str(topic.topic_id)), tuple(partitions)))
    return found


def _result(future: "Future[Any]", timeout_s: float) -> Any:
    return future.result(timeout=2 * timeout_s)
