"""Storage for objects other than segments, beside the segments of the same cluster.

A `RemoteWalStorageManager` may have it (`blobs`); those based on `ObjectWalStorageManager` do. One without it is still
complete: the features that need blobs (snapshots of metadata) are then missing.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredBlob:
    name: str
    size_bytes: int
    custom_metadata: bytes = b""
    """What the storage manager says of the blob, for example its bucket; see `StoredSegment`."""
    last_modified_ms: int | None = None
    """By the store's clock; None if a listing did not give it."""


class BlobStorage(Protocol):
    """Stores blobs by name: plain names with "/" between them, the first one of `object_keys.BLOB_KINDS`."""

    async def put_blob(self, name: str, *chunks: bytes | memoryview) -> bytes:
        """Write a blob from chunks in order; durable and readable when this returns. Returns its custom metadata.

        Never overwrites: writing the same bytes again succeeds, other bytes under the same name raise
        RemoteSegmentConflictError.
        """

    async def get_blob(self, blob: StoredBlob, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes [start, end) of a blob, to its end by default.

        Raises RemoteResourceNotFoundError when it is gone, RemoteSegmentCorruptError when it is shorter than asked.
        """

    def list_blobs(self, directory: str) -> AsyncIterator[Sequence[StoredBlob]]:
        """List the blobs whose names begin with `directory` and "/", in parts, in any order.

        Raises IncompleteListingError at the end, like `RemoteWalStorageManager.list_log_segments`.
        """

    async def delete_blob(self, blob: StoredBlob) -> None:
        """Delete a blob. Idempotent. Without known custom metadata it is deleted wherever it may be."""
