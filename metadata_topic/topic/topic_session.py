"""A command's own access to the metadata topic: it is read completely, and records may be added. Blocks.

Reading begins at the newest snapshot, as for agents: the topic alone lacks what its retention removed, such as the
registrations of agents that have run for long.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.records.publishable import Publishable
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.snapshot_keeper import NewestSnapshot, SnapshotKeeper
from metadata_topic.store.snapshots.sparse_store import SparseStore
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.topic.consumer import STALLED_S, RemoteWalMetadataConsumer
from metadata_topic.topic.publication_queue import PublisherSettings
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from metadata_topic.topic.topic import METADATA_TOPIC
from metadata_topic.topic.topic_follower import ONE_LOOK
from plugin.blob_storage import BlobStorage

_PUBLISHED_WITHIN_S = 300.0
_TIMEOUT_S = 30.0
_SETTINGS = PublisherSettings(unpublished_max_ms=int(_PUBLISHED_WITHIN_S * 1000))
"""A command waits for everything that it publishes."""

Tell = Callable[[str], None]
"""Gets the progress."""


def newest_snapshot(blobs: BlobStorage | None, cluster_id: str) -> Callable[[], NewestSnapshot]:
    """Return a function that loads the newest snapshot from `blobs`, without an image if `blobs` is None."""
    return SnapshotKeeper(blobs, cluster_id, -1, 0).newest if blobs is not None else NewestSnapshot


def read_metadata(
    client: KafkaClientConfig,
    newest: Callable[[], NewestSnapshot] = NewestSnapshot,
    tell: Tell = lambda _text: None,
    known: tuple[SparseStore, ArchiveStore] | None = None,
) -> tuple[SparseStore, ArchiveStore]:
    """Return the content of the newest snapshot and the topic. Raises MetadataTopicError when the topic cannot be read.

    Segments that only the snapshot has are in the store's `snapshot_only`. `known` are the stores of an earlier call,
    to be brought up to date, or two empty ones.
    """
    store, archive = known or (SparseStore(), ArchiveStore())
    consumer = RemoteWalMetadataConsumer(client, store, ONE_LOOK, load_snapshot=lambda: newest().image, archive=archive)
    try:
        consumer.read_whole(tell)
    finally:
        consumer.close()
    store.settle()
    for doubt, found in store.topic.doubts.items():
        tell(f"metadata topic {doubt}: {found}; what leaders declared may be missing")
    return store, archive


class TopicSession:
    """A command's access to the metadata topic: `store` and `archive` have its content, `publisher` adds records."""

    def __init__(
        self,
        client: KafkaClientConfig,
        broker_id: int,
        clock: Callable[[], float],
        rack: str | None = None,
        store: RemoteWalMetadataStore | None = None,
        newest: Callable[[], NewestSnapshot] = NewestSnapshot,
        tell: Tell = lambda _text: None,
    ) -> None:
        """`clock` is monotonic, in seconds. Without `newest`, only the topic itself is read.

        Raises MetadataTopicError without a topic.
        """
        if KafkaCluster(client, "remote-wal-session", _TIMEOUT_S).find_topic(METADATA_TOPIC) is None:
            raise MetadataTopicError("read", METADATA_TOPIC, "the topic does not exist", "an agent makes it")
        self.store = store or RemoteWalMetadataStore()
        self.archive = ArchiveStore()
        self.publisher = RemoteWalMetadataPublisher(client, broker_id, clock, _SETTINGS)
        self._tell = tell
        self._consumer = RemoteWalMetadataConsumer(
            client, self.store, ONE_LOOK, rack, load_snapshot=lambda: newest().image, archive=self.archive
        )

    def __enter__(self) -> Self:
        """Read the topic. Raises MetadataTopicError when nothing comes for a while."""
        self.publisher.start()
        try:
            self._consumer.read_whole(self._tell)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read_to_end(self) -> bool:
        """Wait until the stores hold all that is in the topic now; False if nothing comes for a while. Blocks."""
        before: dict[int, int] | None = None
        while not (is_read := self._consumer.read_to_end(STALLED_S)) and before != self.store.progress:
            before = self.store.progress
        return is_read

    def publish(self, record: Publishable) -> None:
        """Queue a record. Raises PublicationBacklogFullError."""
        self.publisher.publish(record)

    def published(self) -> None:
        """Wait until every queued record is acknowledged. Raises MetadataTopicError."""
        if not self.publisher.flush(_PUBLISHED_WITHIN_S):
            raise MetadataTopicError("publish", METADATA_TOPIC, "not acknowledged in time", "run it again")

    def close(self) -> None:
        """Close the connections to Kafka."""
        self.publisher.close()
        self._consumer.close()
