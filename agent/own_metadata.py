"""What the living agent of this host knows of the metadata topic, for commands that no broker answers.

Its file is read as it is at that moment, and never written, while the agent goes on. An agent that does not live may
have missed much, as may one that was restarted when no broker answered any more: then the file does not count.
"""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

import structlog

from agent.identity import LOCK_FILE
from metadata_topic.records.errors import SnapshotError
from metadata_topic.records.topic_doubt import TopicDoubt
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.segment_table import StoreLostError
from metadata_topic.store.snapshots.archive_snapshot import keep_archive, with_archive
from metadata_topic.store.snapshots.snapshot import SpooledSnapshot, read_image, snapshot_chunks
from metadata_topic.store.snapshots.snapshot_keeper import NewestSnapshot
from metadata_topic.store.snapshots.sparse_store import SparseStore
from metadata_topic.store.store import RemoteWalMetadataStore, StoreFile
from metadata_topic.store.store_image import StoreImage

log = structlog.get_logger(__name__)

_LOCKS: Final = Path("/proc/locks")


def own_metadata(
    state_directory: Path, cluster_id: str, newest: Callable[[], NewestSnapshot]
) -> tuple[SparseStore, ArchiveStore] | None:
    """Return what the agent with this state directory has read of the metadata topic.

    None if no agent runs, if it doubts the topic, or if it has read less than the newest snapshot, which `newest`
    loads.
    The store doubts the topic if that may not be the newest.
    """
    try:
        if not _is_locked(state_directory / LOCK_FILE):
            return None
        with closing(RemoteWalMetadataStore(StoreFile(state_directory, cluster_id, is_read_only=True))) as known:
            archived = ArchiveStore()
            keep_archive(known, archived)
            if known.topic.doubts:
                return None
            with known.streamed_image() as image:
                chunks = snapshot_chunks(with_archive(image, archived), cluster_id)
                spooled = SpooledSnapshot(chunks, None)
        own, (snapshot, doubt), store = read_image(spooled, cluster_id), newest(), SparseStore()
        if snapshot is not None and _is_behind(own, snapshot):
            log.warning("own_metadata_behind", progress=own.progress, snapshot=snapshot.progress)
            return None
        store.restore(own)
        store.settle()
        if doubt:
            store.topic.doubted(TopicDoubt.UNREADABLE, doubt)
    except (OSError, SnapshotError, StoreLostError) as error:
        log.warning("own_metadata_not_read", error=str(error), consequence="objects are read in its place")
        return None
    return store, archived


def _is_behind(own: StoreImage, snapshot: StoreImage) -> bool:
    is_other = None not in (own.topic_id, snapshot.topic_id) and own.topic_id != snapshot.topic_id
    return is_other or any(own.progress.get(one, 0) < offset for one, offset in snapshot.progress.items())


def _is_locked(file: Path) -> bool:
    """Whether a process that is seen here holds the file's lock; to try it would keep an agent from starting."""
    try:
        known = file.stat()
    except OSError:
        return False
    place = f" {os.major(known.st_dev):02x}:{os.minor(known.st_dev):02x}:{known.st_ino} "
    return any("FLOCK" in line and place in line for line in _LOCKS.read_text().splitlines())
