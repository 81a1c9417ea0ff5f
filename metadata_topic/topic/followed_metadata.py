"""Keeps everything from the metadata topic up to date: the stores, the reading, the snapshots."""

from collections import Counter
from collections.abc import Callable, Mapping

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import keep_archive
from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper
from metadata_topic.store.snapshots.store_snapshots import StoreSnapshots, TopicMemory
from metadata_topic.store.store import RemoteWalMetadataStore, StoreFile
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from plugin.segment_metadata import CombinedSegmentId
from plugin.wrappers.guarded_storage import GuardedStorageManager

_READ_TO_END_TIMEOUT_S = 60.0


class FollowedMetadata:
    """The metadata stores, and the consumer that keeps them up to date on its own thread. Thread-safe."""

    def __init__(
        self,
        file: StoreFile,
        client: KafkaClientConfig,
        rack: str | None,
        writer: CombinedSegmentId,
        storage: GuardedStorageManager,
        wall_ms: Callable[[], int],
    ) -> None:
        """Load the file's content. Blocks: for seconds if it has many objects.

        Snapshots are in `storage`; `writer` has the broker and the incarnation that write them.
        """
        self.store, self.archive = RemoteWalMetadataStore(file), ArchiveStore()
        keep_archive(self.store, self.archive)
        memory, names = TopicMemory(file.directory), (file.cluster_id, writer.broker_id, writer.incarnation)
        keeper = SnapshotKeeper(storage.blobs, *names, spool_directory=file.directory)
        self._snapshots = StoreSnapshots(self.store, self.archive, keeper, storage, wall_ms, memory)
        self.consumer = RemoteWalMetadataConsumer(
            client, self.store, rack=rack, load_snapshot=self._snapshots.load, archive=self.archive
        )

    def read_to_end(self) -> bool:
        """Wait until the stores hold everything that is in the topic now; False if that fails. Blocks."""
        return self.consumer.read_to_end(_READ_TO_END_TIMEOUT_S)

    def is_whole(self) -> bool:
        """Wait until the stores have the whole topic; False if that fails, or the topic may have lost records.
        Blocks."""
        return self.read_to_end() and not self.store.topic.doubts

    def doubt(self) -> str:
        """Return the doubts about the topic, for people; empty without any."""
        return "; ".join(f"metadata topic {doubt}: {found}" for doubt, found in self.store.topic.doubts.items())

    async def save_snapshots(self, interval_s: float, may_save: Callable[[], bool]) -> None:
        """Save snapshots at that interval, for ever, while the consumer is ready and `may_save` returns True.

        The snapshot of a store that is not read to its end yet would replace a better one.
        """
        await self._snapshots.run(interval_s, lambda: self.consumer.ready and may_save())

    @property
    def counters(self) -> Mapping[str, int]:
        """Counters of the reading, of the store, of snapshots as `snapshots_x`, and `doubt_x` for each doubt."""
        snapshots = {f"snapshots_{name}": count for name, count in self._snapshots.counters.items()}
        doubts = {f"doubt_{doubt}": 1 for doubt in self.store.topic.doubts}
        return Counter({**self.consumer.counters, **self.store.counters, **snapshots, **doubts})
