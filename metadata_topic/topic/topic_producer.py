"""The producer interface for publishing, and the real producer."""

import logging
from collections.abc import Callable
from typing import Protocol

from kafka_cluster.client_config import ConfluentValue
from kafka_cluster.flushing import flush


class ProducerLike(Protocol):
    """The subset of a producer that publishing needs; `confluent_producer` adapts confluent_kafka.Producer to it."""

    def partition_count(self, topic: str, timeout_s: float) -> int:
        """Return the topic's number of partitions; 0 only when the topic does not exist. Raises
        confluent_kafka.KafkaException."""

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes,
        partition: int,
        on_delivery: Callable[[object | None, object], None],
    ) -> None:
        """Produce a record. Raises BufferError when librdkafka's queue is full."""

    def poll(self, timeout: float) -> int: ...

    def purge(self) -> None: ...

    def flush(self, timeout: float) -> int: ...


ProducerConfig = dict[str, ConfluentValue | logging.Logger]
ProducerFactory = Callable[[ProducerConfig], ProducerLike]


def partition_count(client: object, topic: str, timeout_s: float) -> int:
    """Return a topic's number of partitions, asked of any librdkafka client; 0 only when the topic does not exist.

    Raises confluent_kafka.KafkaException.
    """
    from confluent_kafka import KafkaError, KafkaException

    metadata = client.list_topics(topic, timeout=timeout_s).topics.get(topic)  # type: ignore[attr-defined]
    if metadata is None or (metadata.error is not None and metadata.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
        return 0
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    return len(metadata.partitions)


def confluent_producer(config: ProducerConfig) -> ProducerLike:
    from confluent_kafka import Producer

    class TopicProducer(Producer):
        """A producer that also returns the number of a topic's partitions."""

        def partition_count(self, topic: str, timeout_s: float) -> int:
            return partition_count(self, topic, timeout_s)

        def flush(self, timeout: float) -> int:
            return flush(self, timeout)

    return TopicProducer(config)
