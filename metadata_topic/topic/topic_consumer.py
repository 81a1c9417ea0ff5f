"""The consumer interface for the follower of a topic, and the real consumer, assigned by hand."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, cast

from kafka_cluster.client_config import ConfluentValue
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.responses import NO_TOPIC_ID
from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.topic.topic_producer import partition_count

_LATEST = -1
"""ListOffsets' timestamp for a partition's end. Source: Kafka's protocol, ListOffsets."""
_EARLIEST = -2
"""ListOffsets' timestamp for a partition's beginning."""


class MessageLike(Protocol):
    """The subset of confluent_kafka.Message that a reader needs."""

    def error(self) -> Any: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def leader_epoch(self) -> int | None: ...


class TopicState(NamedTuple):
    """A topic's id and its partitions' leader epochs: they show a recreated topic, and one that may have lost
    records."""

    topic_id: TopicId | None
    """It changes when the topic is recreated; None if brokers know no ids."""
    leader_epochs: Mapping[int, int]
    """By partition; it grows with each election of a leader. Lacks those that brokers do not tell."""


class ConsumerLike(Protocol):
    """The subset of a consumer that a reader needs; `ConfluentReader` adapts confluent_kafka.Consumer to it."""

    def partition_count(self, topic: str, timeout_s: float) -> int:
        """Return the topic's number of partitions; 0 only when the topic does not exist."""

    def state(self, topic: str) -> TopicState:
        """Ask for the topic's id and leader epochs. Raises KafkaClusterError."""

    def ends_of_epochs(self, topic: str, asked: Collection[tuple[int, int]]) -> Mapping[tuple[int, int], int]:
        """Return where leader epochs end, by partition and epoch, as `KafkaCluster.ends_of_epochs`.

        If a reader has read records of an epoch behind its end, the topic has lost them.
        """

    def begin_offsets(self, topic: str, partitions: Iterable[int], timeout_s: float) -> dict[int, int]:
        """Return by partition the first offset that still exists."""

    def end_offsets(self, topic: str, partitions: Iterable[int], timeout_s: float) -> dict[int, int]:
        """Return by partition the offset of the next record."""

    def assign(self, topic: str, positions: dict[int, int]) -> None:
        """Read these partitions from these offsets on."""

    def consume(self, num_messages: int, timeout: float) -> list[MessageLike]: ...

    def close(self) -> None: ...


ConsumerFactory = Callable[[dict[str, ConfluentValue | logging.Logger]], ConsumerLike]


class ConfluentReader:
    """confluent_kafka.Consumer, assigned by hand. `descriptions` tells what librdkafka does not tell a consumer."""

    def __init__(self, config: dict[str, ConfluentValue | logging.Logger], descriptions: KafkaCluster) -> None:
        from confluent_kafka import Consumer

        self._consumer = Consumer(config)
        self._descriptions = descriptions

    def partition_count(self, topic: str, timeout_s: float) -> int:
        return partition_count(self._consumer, topic, timeout_s)

    def state(self, topic: str) -> TopicState:
        [described] = self._descriptions.topics([topic])
        if described.error_code:
            raise MetadataTopicError("describe", topic, f"Kafka's error {described.error_code}")
        epochs = {one.partition: one.leader_epoch for one in described.partitions if one.leader_epoch >= 0}
        return TopicState(None if described.topic_id == NO_TOPIC_ID else described.topic_id, epochs)

    def ends_of_epochs(self, topic: str, asked: Collection[tuple[int, int]]) -> Mapping[tuple[int, int], int]:
        return self._descriptions.ends_of_epochs(topic, asked)

    def begin_offsets(self, topic: str, partitions: Iterable[int], timeout_s: float) -> dict[int, int]:
        return self._offsets(topic, partitions, _EARLIEST, timeout_s)

    def end_offsets(self, topic: str, partitions: Iterable[int], timeout_s: float) -> dict[int, int]:
        # Transaction markers and compaction leave holes, but never at the end offset's own place.
        return self._offsets(topic, partitions, _LATEST, timeout_s)

    def _offsets(self, topic: str, partitions: Iterable[int], timestamp: int, timeout_s: float) -> dict[int, int]:
        """Ask for all partitions' offsets at once: each request waits behind the fetch that its broker holds now."""
        from confluent_kafka import KafkaException, TopicPartition

        wanted = [TopicPartition(topic, partition, timestamp) for partition in partitions]
        if not wanted:
            return {}
        found: dict[int, int] = {}
        for one in self._consumer.offsets_for_times(wanted, timeout=timeout_s):
            if one.error is not None:
                raise KafkaException(one.error)
            found[one.partition] = one.offset
        return found

    def assign(self, topic: str, positions: dict[int, int]) -> None:
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(topic, *position) for position in positions.items()])

    def consume(self, num_messages: int, timeout: float) -> list[MessageLike]:
        return cast(list[MessageLike], self._consumer.consume(num_messages, timeout))

    def close(self) -> None:
        self._consumer.close()
