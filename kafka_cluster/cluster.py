"""Asks a Kafka cluster: its topics, brokers, configurations and offsets. Every question blocks.

Topics and brokers are described by kafka-python, one connection for each question. librdkafka 2.16 ends the process
("Assertion 'rko_result' failed") when its DescribeTopics or DescribeCluster is answered by a broker that knows of no
living one, as may be while a whole cluster goes down, and when its client is closed before the answer. An agent has to
outlive that. librdkafka describes them only with logins that kafka-python does not know. It asks everything else.
"""

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.errors import ClientPropertyError, KafkaClusterError
from kafka_cluster.kafka_python_config import kafka_python_settings
from kafka_cluster.responses import (
    NO_TOPIC_ID,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    ClientQuota,
    ClusterListing,
    DescribedBroker,
    DescribedPartition,
    DescribedTopic,
    Responses,
    client_error,
    error_text,
)
from kafka_log.topic_partition import TopicId, topic_id_from_text

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient
    from kafka.admin import KafkaAdminClient

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

EARLIEST: Final = -2
"""Asks for the offset that a log begins with (ListOffsets)."""
LATEST: Final = -1
"""Asks for the offset that consumers read up to: the high watermark."""
_CONFIGURATION, _OFFSET = "describe configuration", "list offset"
_PAUSE_S: Final = 0.2
"""Between two questions, of which the first met a broker that had died."""


