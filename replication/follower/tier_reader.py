"""Reads ranges in one place that holds objects, and knows whether that place may be asked now.

Combined segments are in one store, or in one bucket for each zone; archive objects are in another store. Each place may
fail or be missing while the others work. So each has its own circuit breaker and threads. While a place is paused,
links to its objects are refused at once, and a response with such a link comes inline as a whole; other responses are
hydrated as usual. If the place holds combined segments, the leaders' agents that write there are told.
"""

from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Protocol

import structlog

from plugin.errors import RemoteResourceNotFoundError, RemoteStorageError
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from replication.follower.range_cache import CachedRange
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker
from replication.wire.metrics import ReplicationMetrics

log = structlog.get_logger(__name__)

Fetch = Callable[[CachedRange, bytes], bytes]
"""Reads a range, by the custom metadata of the copy to read."""


FetchOnLoop = Callable[[CachedRange, bytes, Executor], Awaitable[bytes] | None]
"""Like `Fetch`, on the event loop; returns None if the read must run on a thread."""


class ArchiveReads(Protocol):
    """The archive's store, see `plugin.archive_storage`."""

    def fetch(self, object_id: ArchiveObjectId, start_position: int, end_position: int) -> bytes: ...


class TierReader:
    """Reads in one place. Everything except `read` is for the event loop only."""

    def __init__(
        self,
        fetch: Fetch,
        limits: BreakerLimits,
        on_breaker_change: Callable[[bool], None],
        pool: Executor,
        fetch_on_loop: FetchOnLoop = lambda _wanted, _copy, _threads: None,
    ) -> None:
        """`on_breaker_change` is called with True when the place is paused, with False when it answers again."""
        self._fetch = fetch
        self._fetch_on_loop = fetch_on_loop
        self._on_breaker_change = on_breaker_change
        self.breaker = CircuitBreaker(limits)
        self.pool = pool
        """Threads for reads of new data."""

    def read(self, wanted: CachedRange, copy: bytes) -> bytes:
        """Read the range's bytes in this place, by the custom metadata `copy`. Runs on a thread.

        Raises RemoteStorageError, and anything that a defective backend raises.
        """
        return _checked(self._fetch(wanted, copy))

    def on_loop(self, wanted: CachedRange, copy: bytes) -> Coroutine[Any, Any, bytes] | None:
        """Return a read like `read` to be awaited; None if the place must be read on a thread."""
        fetched = self._fetch_on_loop(wanted, copy, self.pool)
        return _awaited(fetched) if fetched is not None else None

    def answered(self) -> None:
        """Record a successful read."""
        if self.breaker.succeeded():
            self._on_breaker_change(False)

    def failed(self, now_s: float, error: BaseException | None = None) -> None:
        """Record a read that failed or took too long. A missing object counts as an answer."""
        if isinstance(error, RemoteResourceNotFoundError):
            self.answered()
        elif self.breaker.failed(now_s):
            self._on_breaker_change(True)


def _checked(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise TypeError("a storage manager gives bytes")
    return data


async def _awaited(fetched: Awaitable[object]) -> bytes:
    return _checked(await fetched)


def segment_fetch(storage: RemoteWalStorageManager) -> Fetch:
    """Return the function that reads combined segments."""

    def fetch(wanted: CachedRange, copy: bytes) -> bytes:
        if isinstance(wanted.object_id, ArchiveObjectId):
            raise TypeError("an archive object is in the archive")
        return storage.fetch_log_segment(wanted.object_id, wanted.start, wanted.end, copy)

    return fetch


def segment_fetch_on_loop(storage: RemoteWalStorageManager) -> FetchOnLoop:
    """Return the function that reads combined segments on the event loop."""

    def fetch(wanted: CachedRange, copy: bytes, threads: Executor) -> Awaitable[bytes] | None:
        segments = storage.on_loop(wanted.end - wanted.start, copy)
        if segments is None or isinstance(wanted.object_id, ArchiveObjectId):
            return None
        return segments.fetch_log_segment(wanted.object_id, wanted.start, wanted.end, copy, threads)

    return fetch


def archive_fetch(archive: Callable[[], ArchiveReads | None]) -> Fetch:
    """Return the function that reads archive objects; `archive` returns their store once it is there."""

    def fetch(wanted: CachedRange, _copy: bytes) -> bytes:
        if not isinstance(wanted.object_id, ArchiveObjectId):
            raise TypeError("a combined segment is not in the archive")
        store = archive()
        if store is None:
            why = "this agent has no archive, or its store has not answered yet"
            raise RemoteStorageError("fetch", str(wanted.object_id), why, label="no_archive")
        return store.fetch(wanted.object_id, wanted.start, wanted.end)

    return fetch


def archive_told(metrics: ReplicationMetrics) -> Callable[[bool], None]:
    """Return a callback that counts and logs when archive reads pause or resume."""

    def changed(is_open: bool) -> None:
        event = "archive_reads_paused" if is_open else "archive_reads_resumed"
        metrics.fault(event)
        log.warning(event)

    return changed
