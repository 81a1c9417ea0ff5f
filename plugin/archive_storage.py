"""The store of archive objects: a second storage manager, with its own class and settings.

The backends are those of combined segments (S3, S3 Express, a directory), with the same requests, retries, deadlines
and unknown outcomes, under other keys. So combined segments may be in S3 Express, and the archive in S3 Standard; both
may also share a bucket, because their keys never meet.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from kafka_log.topic_partition import TopicIdPartition
from plugin.errors import RemoteSegmentCorruptError, RemoteStorageConfigError, defects_as_storage_errors
from plugin.format.archive_object import check_runs
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.format.combined_segment import SealedCombinedSegment
from plugin.loading import (
    ARCHIVE_CLASS_NAME_KEY,
    DEFAULT_ARCHIVE_CLASS_NAME,
    StorageSpec,
    load_storage_manager,
)
from plugin.object_wal_storage_manager import ObjectWalStorageManager
from plugin.remote_wal_storage_manager import RequestCounts, StorageContext
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry


@dataclass(frozen=True, slots=True)
class StoredArchiveObject:
    """An archive object in a listing of the store, whether the metadata has it or not."""

    object_id: ArchiveObjectId
    key: str
    size_bytes: int
    last_modified_ms: int
    """The store's own clock, not the writer's."""


class ArchiveStorage:
    """Stores whole archive objects on any of the object backends. Any error of a backend fails only that call."""

    def __init__(self, manager: ObjectWalStorageManager) -> None:
        """`manager` is already configured."""
        self._manager = manager

    async def write(self, object_id: ArchiveObjectId, sealed: SealedCombinedSegment) -> None:
        """Write an object; it is durable and readable when this returns.

        Idempotent; other bytes under the key raise RemoteSegmentConflictError.
        """
        with defects_as_storage_errors("write", object_id):
            key = self._manager.keys.archive_key_of(object_id)
            await self._manager.requests.put(key, sealed.chunks, sealed.size_bytes)

    async def fetch(self, object_id: ArchiveObjectId, start_position: int, end_position: int) -> bytes:
        """Return the bytes [start_position, end_position) of an object, unchecked. Raises
        RemoteResourceNotFoundError."""
        with defects_as_storage_errors("fetch", object_id):
            key = self._manager.keys.archive_key_of(object_id)
            return await self._manager.requests.get(key, start_position, end_position)

    async def fetch_runs(self, stored: StoredArchiveObject) -> tuple[RemoteLogSegmentMetadataEntry, ...]:
        """Return the runs in the object's footer, checked against its key: all that recovery needs.

        Raises RemoteSegmentCorruptError.
        """
        with defects_as_storage_errors("fetch metadata", stored.key):
            header, runs, note = await self._manager.read_footer(stored.key, stored.size_bytes)
        if header.combined_segment_id != stored.object_id.writer_id:
            raise RemoteSegmentCorruptError(
                "fetch metadata", stored.key, f"was written as {header.combined_segment_id}"
            )
        if note is not None:
            raise RemoteSegmentCorruptError("fetch metadata", stored.key, "does not hold all of its records")
        try:
            check_runs(stored.object_id, runs)
        except ValueError as error:
            raise RemoteSegmentCorruptError("fetch metadata", stored.key, str(error)) from error
        return runs

    async def delete(self, object_id: ArchiveObjectId) -> None:
        """Delete an object. Idempotent: deleting a missing object succeeds."""
        with defects_as_storage_errors("delete", object_id):
            await self._manager.requests.delete(self._manager.keys.archive_key_of(object_id))

    async def list(
        self, topic_id_partition: TopicIdPartition | None = None
    ) -> AsyncIterator[Sequence[StoredArchiveObject]]:
        """List this cluster's archive objects, or those of one partition, in parts and in any order; foreign objects
        are skipped."""
        with defects_as_storage_errors("list", topic_id_partition or ""):
            async for part in self._manager.requests.list(self._manager.keys.archive_prefix(topic_id_partition)):
                yield [
                    StoredArchiveObject(object_id, item.key, item.size_bytes, item.last_modified_ms)
                    for item in part
                    if (object_id := self._manager.keys.parse_archive(item.key)) is not None
                ]

    @property
    def request_counts(self) -> RequestCounts:
        return self._manager.request_counts

    def close(self) -> None:
        self._manager.close()


def load_archive_storage(spec: StorageSpec, context: StorageContext) -> ArchiveStorage:
    """Load and configure the archive's storage. Raises like `load_storage_manager`."""
    manager = load_storage_manager(spec, context)
    if not isinstance(manager, ObjectWalStorageManager):
        manager.close()
        raise RemoteStorageConfigError(
            "load",
            ARCHIVE_CLASS_NAME_KEY,
            f"{spec.class_name} is no ObjectWalStorageManager",
            f"the archive needs keys of its own; such as {DEFAULT_ARCHIVE_CLASS_NAME}",
        )
    return ArchiveStorage(manager)