class KafkaCluster:
    """Sends requests to the cluster of `client`, one method for each kind. All block; thread-safe.

    A broker has `timeout_s` for each response. Waiting ends after twice that time, because librdkafka gives up first.
    """

    def __init__(self, client: KafkaClientConfig, client_id: str, timeout_s: float) -> None:
        self.client = client
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._admin: AdminClient | None = None

    def listing(self, topic: str | None = None) -> ClusterListing:
        """Return all topics, or one, as one broker lists them. Raises KafkaClusterError.

        If no broker responds, the next request has a new client: librdkafka reads certificates when a client is made,
        and they may have been renewed.
        """
        from confluent_kafka import KafkaException

        try:
            asked: dict[str, Any] = {} if topic is None else {"topic": topic}
            metadata: Any = self._librdkafka().list_topics(**asked, timeout=self._timeout_s)
        except KafkaException as error:
            # In no variable: its traceback holds this frame and the client, whose threads would then stay.
            raise self._not_listed(error) from error
        return ClusterListing(
            str(metadata.cluster_id),
            {int(broker_id): str(broker.host) for broker_id, broker in metadata.brokers.items()},
            {name: _listed(name, topic) for name, topic in metadata.topics.items()},
        )

    def _not_listed(self, error: Exception) -> KafkaClusterError:
        failure = self._error("list topics", error)
        if failure.code is None:
            self._admin = None
        return failure

    def find_topic(self, topic: str) -> DescribedTopic | None:
        """Return a topic as one broker lists it; None if it does not exist. Raises KafkaClusterError."""
        listed = self.listing(topic).topics[topic]
        if listed.error_code not in (0, UNKNOWN_TOPIC_OR_PARTITION):
            why, servers = error_text(listed.error_code), self.client.bootstrap_servers
            raise KafkaClusterError(f"list topic {topic}", servers, why, code=listed.error_code)
        return None if listed.error_code else listed

    def topic_configurations(self, names: Iterable[str]) -> Responses[str, dict[str, str]]:
        """Ask for all keys in force in these topics' configurations, in one request."""
        from confluent_kafka.admin import ConfigResource, ResourceType

        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        futures = self._request(_CONFIGURATION, "describe_configs", resources)
        return self._answers(_CONFIGURATION, {one.name: answer for one, answer in futures.items()}, _values)

    def broker_configurations(self, broker_ids: Iterable[int]) -> Responses[int, dict[str, str]]:
        """Ask each broker for its configuration, without secrets and without Kafka's defaults."""
        from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

        def set_values(entries: Any) -> dict[str, str]:
            default = ConfigSource.DEFAULT_CONFIG.value
            return _values({key: one for key, one in entries.items() if one.source != default})

        futures: dict[int, Future[Any]] = {}
        for broker_id in broker_ids:
            resource = ConfigResource(ResourceType.BROKER, str(broker_id))
            [futures[broker_id]] = self._request(_CONFIGURATION, "describe_configs", [resource]).values()
        return self._answers(_CONFIGURATION, futures, set_values)

    def offsets(
        self, partitions: Iterable[tuple[str, int]], at: int, *, is_stable: bool = False
    ) -> Responses[tuple[str, int], int]:
        """Ask for an offset of each partition: EARLIEST, LATEST, or the first at that time in milliseconds or later.

        `is_stable`: as readers of committed records see it, so LATEST is where the first open transaction begins.
        """
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        named = {EARLIEST: OffsetSpec.earliest, LATEST: OffsetSpec.latest}
        spec = named[at]() if at in named else OffsetSpec.for_timestamp(at)
        level = IsolationLevel.READ_COMMITTED if is_stable else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(*where): spec for where in partitions}
        futures = self._request(_OFFSET, "list_offsets", wanted, isolation_level=level)
        asked = {(one.topic, one.partition): answer for one, answer in futures.items()}
        return self._answers(_OFFSET, asked, lambda answer: int(answer.offset))

    def committed(self) -> dict[str, dict[tuple[str, int], int]]:
        """Return the offset that each consumer group has committed for each partition, by group. Raises
        KafkaClusterError."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

        try:
            asked = self._librdkafka().list_consumer_groups(request_timeout=self._timeout_s)
            listed = asked.result(2 * self._timeout_s)
        except (KafkaException, FutureTimeoutError) as error:
            raise self._error("list groups", error) from error
        futures: dict[str, Future[Any]] = {}
        for group in listed.valid:
            [futures[group.group_id]] = self._request(
                "list group offsets", "list_consumer_group_offsets", [ConsumerGroupTopicPartitions(group.group_id)]
            ).values()
        found = {}
        for name, answer in self._answers("list group offsets", futures, _committed).each():
            if not isinstance(answer, KafkaClusterError):  # it may be gone since, or not be this client's to see
                found[name] = answer
        return found

    def create_topic(self, topic: str, assignment: list[list[int]], config: Mapping[str, str]) -> bool:
        """Create a topic with these replicas. False if it exists already. Raises KafkaClusterError."""
        from confluent_kafka import KafkaError
        from confluent_kafka.admin import NewTopic

        new = NewTopic(topic, num_partitions=len(assignment), replica_assignment=assignment, config=dict(config))
        futures = self._librdkafka().create_topics([new], operation_timeout=self._timeout_s)
        created = self._answers("create topic", futures, lambda _answer: True).get_all(
            {KafkaError.TOPIC_ALREADY_EXISTS}
        )
        return topic in created

    def topics(self, names: Sequence[str]) -> list[DescribedTopic]:
        """Describe each of these topics. Asking for a topic does not create it. Raises KafkaClusterError."""
        if not names:
            return []
        return self._ask(
            "describe topics",
            lambda admin: [_topic(described) for described in admin.describe_topics(list(names))],
            lambda admin: self._topics_by_librdkafka(admin, names),
        )

    def eligible_leaders(self, names: Sequence[str]) -> dict[tuple[str, int], tuple[int, ...]]:
        """Return which replicas are not in sync and may yet be elected, by topic and partition (KIP-966, Kafka 3.7).

        Raises KafkaClusterError, also where brokers are older, and ClientPropertyError where only librdkafka logs in.
        """
        return self._ask_by_kafka_python(
            "describe eligible leaders", self._settings(), lambda admin: dict(_eligible(admin, list(names)))
        )

    def ends_of_epochs(self, topic: str, asked: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Return where leader epochs end in a topic's logs, by partition and epoch (OffsetForLeaderEpoch, KIP-320).

        That is where the next epoch of the leader's log begins, or the log ends; 0 if the leader knows no such epoch.
        It lacks partitions that the topic does not have. Empty where only librdkafka can log in, because it lacks this
        request. Raises KafkaClusterError.
        """
        if not asked or not self.can_ask_by_id:
            return {}
        return self._ask_by_kafka_python(
            "ask where leader epochs end", self._settings(), lambda admin: _ends_of_epochs(admin, topic, asked)
        )

    @property
    def can_ask_by_id(self) -> bool:
        """Whether `topics_by_id` can be called: not where only librdkafka can log in, which asks by name alone."""
        try:
            self._settings()
        except ClientPropertyError:
            return False
        return True

    def topics_by_id(self, topic_ids: Sequence[TopicId]) -> list[DescribedTopic]:
        """Describe the topics with these ids (Metadata requests of version 12, KIP-516).

        Raises KafkaClusterError, and ClientPropertyError where ids cannot be asked for.

        For a topic that exists and that this client may not describe, a broker responds TOPIC_AUTHORIZATION_FAILED;
        UNKNOWN_TOPIC_ID only for one that does not exist: Kafka does not hide ids.
        """
        if not topic_ids:
            return []
        asked = [uuid.UUID(bytes=topic_id) for topic_id in topic_ids]
        return self._ask_by_kafka_python(
            "describe topics by id",
            self._settings(),
            lambda admin: [_topic(described) for described in admin.describe_topics(asked)],
        )

    def maybe_there(self, unseen: Collection[TopicId], witness: TopicId | None) -> frozenset[TopicId]:
        """Return which of these topics, which a listing lacks, may exist all the same. Raises KafkaClusterError.

        Kafka responds that an id does not exist also to clients that may not describe the topic. `witness` is a topic
        that exists: a broker that does not know it does not know the whole cluster.
        """
        if not unseen or witness is None or not self.can_ask_by_id:
            return frozenset(unseen)
        told = {one.topic_id: one.error_code for one in self.topics_by_id(sorted({*unseen, witness}))}
        return frozenset(one for one in unseen if told.get(witness) or told.get(one) != UNKNOWN_TOPIC_ID)

    def client_quotas(self) -> list[ClientQuota]:
        """Return all quotas of users and clients.

        Raises KafkaClusterError, and ClientPropertyError where only librdkafka logs in.
        """
        return self._ask_by_kafka_python("describe client quotas", self._settings(), _quotas)

    def brokers(self) -> list[DescribedBroker]:
        """Return the living brokers. Raises KafkaClusterError."""
        return self._ask(
            "describe cluster",
            lambda admin: [
                DescribedBroker(int(one["broker_id"]), one["rack"] or None, str(one["host"]), int(one["port"]))
                for one in admin.describe_cluster()["brokers"]
                if not one.get("is_fenced", False)
            ],
            lambda admin: [
                DescribedBroker(node.id, node.rack or None, node.host, node.port)
                for node in admin.describe_cluster(request_timeout=self._timeout_s).result(2 * self._timeout_s).nodes
            ],
        )

    def _ask(
        self,
        operation: str,
        by_kafka_python: "Callable[[KafkaAdminClient], T]",
        by_librdkafka: Callable[[Any], T],
    ) -> T:
        from confluent_kafka import KafkaException

        try:
            settings = self._settings()
        except ClientPropertyError:
            try:
                return by_librdkafka(self._librdkafka())
            except (KafkaException, FutureTimeoutError) as error:
                raise self._error(operation, error) from error
        return self._ask_by_kafka_python(operation, settings, by_kafka_python)

    def _ask_by_kafka_python(
        self, operation: str, settings: dict[str, Any], question: "Callable[[KafkaAdminClient], T]"
    ) -> T:
        from kafka.errors import KafkaConnectionError, KafkaError
        from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

        def ask() -> T:
            with _connected(settings, int(self._timeout_s * 1000)) as client:
                return question(client)

        # Its errors are raised too, and its warnings, such as that of PLAIN without TLS, would come with each question.
        logging.getLogger("kafka").setLevel(logging.CRITICAL)
        # It asks any broker that the cluster tells of, and for some seconds that may be one that has just died.
        again, until = retry_if_exception_type(KafkaConnectionError), stop_after_delay(self._timeout_s)
        try:
            return Retrying(retry=again, stop=until, wait=wait_fixed(_PAUSE_S), reraise=True)(ask)
        except (KafkaError, OSError, TimeoutError) as error:
            raise self._error(operation, error) from error

    def _topics_by_librdkafka(self, admin: Any, names: Sequence[str]) -> list[DescribedTopic]:
        from confluent_kafka import TopicCollection

        futures = admin.describe_topics(TopicCollection(list(names)), request_timeout=self._timeout_s)
        found = []
        for name, answer in self._answers("describe topics", futures, _topic_of_librdkafka).each():
            if isinstance(answer, KafkaClusterError):
                if answer.code is None:  # no broker said anything of the topic
                    raise answer
                answer = DescribedTopic(name, answer.code)
            found.append(answer)
        return found

    def _settings(self) -> dict[str, Any]:
        return {**kafka_python_settings(self.client), "client_id": self._client_id}

    def _librdkafka(self) -> "AdminClient":
        from confluent_kafka.admin import AdminClient

        admin = self._admin  # another thread may drop it meanwhile
        if admin is None:
            admin = self._admin = AdminClient(self.client.for_confluent(client_id=self._client_id))
        return admin

    def _request(
        self, operation: str, method: str, asked: Collection[Any], **how: object
    ) -> Mapping[Any, "Future[Any]"]:
        """Send a request about several things. librdkafka refuses one about nothing. Raises KafkaClusterError."""
        from confluent_kafka import KafkaException

        if not asked:
            return {}
        try:
            found: Mapping[Any, Future[Any]] = getattr(self._librdkafka(), method)(
                asked, request_timeout=self._timeout_s, **how
            )
        except KafkaException as error:
            raise self._error(operation, error) from error
        return found

    def _answers(self, operation: str, futures: Mapping[K, "Future[Any]"], read: Callable[[Any], V]) -> Responses[K, V]:
        return Responses(operation, self.client.bootstrap_servers, futures, read, 2 * self._timeout_s)

    def _error(self, operation: str, error: Exception) -> KafkaClusterError:
        return client_error(operation, self.client.bootstrap_servers, error)


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
                # The last known leader is elected when nobody is in sync or eligible any more.
                last_known = () if one["isr_nodes"] else one["last_known_elr"] or ()
                found = one["eligible_leader_replicas"] or last_known
                yield (topic["name"], one["partition_index"]), tuple(found)
        cursor = page["next_cursor"]
        names = [name for name in names if cursor is not None and name >= cursor["topic_name"]]


