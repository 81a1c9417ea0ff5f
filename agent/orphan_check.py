"""One comparison of a broker's objects with the metadata, outside of its agent: for the command line."""

import time
from types import TracebackType
from typing import Self

from agent.kafka_client import client_config
from agent.process import wall_ms
from agent.settings import AgentSettings
from kafka_log.meta_properties import read_meta_properties
from kafka_log.server_properties import BrokerProperties
from metadata_topic.consumer import RemoteWalMetadataConsumer
from metadata_topic.errors import MetadataTopicError
from metadata_topic.publisher import RemoteWalMetadataPublisher
from metadata_topic.store import RemoteWalMetadataStore
from metadata_topic.topic import METADATA_TOPIC
from plugin.loading import load_storage_manager, settings_under_prefix
from plugin.remote_wal_storage_manager import StorageContext
from rlm.orphan_task import OrphanTask
from rlm.orphans import Comparison, MetadataBehindError

_READ_TIMEOUT_S = 120.0


class OrphanCheck:
    """Reads the metadata topic to its end when entered. Blocks."""

    def __init__(self, broker: BrokerProperties, settings: AgentSettings) -> None:
        """Raises RemoteStorageError when the store cannot be used."""
        client = client_config(broker, settings)
        prefix = settings.remote_log_wal_storage_manager_impl_prefix
        self._broker_id = broker.node_id
        self._storage = load_storage_manager(
            settings.remote_log_wal_storage_manager_class_name,
            settings.remote_log_wal_storage_manager_class_path,
            settings_under_prefix(broker.raw, prefix),
            StorageContext(read_meta_properties(broker.log_dirs[0]).cluster_id, broker.node_id),
            prefix,
        )
        store = RemoteWalMetadataStore()
        self._consumer = RemoteWalMetadataConsumer(client, store, rack=broker.rack)
        partitions = settings.remote_wal_log_metadata_topic_num_partitions
        self._publisher = RemoteWalMetadataPublisher(client, broker.node_id, partitions, time.monotonic)
        self._task = OrphanTask(
            self._storage,
            store,
            lambda: self._consumer.read_to_end(_READ_TIMEOUT_S),
            settings.remote_wal_uncommitted_ttl_ms,
            wall_ms,
        )

    def __enter__(self) -> Self:
        self._consumer.start()
        self._publisher.start()
        if not self._consumer.wait_until_ready(_READ_TIMEOUT_S):
            self.close()
            raise MetadataTopicError(
                "read", METADATA_TOPIC, f"not read to its end within {_READ_TIMEOUT_S:.0f} s", "are the brokers up?"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def compare(self) -> Comparison:
        """What disagrees. Raises RemoteStorageError, and MetadataTopicError when the topic was not read to its end."""
        try:
            return self._task.compare([self._broker_id])[self._broker_id]
        except MetadataBehindError as error:
            raise MetadataTopicError("read", METADATA_TOPIC, str(error), "are the brokers up?") from error

    def heal(self, found: Comparison) -> int:
        """How many were healed. Raises RemoteStorageError, and MetadataTopicError when it could not be published."""
        healed = self._task.heal(found, self._publisher)
        if not self._publisher.flush(_READ_TIMEOUT_S):
            raise MetadataTopicError("publish", METADATA_TOPIC, "not acknowledged in time", "run it again")
        return len(healed)

    def close(self) -> None:
        """Let go of Kafka and the store."""
        self._publisher.close()
        self._consumer.close()
        self._storage.close()
