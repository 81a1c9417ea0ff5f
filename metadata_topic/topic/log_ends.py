"""Asks with librdkafka who leads logs, and where they end for consumers. Blocks."""

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.records.errors import MetadataTopicError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of one partition."""

    leader_id: int
    """-1: none."""
    end_offset: int | None
    """Exclusive: the high watermark. None: nobody gives it now."""


class LogEnds:
    """One client for all questions, made for the first. Several threads may call `look`."""

    def __init__(self, client: KafkaClientConfig, client_id: str, timeout_s: float = 5.0) -> None:
        self._client = client
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._admin: AdminClient | None = None

    def leaders(self, topic: str) -> dict[int, int]:
        """Return leaders by partition, -1 without one. Empty if there is no such topic. Raises MetadataTopicError."""
        from confluent_kafka import KafkaError, KafkaException

        try:
            described = self._connected().list_topics(topic, timeout=self._timeout_s).topics[topic]
        except KafkaException as error:
            raise self._error(topic, error) from error
        if described.error is not None:
            if described.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return {}
            raise self._error(topic, described.error)
        return {partition.id: partition.leader for partition in described.partitions.values()}

    def look(self, partitions: Mapping[str, Collection[int] | None]) -> dict[tuple[str, int], LogEnd]:
        """Return the existing partitions by topic and number; None means all of a topic. Raises MetadataTopicError."""
        led: dict[tuple[str, int], int] = {}
        for topic, wanted in partitions.items():
            leaders = self.leaders(topic)
            led |= {(topic, one): leader for one, leader in leaders.items() if wanted is None or one in wanted}
        ends = dict(self._ends([where for where, leader in led.items() if leader >= 0]))
        return {where: LogEnd(leader, ends.get(where)) for where, leader in led.items()}

    def _ends(self, wanted: Collection[tuple[str, int]]) -> Iterator[tuple[tuple[str, int], int]]:
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        if not wanted:
            return
        asked = {TopicPartition(*where): OffsetSpec.latest() for where in wanted}
        try:
            futures: Mapping[Any, Future[Any]] = self._connected().list_offsets(asked, request_timeout=self._timeout_s)
        except KafkaException as error:
            raise self._error("log ends", error) from error
        for one, future in futures.items():
            try:
                yield (one.topic, one.partition), int(future.result(timeout=2 * self._timeout_s).offset)
            except (KafkaException, FutureTimeoutError):  # nobody gives it now
                continue

    def _connected(self) -> "AdminClient":
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            self._admin = AdminClient(self._client.for_confluent(client_id=self._client_id))
        return self._admin

    def _error(self, what: str, error: object) -> MetadataTopicError:
        return MetadataTopicError("ask where logs end", what, str(error))
