"""The metadata in all agents' snapshots, joined: for when the topic is lost.

Each agent's snapshots hold what the whole topic had until then. Several agents' snapshots of different age are joined
like the topic's records: order and repetition do not matter.
"""

from metadata_topic.records.errors import SnapshotError
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import EXTRA_NAME, decode_archive
from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper, brokers_with_snapshots
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.topic_continuity import NEVER_REBUILT_MS
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from recovery.metadata.footers import Progress


class RememberedMetadata:
    """Filled by one thread, then read."""

    def __init__(self) -> None:
        self.store = RemoteWalMetadataStore()
        self.archive = ArchiveStore()
        self.rebuilt_ms = NEVER_REBUILT_MS
        """Time of the newest rebuild of any topic that an agent remembers."""
        self.snapshots = 0
        self.refused = 0
        """Brokers whose snapshots are all damaged, or foreign."""


def read_snapshots(
    storage: RemoteWalStorageManager, cluster_id: str, progress: Progress = lambda _what, _done: None
) -> RememberedMetadata:
    """Read the newest snapshot of each broker; nothing if `storage` keeps none. Raises RemoteStorageError."""
    remembered = RememberedMetadata()
    blobs = storage.blobs
    if blobs is None:
        return remembered
    for broker_id in brokers_with_snapshots(blobs):
        image = SnapshotKeeper(blobs, cluster_id, broker_id, 0).load_own()
        if image is None:
            remembered.refused += 1
            continue
        remembered.store.join(image)
        remembered.rebuilt_ms = max(remembered.rebuilt_ms, image.rebuilt_ms)
        try:
            archived = decode_archive(image.extras[EXTRA_NAME]) if EXTRA_NAME in image.extras else []
        except SnapshotError:
            archived = []
        for record in archived:
            remembered.archive.apply(record)
        remembered.snapshots += 1
        progress("snapshots", remembered.snapshots)
    return remembered
