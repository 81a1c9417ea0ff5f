"""Compares a broker's objects with the metadata once, outside of its agent: for the command line."""

import time
from types import TracebackType
from typing import Self

from agent.settings.agent_settings import AgentSettings
from agent.settings.setting_types import milliseconds
from agent.settings.storage_spec import storage_spec
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_log.broker_files.server_properties import BrokerProperties
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.store.snapshots.store_snapshots import TopicMemory
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.topic import METADATA_TOPIC
from metadata_topic.topic.topic_session import TopicSession, newest_snapshot
from plugin.remote_wal_storage_manager import StorageContext, blobs_of
from plugin.wall_clock import wall_ms
from plugin.zones.bucket_loading import load_storage
from rlm.lifecycle.orphans import Comparison, MetadataBehindError, OrphanTask

_TIMEOUT_S = 30.0


class OrphanCheck:
    """Compares one broker's objects with the metadata, for a command. Entering it reads the metadata topic. Blocks."""

    def __init__(self, broker: BrokerProperties, settings: AgentSettings, client: KafkaClientConfig) -> None:
        """`client` reaches the cluster. Raises KafkaClusterError, RemoteStorageError."""
        self._broker_id = broker.node_id
        store = RemoteWalMetadataStore()
        if (remembered := TopicMemory(settings.process.state_directory).load()) is not None:
            store.topic.remember(remembered)
        cluster_id = KafkaCluster(client, "remote-wal-orphans", _TIMEOUT_S).listing().cluster_id
        context = StorageContext(cluster_id, broker.node_id, can_wait=True)
        self._storage = load_storage(storage_spec(settings.storage, broker), context)
        blobs = blobs_of(self._storage, "read", "metadata snapshots")
        newest = newest_snapshot(blobs, cluster_id)
        self._session = TopicSession(client, broker.node_id, time.monotonic, broker.rack, store, newest)
        self._task = OrphanTask(
            self._storage,
            store,
            self._session.read_to_end,
            milliseconds(settings.lifecycle.uncommitted_ttl_s),
            wall_ms,
            topic_doubt=lambda: "; ".join(store.topic.doubts.values()),
        )

    def __enter__(self) -> Self:
        """Read the metadata topic to its end. Raises MetadataTopicError."""
        self._session.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()
        self._storage.close()

    def compare(self) -> Comparison:
        """Return where the broker's objects and the metadata disagree.

        Raises RemoteStorageError, and MetadataTopicError when the topic was not read to its end.
        """
        try:
            return self._task.compare([self._broker_id])[self._broker_id]
        except MetadataBehindError as error:
            raise MetadataTopicError("read", METADATA_TOPIC, str(error), "are the brokers up?") from error

    def heal(self, found: Comparison, confirmed: str | None = None) -> int:
        """Heal the disagreements, and return how many were healed. Raises RemoteStorageError, MetadataTopicError if
        publishing failed."""
        healed = self._task.heal(found, self._session.publisher, confirmed)
        self._session.published()
        return len(healed)
