"""A command's own access to the metadata topic: it is read completely, and records may be added. Blocks."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.records.publishable import Publishable
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from metadata_topic.topic.publication_queue import PublisherSettings
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from metadata_topic.topic.topic import METADATA_TOPIC, confluent_admin
from metadata_topic.topic.topic_follower import ONE_LOOK

READ_TIMEOUT_S = 300.0
_ADMIN_TIMEOUT_S = 30.0
_SETTINGS = PublisherSettings(unpublished_max_ms=int(READ_TIMEOUT_S * 1000))
"""A command waits for everything that it publishes."""


class TopicSession:
    """A command's access to the topic: `store` and `archive` hold its content; `publisher` takes records to add."""

    def __init__(
        self,
        client: KafkaClientConfig,
        broker_id: int,
        clock: Callable[[], float],
        rack: str | None = None,
        store: RemoteWalMetadataStore | None = None,
    ) -> None:
        """`clock` is monotonic, in seconds; `store` may already have content.

        Raises MetadataTopicError without a topic.
        """
        if confluent_admin(client, _ADMIN_TIMEOUT_S).layout(METADATA_TOPIC) is None:
            raise MetadataTopicError("read", METADATA_TOPIC, "the topic does not exist", "an agent makes it")
        self.store = store or RemoteWalMetadataStore()
        self.archive = ArchiveStore()
        self.publisher = RemoteWalMetadataPublisher(client, broker_id, clock, _SETTINGS)
        self._consumer = RemoteWalMetadataConsumer(client, self.store, ONE_LOOK, rack, archive=self.archive)

    def __enter__(self) -> Self:
        """Read the topic. Raises MetadataTopicError when its end is not reached in time."""
        self._consumer.start()
        self.publisher.start()
        if not self._consumer.wait_until_ready(READ_TIMEOUT_S):
            self.close()
            raise MetadataTopicError(
                "read", METADATA_TOPIC, f"not read to its end within {READ_TIMEOUT_S:.0f} s", "are the brokers up?"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read_to_end(self) -> bool:
        """Wait until the stores hold everything that is in the topic now; False if that fails. Blocks."""
        return self._consumer.read_to_end(READ_TIMEOUT_S)

    def publish(self, record: Publishable) -> None:
        """Queue a record. Raises PublicationBacklogFullError."""
        self.publisher.publish(record)

    def published(self) -> None:
        """Wait until everything is acknowledged. Raises MetadataTopicError."""
        if not self.publisher.flush(READ_TIMEOUT_S):
            raise MetadataTopicError("publish", METADATA_TOPIC, "not acknowledged in time", "run it again")

    def close(self) -> None:
        """Close the connections to Kafka."""
        self.publisher.close()
        self._consumer.close()
