"""One place that followers read from: how a range is read there, and whether it is to be asked at all.

Combined segments are in one store, or in a bucket of each zone; archive objects are in another store. Each of these may
fail, or be missing here, while the others answer. So each has a circuit breaker and threads of its own: while it is
given up, links to what it has are refused at once, and a response that names one comes inline, whole; responses that
name other places alone are read as ever. Of a place of combined segments the leaders' agents are told that write there.
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
"""Of a range, and the custom metadata of the copy that is to be read."""


FetchOnLoop = Callable[[CachedRange, bytes, Executor], Awaitable[bytes] | None]
"""The same, on the event loop; None where it is to be done on a thread."""


class ArchiveReads(Protocol):
    """What is asked of the archive's store: see `plugin.archive_storage`."""

    def fetch(self, object_id: ArchiveObjectId, start_position: int, end_position: int) -> bytes: ...


class TierReader:
    """Reads of one place. All but `read` is for the event loop alone."""

    def __init__(
        self,
        fetch: Fetch,
        limits: BreakerLimits,
        on_breaker_change: Callable[[bool], None],
        pool: Executor,
        fetch_on_loop: FetchOnLoop = lambda _wanted, _copy, _threads: None,
    ) -> None:
        """`on_breaker_change` is told True when the place is given up for a while, False when it answers again."""
        self._fetch = fetch
        self._fetch_on_loop = fetch_on_loop
        self._on_breaker_change = on_breaker_change
        self.breaker = CircuitBreaker(limits)
        self.pool = pool
        """For reads of what is new."""

    def read(self, wanted: CachedRange, copy: bytes) -> bytes:
        """The range's bytes in this place, by the custom metadata `copy`. On a thread.

        Raises RemoteStorageError, and whatever a backend's defect may be.
        """
        return _checked(self._fetch(wanted, copy))

    def on_loop(self, wanted: CachedRange, copy: bytes) -> Coroutine[Any, Any, bytes] | None:
        """As `read`, to be awaited; None where the place is to be read on a thread."""
        fetched = self._fetch_on_loop(wanted, copy, self.pool)
        return _awaited(fetched) if fetched is not None else None

    def answered(self) -> None:
        """A read succeeded."""
        if self.breaker.succeeded():
            self._on_breaker_change(False)

    def failed(self, now_s: float, error: BaseException | None = None) -> None:
        """A read failed, or took too long. That an object is gone is an answer as any."""
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
    """Of combined segments."""

    def fetch(wanted: CachedRange, copy: bytes) -> bytes:
        if isinstance(wanted.object_id, ArchiveObjectId):
            raise TypeError("an archive object is in the archive")
        return storage.fetch_log_segment(wanted.object_id, wanted.start, wanted.end, copy)

    return fetch


def segment_fetch_on_loop(storage: RemoteWalStorageManager) -> FetchOnLoop:
    """Of combined segments."""

    def fetch(wanted: CachedRange, copy: bytes, threads: Executor) -> Awaitable[bytes] | None:
        segments = storage.on_loop(wanted.end - wanted.start, copy)
        if segments is None or isinstance(wanted.object_id, ArchiveObjectId):
            return None
        return segments.fetch_log_segment(wanted.object_id, wanted.start, wanted.end, copy, threads)

    return fetch


def archive_fetch(archive: Callable[[], ArchiveReads | None]) -> Fetch:
    """Of archive objects, whose store `archive` gives as soon as it is there."""

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
    """Counts and tells that the archive is given up, or answers again."""

    def changed(is_open: bool) -> None:
        event = "archive_reads_paused" if is_open else "archive_reads_resumed"
        metrics.fault(event)
        log.warning(event)

    return changed
