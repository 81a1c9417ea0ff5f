"""What a cluster answers about its topics and brokers, as values that do not depend on the client that asked."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from kafka_cluster.errors import KafkaClusterError
from kafka_log.topic_partition import TopicId

K = TypeVar("K")
V = TypeVar("V")

NO_TOPIC_ID: Final = TopicId(bytes(16))
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
NO_LEADER_TO_ASK: Final = frozenset({5, 6, 74, 75})
"""Kafka's LEADER_NOT_AVAILABLE and NOT_LEADER_OR_FOLLOWER, and FENCED_ and UNKNOWN_LEADER_EPOCH: right after an
election, one of client and leader does not know of it yet."""
TOPIC_AUTHORIZATION_FAILED: Final = 29
UNKNOWN_TOPIC_ID: Final = 100


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """A partition's leader and replicas, as broker ids; `leader_id` is -1 when there is no leader."""

    partition: int
    leader_id: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int = field(default=-1, compare=False)
    """-1: not told."""

    @property
    def is_lagging(self) -> bool:
        """Whether a replica is not in sync."""
        return not set(self.replicas) <= set(self.isr)


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """A topic as a broker describes it, or why it does not: Kafka's error code, 0 for none."""

    name: str
    """Empty when it was asked for by its id, and is not described."""
    error_code: int
    topic_id: TopicId = NO_TOPIC_ID
    """NO_TOPIC_ID when it was asked for by its name and is not described, and in a listing."""
    partitions: tuple[DescribedPartition, ...] = ()

    @property
    def replication_factor(self) -> int:
        """The replicas of the partition that has the fewest; 0 when none is known."""
        return min((len(one.replicas) for one in self.partitions), default=0)


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """A quota of a user, a client id or both, as DescribeClientQuotas returns it (KIP-546)."""

    entity: Mapping[str, str | None]
    """Names by type: `user`, `client-id`, `ip`; None is the default of the type."""
    keys: frozenset[str]
    """What is limited, for instance `consumer_byte_rate`."""


@dataclass(frozen=True, slots=True)
class DescribedBroker:
    broker_id: int
    rack: str | None
    host: str = ""
    """The host that the asked listener advertises."""
    port: int = -1


@dataclass(frozen=True, slots=True)
class ClusterListing:
    """All topics and brokers that one broker knows. It lacks topics that this client may not describe."""

    cluster_id: str
    brokers: Mapping[int, str]
    """The living brokers' hosts, by broker id."""
    topics: Mapping[str, DescribedTopic]


class Responses(Generic[K, V]):
    """The responses to requests that were sent together, one for each key. Reading them blocks until they are there."""

    def __init__(
        self, operation: str, servers: str, futures: Mapping[K, "Future[Any]"], read: Callable[[Any], V], wait_s: float
    ) -> None:
        """`read` converts a result of the client's future. All responses together have `wait_s` from now on."""
        self._operation = operation
        self._servers = servers
        self._futures = futures
        self._read = read
        self._wait_s = wait_s
        self._deadline_s = time.monotonic() + wait_s

    def each(self) -> Iterator[tuple[K, V | KafkaClusterError]]:
        """Yield each key with its result, or why it was refused. Raises KafkaClusterError if one does not come in
        time."""
        from confluent_kafka import KafkaException

        for key, future in self._futures.items():
            try:
                yield key, self._read(future.result(timeout=max(0.0, self._deadline_s - time.monotonic())))
            except KafkaException as error:
                yield key, client_error(f"{self._operation} of {key_text(key)}", self._servers, error)
            except FutureTimeoutError as error:
                reason = f"no answer within {self._wait_s:g} s"
                raise KafkaClusterError(self._operation, self._servers, reason) from error

    def get_all(self, missing: Collection[int] = ()) -> dict[K, V]:
        """Return the results by key. Raises KafkaClusterError if one is refused.

        Keys refused with one of the error codes in `missing` are left out instead.
        """
        found: dict[K, V] = {}
        for key, answer in self.each():
            if not isinstance(answer, KafkaClusterError):
                found[key] = answer
            elif answer.code not in missing:
                raise answer
        return found


def error_text(code: int) -> str:
    """Return Kafka's description of an error code."""
    from confluent_kafka import KafkaError

    return str(KafkaError(code).str())


def key_text(key: object) -> str:
    """Return the name of a topic, a broker, or a partition for error messages."""
    return "-".join(map(str, key)) if isinstance(key, tuple) else str(key)


def client_error(operation: str, servers: str, error: Exception) -> KafkaClusterError:
    """Convert an error of librdkafka or kafka-python to a KafkaClusterError."""
    told: Any = error.args[0] if error.args else ""
    if hasattr(told, "code"):
        code = told.code()
        # Negative codes are librdkafka's own: no broker said anything.
        return KafkaClusterError(operation, servers, str(told.str()), code=code if code > 0 else None)
    return KafkaClusterError(operation, servers, str(error) or type(error).__name__)
