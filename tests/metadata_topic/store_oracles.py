"""What tests ask of the stores that nobody else does."""

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import with_archive
from metadata_topic.store.snapshots.snapshot import read_image, snapshot_chunks
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentMetadataEntry


def write_snapshot(store: RemoteWalMetadataStore, cluster_id: str = "", archive: ArchiveStore | None = None) -> bytes:
    image = store.image() if archive is None else with_archive(store.image(), archive)
    return b"".join(snapshot_chunks(image, cluster_id))


def read_snapshot(snapshot: bytes | memoryview, cluster_id: str = "") -> RemoteWalMetadataStore:
    store = RemoteWalMetadataStore()
    store.restore(read_image(snapshot, cluster_id))
    return store


def living_entries(
    store: RemoteWalMetadataStore, combined_segment_id: CombinedSegmentId
) -> tuple[RemoteLogSegmentMetadataEntry, ...]:
    """The segment's entries that are not dead as a whole; none when it is unknown or deleted."""
    known, dead = store.published_segment(combined_segment_id), store.dead_tails(combined_segment_id)
    return tuple(
        entry
        for entry in (known.metadata.entries if known is not None else ())
        if entry.first_offset < dead.get((entry.topic_id_partition, entry.leader_epoch), entry.last_offset + 1)
    )


def archived_up_to(store: ArchiveStore, partition: TopicIdPartition, leader_epochs: LeaderEpochs) -> int:
    """The last offset of the first unbroken range that is archived; -1 when nothing is."""
    found = store.archived_range(partition, leader_epochs, 0)
    return -1 if found is None else found[1]
