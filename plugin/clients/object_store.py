"""What the storage manager asks of an object store: a few requests, each one attempt.

Retries, deadlines in total, keys and the object format are the manager's. A store makes one request per
call, keeps the deadline per attempt, and turns whatever its client library raises into `plugin.errors`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """What the store knows of an object without reading it."""

    size_bytes: int
    crc32c: int | None
    """Of the whole object; None when the writer gave none, so it was not us."""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One object in a listing."""

    key: str
    size_bytes: int
    last_modified_ms: int
    """The store's clock."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """A part of a listing, in any order; `next_page` asks for the following part, None ends it."""

    objects: Sequence[ListedObject]
    next_page: str | None


@runtime_checkable
class VersionedStore(Protocol):
    """A store that can tell whether it keeps what is deleted."""

    def keeps_versions(self) -> bool:
        """Raises RemoteStorageError."""


class ObjectStore(Protocol):
    """One attempt at each request; called from many threads at once.

    Every method raises RemoteStorageError or one of its kinds, nothing else.
    """

    def put_if_absent(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        """Write an object whose bytes are the chunks one after the other; durable and readable on return.

        Raises ObjectExistsError when the key is taken, and never alters what is there.
        """

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """The bytes [start, end), fewer where the object ends before. Raises RemoteResourceNotFoundError."""

    def head(self, key: str) -> ObjectHead:
        """Size and checksum. Raises RemoteResourceNotFoundError."""

    def delete(self, key: str) -> None:
        """Remove the object; succeeds when there is none."""

    def list_page(self, prefix: str, page: str | None) -> ListPage:
        """Objects whose key starts with `prefix`, which ends in "/"; `page` comes from the part before."""

    def close(self) -> None:
        """Release connections. Idempotent."""


@runtime_checkable
class LoopStore(ObjectStore, Protocol):
    """An ObjectStore of which the two requests that every object takes can be awaited on an event loop as well.

    They are what the calls of the same name are, errors included. For one event loop alone.
    """

    def admits_on_loop(self, size_bytes: int) -> bool:
        """Whether a request of so many bytes would not hold the loop up now: nothing in it blocks, or takes long."""

    async def put_if_absent_on_loop(self, key: str, chunks: Sequence[bytes | memoryview]) -> None:
        """As `put_if_absent`."""

    async def get_range_on_loop(self, key: str, start: int, end: int) -> bytes:
        """As `get_range`."""
