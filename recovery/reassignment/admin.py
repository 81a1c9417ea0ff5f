"""Asks Kafka to move replicas and elect leaders, and what the controller and the brokers show of it. Blocks.

By kafka-python's admin client, because librdkafka's has no AlterPartitionReassignments. Every call may be repeated
without harm, so calls that brokers ask to retry are retried.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import structlog

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.kafka_python_config import kafka_python_settings
from recovery.errors import ReassignmentError, ReassignmentSettingError
from recovery.reassignment.moves import ClusterView
from recovery.reassignment.plan import ClusterReplicas, Move, PartitionReplicas, TopicPartition

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

T = TypeVar("T")

log = structlog.get_logger(__name__)

BEGIN_AT_TIER: Final = "follower.fetch.last.tiered.offset.enable"
"""Kafka's setting (KIP-1023): an empty replica begins at the last tiered offset."""
_TIERED_TOPIC: Final = "remote.storage.enable"
_LATEST, _LATEST_TIERED = -1, -5
"""Special timestamps of ListOffsets (KIP-1005)."""
_DYNAMIC_BROKER_CONFIG = "DYNAMIC_BROKER_CONFIG"
_ATTEMPTS = 5


class ReassignmentAdmin:
    """The requests to Kafka that a reassignment needs; close it after use. Blocks."""

    def __init__(self, client: KafkaClientConfig, timeout_s: float = 30.0) -> None:
        """Connect to the cluster. Raises ReassignmentError when no broker responds, ClientPropertyError."""
        from kafka.admin import KafkaAdminClient
        from kafka.errors import KafkaError

        settings = {"client_id": "remote-wal-reassign", **kafka_python_settings(client)}
        timeout_ms = int(timeout_s * 1000)
        try:
            self._client: KafkaAdminClient = KafkaAdminClient(
                **settings, bootstrap_timeout_ms=timeout_ms, request_timeout_ms=timeout_ms
            )
        except KafkaError as error:
            hint = "is --bootstrap-server right, and does --command-config say how to log in?"
            raise ReassignmentError("connect", client.bootstrap_servers, _text(error), hint) from error
        self._before: dict[int, str | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # What there is.

    def cluster(self) -> ClusterReplicas:
        """Return all living brokers and all partitions. Raises ReassignmentError."""
        brokers = _call("describe cluster", "", self._client.describe_cluster)["brokers"]
        racks = {int(one["broker_id"]): one["rack"] for one in brokers if not one.get("is_fenced", False)}
        return ClusterReplicas(racks, tuple(_partitions(self._client, None)))

    def view(self, partitions: Collection[TopicPartition]) -> ClusterView:
        """Return these partitions as they are now. Raises ReassignmentError."""
        listed = frozenset(self.ongoing())
        # Asked after the list: a move that ended in between shows its end.
        shown = _partitions(self._client, sorted({where.topic for where in partitions}))
        return ClusterView(listed, {one.topic_partition: one for one in shown})

    def ongoing(self) -> list[TopicPartition]:
        """Return the partitions that the controller is reassigning, whoever requested it. Raises ReassignmentError."""
        listed = _call("list reassignments", "", self._client.list_partition_reassignments)
        return [TopicPartition(where.topic, where.partition) for where in sorted(listed)]

    def log_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return partitions' high watermarks. Raises ReassignmentError."""
        return self._offsets(partitions, _LATEST)

    def without_local_data(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        """Return those partitions whose log is on KIP-405's tier up to its end. Raises ReassignmentError."""
        wanted = list(partitions)
        topics = self._configs("topic", {where.topic for where in wanted}, _TIERED_TOPIC)
        tiered = {name for name, entry in topics.items() if entry is not None and entry["value"] == "true"}
        asked = [where for where in wanted if where.topic in tiered]
        if not asked:
            return frozenset()
        last_tiered = self._offsets(asked, _LATEST_TIERED)
        ends = self._offsets(asked, _LATEST)
        return frozenset(where for where in asked if ends[where] > 0 and last_tiered[where] + 1 == ends[where])

    def _offsets(self, partitions: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        from kafka import TopicPartition as Named

        names = {Named(where.topic, where.partition): where for where in partitions}
        if not names:
            return {}
        found = _call(
            "list offsets",
            f"of {len(names)} partitions",
            lambda: self._client.list_partition_offsets(dict.fromkeys(names, timestamp)),
        )
        return {names[where]: int(one.offset) for where, one in found.items()}

    def replica_sizes(self, partitions: Collection[TopicPartition]) -> dict[tuple[TopicPartition, int], int]:
        """Return bytes of the local logs by partition and broker. Raises ReassignmentError."""
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for where in partitions:
            numbers[where.topic].append(where.partition)
        if not numbers:
            return {}
        answer = _call("describe log directories", "", lambda: self._client.describe_log_dirs(dict(numbers)))
        return {(where, broker): size_bytes for where, broker, size_bytes in _replicas_in(answer)}

    def not_shown(self, broker: int, shown: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return a living broker's replicas of topics that Kafka's metadata do not show. Raises ReassignmentError.

        Metadata leave out topics that the client may not describe; descriptions of log directories are complete or
        refused.
        """
        answer = _call("describe log directories", "", lambda: self._client.describe_log_dirs(None, [broker]))
        if not all(of_broker["log_dirs"] for of_broker in answer):  # the client library drops the error
            reason = "no directory is told: may this client describe the cluster?"
            raise ReassignmentError("describe log directories", f"broker {broker}", reason)
        return sorted({where for where, _, _ in _replicas_in(answer)} - set(shown))

    # What is to be done.

    def submit(self, moves: Iterable[Move]) -> dict[TopicPartition, str | None]:
        """Submit moves to the controller. Returns for each None, or why it was refused. Raises ReassignmentError."""
        return self._alter({move.topic_partition: list(move.after) for move in moves})

    def cancel(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str | None]:
        """Cancel moves. Returns for each None, or why that failed; one that is over counts as success. Raises
        ReassignmentError."""
        return self._alter(dict.fromkeys(partitions))

    def _alter(self, wanted: Mapping[TopicPartition, list[int] | None]) -> dict[TopicPartition, str | None]:
        from kafka import TopicPartition as Named
        from kafka.errors import NoReassignmentInProgressError

        names = {Named(where.topic, where.partition): replicas for where, replicas in wanted.items()}
        answer = _call(
            "alter reassignments",
            f"of {len(names)} partitions",
            lambda: self._client.alter_partition_reassignments(names),
        )
        return {
            TopicPartition(where.topic, where.partition): (
                None if error is None or error is NoReassignmentInProgressError else error.__name__
            )
            for where, error in answer.items()
        }

    def elect_preferred(self, partitions: Iterable[TopicPartition]) -> None:
        """Request the election of first replicas; the result shows later. Raises ReassignmentError."""
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for where in partitions:
            numbers[where.topic].append(where.partition)
        _call(
            "elect leaders",
            ", ".join(sorted(numbers)),
            lambda: self._client.elect_leaders(0, dict(numbers), raise_errors=False),
        )

    def begin_at_local_log(self, brokers: Iterable[int]) -> None:
        """Make new replicas on these brokers begin at the leader's local log from now on. Raises ReassignmentError."""
        found = self._configs("broker", [str(broker) for broker in brokers], BEGIN_AT_TIER)
        for name, entry in found.items():
            if entry is None or entry["value"] != "true":
                continue
            own = entry["config_source"] == _DYNAMIC_BROKER_CONFIG
            self._before[int(name)] = entry["value"] if own else None
            self._set_begin_at_tier(int(name), "false")
            log.info("replicas_begin_at_local_log", broker=int(name))

    def begin_at_tier(self) -> None:
        """Let new replicas begin at the tier's end again, after `begin_at_local_log`. Raises ReassignmentError."""
        for broker, value in list(self._before.items()):
            self._set_begin_at_tier(broker, value)
            del self._before[broker]
            log.info("replicas_begin_at_tier", broker=broker)

    def _set_begin_at_tier(self, broker: int, value: str | None) -> None:
        from kafka.admin import ConfigResource

        change = ("DELETE", None) if value is None else ("SET", value)
        resource = ConfigResource("broker", str(broker), {BEGIN_AT_TIER: change})
        key = f"{BEGIN_AT_TIER} of broker {broker}"
        try:
            answer = _call("set", key, lambda: self._client.alter_configs([resource], False, False))
        except ReassignmentError as error:
            raise ReassignmentSettingError("set", key, error.reason) from error
        result = answer["broker"][str(broker)]
        if result not in (None, "OK") and "NoError" not in str(result):
            raise ReassignmentSettingError("set", key, str(result), "may this client alter the brokers' settings?")

    def _configs(self, kind: str, names: Iterable[str], key: str) -> dict[str, dict[str, Any] | None]:
        from kafka.admin import ConfigResource

        resources = [ConfigResource(kind, name, [key]) for name in names]
        if not resources:
            return {}
        answer = _call("describe configs", key, lambda: self._client.describe_configs(resources, config_filter="all"))
        return {name: entries.get(key) for name, entries in answer[kind].items()}


def _partitions(client: "KafkaAdminClient", topics: list[str] | None) -> Iterable[PartitionReplicas]:
    for topic in _call("describe topics", "", lambda: client.describe_topics(topics)):
        if topic["error_code"]:
            continue
        for one in topic["partitions"]:
            yield PartitionReplicas(
                TopicPartition(topic["name"], one["partition_index"]),
                one["leader_id"],
                tuple(one["replica_nodes"]),
                frozenset(one["isr_nodes"]),
            )


def _replicas_in(answer: Iterable[Mapping[str, Any]]) -> Iterator[tuple[TopicPartition, int, int]]:
    """Yield partition, broker and bytes of each replica of DescribeLogDirs' answer, but for future ones (KIP-113)."""
    for of_broker in answer:
        for directory in of_broker["log_dirs"]:
            for topic in directory["topics"]:
                for one in topic["partitions"]:
                    if not one["is_future_key"]:
                        where = TopicPartition(topic["name"], one["partition_index"])
                        yield where, of_broker["broker"], int(one["partition_size"])


def _call(operation: str, key: str, function: Callable[[], T]) -> T:
    from kafka.errors import KafkaError
    from tenacity import retry, retry_if_exception, stop_after_attempt, wait_exponential

    patient = retry(
        retry=retry_if_exception(lambda error: isinstance(error, KafkaError) and error.retriable),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential(0.1, max=2.0),
        reraise=True,
    )
    try:
        return patient(function)()
    except KafkaError as error:
        raise ReassignmentError(operation, key, _text(error)) from error


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
