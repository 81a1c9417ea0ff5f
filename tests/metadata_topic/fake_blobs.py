"""Blobs in memory, as `plugin.blob_storage.BlobStorage` keeps them."""

from collections.abc import AsyncIterator

from plugin.blob_storage import StoredBlob
from plugin.errors import RemoteResourceNotFoundError, RemoteSegmentConflictError, RemoteStorageError


class FakeBlobs:
    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.puts_before_it_fails: int | None = None
        self.is_down = False
        self.now_ms: int | None = None
        """The store's clock; None: it does not tell when a blob was written."""
        self.written_ms: dict[str, int | None] = {}

    async def put_blob(self, name: str, *chunks: bytes | memoryview) -> bytes:
        if self.puts_before_it_fails is not None:
            if self.puts_before_it_fails == 0:
                raise RemoteStorageError("put", name, "down")
            self.puts_before_it_fails -= 1
        content = b"".join(chunks)
        if self.blobs.setdefault(name, content) != content:
            raise RemoteSegmentConflictError("put", name, "other bytes")
        self.written_ms.setdefault(name, self.now_ms)
        return b""

    async def get_blob(self, blob: StoredBlob, start: int = 0, end: int | None = None) -> bytes:
        if blob.name not in self.blobs:
            raise RemoteResourceNotFoundError("get", blob.name, "gone")
        return self.blobs[blob.name][start:end]

    async def list_blobs(self, directory: str) -> AsyncIterator[list[StoredBlob]]:
        if self.is_down:
            raise RemoteStorageError("list", directory, "down")
        yield [
            StoredBlob(name, len(self.blobs[name]), last_modified_ms=self.written_ms.get(name))
            for name in sorted(self.blobs, key=hash)
            if name.startswith(directory + "/")
        ]

    async def delete_blob(self, blob: StoredBlob) -> None:
        self.blobs.pop(blob.name, None)