def _ends_of_epochs(
    admin: "KafkaAdminClient", topic: str, asked: Collection[tuple[int, int]]
) -> dict[tuple[int, int], int]:
    from kafka.errors import LeaderNotAvailableError, for_code
    from kafka.protocol.consumer import OffsetForLeaderEpochRequest

    [described] = admin.describe_topics([topic])
    leaders = {one["partition_index"]: one["leader_id"] for one in described["partitions"]}
    rounds: dict[tuple[int, int], dict[int, int]] = {}  # an answer names the partition, and not the epoch asked for
    for partition, epoch in sorted(one for one in asked if one[0] in leaders):
        turn = sum(partition in others for others in rounds.values())
        rounds.setdefault((turn, leaders[partition]), {})[partition] = epoch
    found = {}
    for (_, leader_id), epochs in rounds.items():
        if leader_id < 0:
            raise LeaderNotAvailableError(f"{topic}: partition {min(epochs)} has no leader")
        make = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition
        wanted = [
            make(partition=partition, current_leader_epoch=-1, leader_epoch=epoch)
            for partition, epoch in epochs.items()
        ]
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[(topic, wanted)])
        response: Any = admin._manager.run(admin._manager.send, request, leader_id)
        for one in response.to_dict()["topics"][0]["partitions"]:
            if one["error_code"]:
                raise for_code(one["error_code"])(f"{topic}-{one['partition']}")
            found[one["partition"], epochs[one["partition"]]] = max(one["end_offset"], 0)
    return found


