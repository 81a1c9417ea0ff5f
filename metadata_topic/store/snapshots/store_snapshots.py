"""Snapshots of the metadata store, so that an agent's start need not read the whole metadata topic.

Theory. A snapshot is a short cut and never needed: object storage that is not there soon enough, or answers with an
error, makes the start read the topic from its beginning. The wait for it is short and on the reading thread alone, so
neither replication nor the rest of the start is held up. If retention has cut that beginning off, the snapshot is
needed, and waited for until object storage answers. A snapshot is saved at an interval, once the topic was read to its
end, and only when the store has read on since the last one. What is remembered of the topic itself is loaded and
saved along with it, by snapshots and by the state directory (`metadata_topic.store.snapshots.store_snapshots`).

While the topic is in doubt (`metadata_topic.store.topic_continuity`) nothing is saved: the snapshots from before are
what the topic may have to be rebuilt from, and the doubt has to outlive this process.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog
from pydantic import TypeAdapter

from metadata_topic.records.errors import SnapshotError
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.snapshots.archive_snapshot import with_archive
from metadata_topic.store.snapshots.snapshot_keeper import SnapshotKeeper
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.store_image import StoreImage
from metadata_topic.store.topic_continuity import RememberedTopic
from plugin.durable_files import write_durably
from plugin.errors import RemoteStorageError
from plugin.wrappers.guarded_storage import GuardedStorageManager

log = structlog.get_logger(__name__)

_TRIES = 5
"""So many loads may fail before a topic without its beginning is read without a snapshot, and doubted."""
STORAGE_WAIT_S = 2.0
"""A store that is up answers the agent's self-test in less."""


FILE_NAME: Final = "metadata-topic.json"
_REMEMBERED: Final = TypeAdapter(RememberedTopic)


class TopicMemory:
    """Saves to the state directory the metadata topic's id and how far it was read. Blocks; one thread at a time.

    A snapshot in object storage has the same, but the store may not answer when the agent starts, and snapshots may be
    lost with it. A file that cannot be read is logged, and counts as nothing remembered.
    """

    def __init__(self, state_directory: Path) -> None:
        self._path = state_directory / FILE_NAME

    def load(self) -> RememberedTopic | None:
        """Load the metadata topic's remembered id and positions; None when there are none."""
        try:
            return _REMEMBERED.validate_json(self._path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.error("metadata_topic_memory_unreadable", file=str(self._path), error=str(error),
                      hint="written anew; a topic lost meanwhile is noticed by snapshots alone")  # fmt: skip
            return None

    def save(self, topic: RememberedTopic) -> None:
        """Write the file in one piece: after a crash it is the old one or the new one. Raises OSError."""
        write_durably(self._path, _REMEMBERED.dump_json(topic).decode())


class StoreSnapshots:
    """Loads a snapshot when an agent starts to read the metadata topic, and saves one at intervals."""

    def __init__(
        self,
        store: RemoteWalMetadataStore,
        archive: ArchiveStore,
        keeper: SnapshotKeeper,
        storage: GuardedStorageManager,
        wall_ms: Callable[[], int],
        memory: TopicMemory,
        storage_wait_s: float = STORAGE_WAIT_S,
    ) -> None:
        """`keeper` saves to and loads from `storage`."""
        self._memory = memory
        self._store = store
        self._archive = archive
        self._keeper = keeper
        self._storage = storage
        self._wall_ms = wall_ms
        self._storage_wait_s = storage_wait_s
        self._saved_progress: dict[int, int] | None = None
        self._tries = 0

    def load(self) -> StoreImage | None:
        """Load the newest snapshot to start from; None if there is none, or the object store does not respond. For
        the reading thread."""
        topic = self._store.topic
        if not topic.awaits_snapshot and (remembered := self._memory.load()) is not None:
            topic.remember(remembered)
        topic.awaits_snapshot = not self._storage.is_there
        if not self._storage.wait_until_there(self._storage_wait_s):
            log.info("metadata_snapshot_not_loaded", reason="object storage has not answered yet")
            return None
        topic.awaits_snapshot = False
        failures = self._keeper.counters.get("load_failures", 0)
        image = self._keeper.load()
        if image is None and self._keeper.counters.get("load_failures", 0) > failures:
            self._tries += 1
            topic.awaits_snapshot = self._tries < _TRIES
        if image is not None:
            self._saved_progress = dict(image.progress)
            log.info("metadata_snapshot_loaded", segments=len(image.segments))
        return image

    def save_if_changed(self) -> bool:
        """Save the store unless the last snapshot has the same progress. Blocks; False when nothing was saved."""
        if not self._remember_topic():
            return False
        if not self._storage.is_there or self._store.progress == self._saved_progress:
            return False
        try:
            with self._store.streamed_image() as known:
                image = with_archive(known, self._archive)
                size_bytes = self._keeper.save(image, self._wall_ms())
        except (RemoteStorageError, SnapshotError, OSError) as error:
            log.warning("metadata_snapshot_not_saved", error=str(error), consequence="a longer read at the next start")
            return False
        self._saved_progress = dict(image.progress)
        log.info("metadata_snapshot_saved", bytes=size_bytes, segments=len(image.segments))
        return True

    def _remember_topic(self) -> bool:
        """Save what is to be remembered of the topic; False, and nothing saved, while the topic is in doubt."""
        if doubts := self._store.topic.doubts:
            log.error("metadata_topic_in_doubt", doubts=doubts, consequence="no snapshot is saved, no orphan is healed",
                      hint="remote-wal metadata rebuild")  # fmt: skip
            return False
        try:
            self._memory.save(self._store.topic.to_remember(self._store.progress))
        except OSError as error:
            log.warning("metadata_topic_not_remembered", error=str(error))
        return True

    async def run(
        self,
        interval_s: float,
        is_read: Callable[[], bool],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Save a snapshot at that interval, for ever, on a separate thread, if the topic was read to its end."""
        if is_read():
            await asyncio.to_thread(self._remember_topic)
        while True:
            await sleep(interval_s)
            if is_read():
                await asyncio.to_thread(self.save_if_changed)

    @property
    def counters(self) -> dict[str, int]:
        """Counts of snapshots: `saved`, `loaded`, `refused`, `load_failures`, `removed`."""
        return self._keeper.counters
