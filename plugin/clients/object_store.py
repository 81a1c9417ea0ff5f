"""The storage manager's interface to an object store: a few requests, each one attempt.

Retries, total deadlines, keys and the object format belong to the manager. A store makes one request per call, keeps
the deadline per attempt, and turns its client library's errors into `plugin.errors`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

LOOP_MAX_BYTES: Final = 1024 * 1024
"""What is larger is copied, signed and checked in threads: it would hold up the event loop (guessed)."""


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """An object's size and checksum, as the store gives them without the object being read."""

    size_bytes: int
    crc32c: int | None
    """CRC32C of the whole object; None when the writer gave none, so it was not us."""


@dataclass(frozen=True, slots=True)
class ListedObject:
    key: str
    size_bytes: int
    last_modified_ms: int
    """By the store's clock."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a listing, in any order; `next_page` requests the next one, None ends the listing."""

    objects: Sequence[ListedObject]
    next_page: str | None


@runtime_checkable
class VersionedStore(Protocol):
    """A store that can say whether it keeps deleted objects."""

    async def keeps_versions(self) -> bool:
        """Whether deleted objects are kept as versions. Raises RemoteStorageError."""


class ObjectStore(Protocol):
    """The requests of an object store, one attempt each, on the event loop that `plugin.store_loop` names.

    Every method raises RemoteStorageError or one of its kinds, nothing else.
    """

    async def put_if_absent(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        """Write an object from chunks in order; durable and readable when this returns.

        Raises ObjectExistsError when the key is taken, and never alters the existing object.
        """

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end) of an object, fewer if it ends before. Raises RemoteResourceNotFoundError."""

    async def head(self, key: str) -> ObjectHead:
        """Return an object's size and checksum. Raises RemoteResourceNotFoundError."""

    async def delete(self, key: str) -> None:
        """Delete the object; succeeds when there is none."""

    async def list_page(self, prefix: str, page: str | None) -> ListPage:
        """Return a page of the objects whose key starts with `prefix`, which ends in "/"; `page` is from the page
        before."""

    def close(self) -> None:
        """Release connections. Idempotent; on any thread."""