def _quotas(admin: "KafkaAdminClient") -> list[ClientQuota]:
    from kafka.errors import for_code
    from kafka.protocol.admin import DescribeClientQuotasRequest

    request = DescribeClientQuotasRequest(components=[], strict=False)
    response: Any = admin._manager.run(admin._manager.send, request)
    if response.error_code:
        raise for_code(response.error_code)(response.error_message)
    return [
        ClientQuota(
            {str(part["entity_type"]): part["entity_name"] for part in entry["entity"]},
            frozenset(str(value["key"]) for value in entry["values"]),
        )
        for entry in response.to_dict()["entries"] or ()
    ]


def _committed(answer: Any) -> dict[tuple[str, int], int]:
    return {(one.topic, one.partition): one.offset for one in answer.topic_partitions if one.offset >= 0}


def _values(entries: Mapping[str, Any]) -> dict[str, str]:
    return {key: entry.value for key, entry in entries.items() if entry.value is not None}


def _listed(name: str, topic: Any) -> DescribedTopic:
    partitions = (
        DescribedPartition(one.id, one.leader, tuple(one.replicas), tuple(one.isrs))
        for _, one in sorted(topic.partitions.items())
    )
    return DescribedTopic(name, 0 if topic.error is None else topic.error.code(), partitions=tuple(partitions))


def _topic(described: dict[str, Any]) -> DescribedTopic:
    topic_id = TopicId(uuid.UUID(str(described["topic_id"])).bytes) if described["topic_id"] else NO_TOPIC_ID
    return DescribedTopic(
        described["name"] or "",
        described["error_code"],
        topic_id,
        tuple(
            DescribedPartition(
                one["partition_index"],
                one["leader_id"],
                tuple(one["replica_nodes"]),
                tuple(one["isr_nodes"]),
                one.get("leader_epoch", -1),
            )
            for one in described["partitions"]
        ),
    )


def _topic_of_librdkafka(topic: Any) -> DescribedTopic:
    partitions = (
        DescribedPartition(
            one.id,
            -1 if one.leader is None else one.leader.id,
            tuple(node.id for node in one.replicas),
            tuple(node.id for node in one.isr),
        )
        for one in topic.partitions
    )
    return DescribedTopic(str(topic.name), 0, topic_id_from_text(str(topic.topic_id)), tuple(partitions))
