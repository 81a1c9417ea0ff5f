"""A storage manager that may not be there yet.

An agent must relay its broker's replication from its first moment, whether object storage answers or not. Until the
real storage manager is configured, every call fails as if the store were down, and all bytes go inline.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence

from plugin.blob_storage import BlobStorage, StoredBlob
from plugin.errors import RemoteStorageError
from plugin.remote_wal_storage_manager import (
    RemoteWalStorageManager,
    RequestCounts,
    StorageContext,
    StoredSegment,
)
from plugin.segment_metadata import (
    CombinedSegmentId,
    RemoteWalCombinedLogSegmentMetadata,
    RemoteWalCombinedLogSegmentMetadataUpdate,
)


class LateStorageManager(RemoteWalStorageManager):
    """Stands in for a storage manager until `arrived` brings it."""

    def __init__(self) -> None:
        self._manager: RemoteWalStorageManager | None = None
        self._there_since = threading.Event()

    def arrived(self, manager: RemoteWalStorageManager) -> None:
        """Use this one from now on; it is configured."""
        self._manager = manager
        self._there_since.set()

    @property
    def is_there(self) -> bool:
        """Whether calls reach a real storage manager."""
        return self._manager is not None

    def wait_until_there(self, timeout_s: float) -> bool:
        """Block until `arrived`; False when the time ran out first. Not for the event loop."""
        return self._there_since.wait(timeout_s)

    def configure(self, settings: Mapping[str, str], context: StorageContext) -> None:
        """Nothing: what arrives is configured already."""

    def copy_log_segment_data(
        self, metadata: RemoteWalCombinedLogSegmentMetadata, records_list: Sequence[bytes | memoryview]
    ) -> RemoteWalCombinedLogSegmentMetadataUpdate:
        """As the real one."""
        return self._there("copy", metadata.combined_segment_id).copy_log_segment_data(metadata, records_list)

    def fetch_log_segment(
        self,
        combined_segment_id: CombinedSegmentId,
        start_position: int,
        end_position: int,
        custom_metadata: bytes = b"",
    ) -> bytes:
        """As the real one."""
        manager = self._there("fetch", combined_segment_id)
        return manager.fetch_log_segment(combined_segment_id, start_position, end_position, custom_metadata)

    def fetch_segment_metadata(self, stored: StoredSegment) -> RemoteWalCombinedLogSegmentMetadata:
        """As the real one."""
        return self._there("fetch metadata", stored.key).fetch_segment_metadata(stored)

    def delete_log_segment_data(self, combined_segment_id: CombinedSegmentId, custom_metadata: bytes = b"") -> None:
        """As the real one."""
        self._there("delete", combined_segment_id).delete_log_segment_data(combined_segment_id, custom_metadata)

    def list_log_segments(self, broker_id: int | None = None) -> Iterator[StoredSegment]:
        """As the real one."""
        return self._there("list", "").list_log_segments(broker_id)

    def put_blob(self, name: str, content: bytes) -> None:
        """As the real one."""
        self._blobs("put", name).put_blob(name, content)

    def get_blob(self, blob: StoredBlob) -> bytes:
        """As the real one."""
        return self._blobs("get", blob.name).get_blob(blob)

    def list_blobs(self, directory: str) -> Iterator[StoredBlob]:
        """As the real one."""
        return self._blobs("list", directory).list_blobs(directory)

    def delete_blob(self, name: str) -> None:
        """As the real one."""
        self._blobs("delete", name).delete_blob(name)

    @property
    def request_counts(self) -> RequestCounts:
        """None were sent before the real one was there."""
        return self._manager.request_counts if self._manager is not None else RequestCounts()

    def close(self) -> None:
        """Close the real one, if it is there."""
        if self._manager is not None:
            self._manager.close()

    def _blobs(self, operation: str, key: str) -> BlobStorage:
        manager = self._there(operation, key)
        if not isinstance(manager, BlobStorage):
            raise RemoteStorageError(operation, key, f"{type(manager).__name__} stores segments only", label="no_blobs")
        return manager

    def _there(self, operation: str, key: object) -> RemoteWalStorageManager:
        if self._manager is None:
            raise RemoteStorageError(operation, str(key), "object storage has not answered since the agent started")
        return self._manager
