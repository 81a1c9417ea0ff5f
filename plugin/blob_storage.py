"""Storage for what is no segment, beside the segments of the same cluster.

A `RemoteWalStorageManager` may have it (`blobs`); those on `ObjectWalStorageManager` do. One that has none is a whole
storage manager all the same: what blobs are kept for (snapshots of metadata) is then done without.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob as the store lists it."""

    name: str
    size_bytes: int
    custom_metadata: bytes = b""
    """As of a `StoredSegment`."""
    last_modified_ms: int | None = None
    """By the store's clock; None where a listing did not tell it."""


class BlobStorage(Protocol):
    """Blobs by name: plain names with "/" between them, the first one of `object_keys.BLOB_KINDS`.

    Errors are RemoteStorageError and its kinds; a name that is none is a ValueError. Deadlines and retries are
    those of the segments' requests.
    """

    def put_blob(self, name: str, *chunks: bytes | memoryview) -> bytes:
        """Write a blob, the chunks one after the other; durable and readable on return. Its custom metadata.

        Never overwrites: writing the same bytes again succeeds, other bytes under the same name raise
        RemoteSegmentConflictError.
        """

    def get_blob(self, blob: StoredBlob, start: int = 0, end: int | None = None) -> bytes:
        """The bytes [start, end) of a blob, to its end by default. Raises RemoteResourceNotFoundError when it is gone,
        RemoteSegmentCorruptError when it is shorter than asked.
        """

    def list_blobs(self, directory: str) -> Iterator[StoredBlob]:
        """The blobs whose names begin with `directory` and "/", in any order.

        Raises IncompleteListingError at the end, as `RemoteWalStorageManager.list_log_segments` does.
        """

    def delete_blob(self, blob: StoredBlob) -> None:
        """Remove a blob. Idempotent. One whose custom metadata is not known is removed wherever it may be."""
