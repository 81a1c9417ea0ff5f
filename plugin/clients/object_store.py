"""The storage manager's interface to an object store: a few requests, each one attempt.

Retries, total deadlines, keys and the object format belong to the manager. A store makes one request per call, keeps
the deadline per attempt, and turns its client library's errors into `plugin.errors`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """What the store knows of an object without reading it."""

    size_bytes: int
    crc32c: int | None
    """CRC32C of the whole object; None when the writer gave none, so it was not us."""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One object in a listing."""

    key: str
    size_bytes: int
    last_modified_ms: int
    """By the store's clock."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """A part of a listing, in any order; `next_page` requests the following part, None ends it."""

    objects: Sequence[ListedObject]
    next_page: str | None


@runtime_checkable
class VersionedStore(Protocol):
    """A store that can say whether it keeps deleted objects."""

    def keeps_versions(self) -> bool:
        """Whether deleted objects are kept as versions. Raises RemoteStorageError."""


class ObjectStore(Protocol):
    """One attempt at each request; called from many threads at once.

    Every method raises RemoteStorageError or one of its kinds, nothing else.
    """

    def put_if_absent(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        """Write an object whose bytes are the chunks in order; durable and readable on return.

        Raises ObjectExistsError when the key is taken, and never alters the existing object.
        """

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes [start, end), fewer if the object ends before. Raises RemoteResourceNotFoundError."""

    def head(self, key: str) -> ObjectHead:
        """Return size and checksum. Raises RemoteResourceNotFoundError."""

    def delete(self, key: str) -> None:
        """Delete the object; succeeds when there is none."""

    def list_page(self, prefix: str, page: str | None) -> ListPage:
        """List objects whose key starts with `prefix`, which ends in "/"; `page` comes from the part before."""

    def close(self) -> None:
        """Release connections. Idempotent."""


@runtime_checkable
class LoopStore(ObjectStore, Protocol):
    """An ObjectStore whose two requests for every object can be awaited on an event loop as well.

    They behave like the calls of the same name, errors included. For one event loop only.
    """

    def admits_on_loop(self, size_bytes: int) -> bool:
        """Whether a request of so many bytes would not block the loop now."""

    async def put_if_absent_on_loop(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        """Write an object, see `put_if_absent`."""

    async def get_range_on_loop(self, key: str, start: int, end: int) -> bytes:
        """Read a range, see `get_range`."""
