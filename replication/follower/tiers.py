"""Knows the places that followers read from, and which of them have an object.

By an object's custom metadata, the storage manager says which places of combined segments have it, the nearest first;
unknown places are not read. Archive objects have a place of their own. Used from the event loop only.
"""

from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple, Protocol

import structlog

from plugin.errors import RemoteResourceNotFoundError, RemoteStorageError
from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
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
    """Reads ranges in one place that holds objects, and knows whether that place may be asked now.

    Combined segments are in one store, or in one bucket for each zone; archive objects are in another store. Each place
    may fail or be missing while the others work. So each has its own circuit breaker and threads. While a place is
    paused, links to its objects are refused at once, and a response with such a link comes inline as a whole; other
    responses are hydrated as usual. If the place holds combined segments, the leaders' agents that write there are
    told.
    """

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


class _KnownCopy(NamedTuple):
    place: str
    custom_metadata: bytes


class Tiers:
    """The readers of all places. A reader of combined segments is made when something in its place is first wanted."""

    def __init__(
        self,
        storage: RemoteWalStorageManager,
        archive: Callable[[Executor], TierReader],
        breaker: BreakerLimits,
        make_pool: Callable[[], Executor],
    ) -> None:
        """`archive` makes the archive's reader; each place has its own pool."""
        self._storage = storage
        self._breaker = breaker
        self._make_pool = make_pool
        self._segments: dict[str, TierReader] = {}
        self.archive = archive(make_pool())
        self.on_breaker_change: list[Callable[[bool], None]] = []
        """Called with True when a place of combined segments is paused, with False when it answers again."""

    def of(self, object_id: StoredObjectId, custom_metadata: bytes) -> list[tuple[TierReader, bytes]]:
        """Return the readers of the places that have the object, each with its custom metadata; empty if unknown."""
        if isinstance(object_id, ArchiveObjectId):
            return [(self.archive, custom_metadata)]
        return [(self._segment_tier(copy.place), copy.custom_metadata) for copy in self._copies(custom_metadata)]

    def is_given_up(self, custom_metadata: bytes | None) -> bool:
        """Whether combined segments with this custom metadata cannot be read now, so links to them are not wanted.

        None stands for a leader of which no segment was seen yet.
        """
        places = [copy.place for copy in self._copies(custom_metadata or b"")]
        if not places:
            return custom_metadata is not None
        return all(place in self._segments and self._segments[place].breaker.is_open for place in places)

    def rest(self, custom_metadata: bytes | None, now_s: float) -> bool:
        """Whether `is_given_up` holds and it is too early for another try."""
        places = [copy.place for copy in self._copies(custom_metadata or b"")]
        return self.is_given_up(custom_metadata) and not any(
            self._segments[place].breaker.is_due(now_s) for place in places
        )

    @property
    def given_up(self) -> list[str]:
        """Places of combined segments that failed repeatedly, and are left alone for a while."""
        return sorted(place for place, is_paused in self.paused.items() if is_paused)

    @property
    def paused(self) -> dict[str, bool]:
        """Each place of combined segments that was read from, and whether it is given up. Any thread may ask."""
        return {place: tier.breaker.is_open for place, tier in list(self._segments.items())}

    def close(self) -> None:
        """Abandon reads under way."""
        for tier in (self.archive, *self._segments.values()):
            tier.pool.shutdown(wait=False, cancel_futures=True)

    def _copies(self, custom_metadata: bytes) -> list[_KnownCopy]:
        return [
            _KnownCopy(copy.place, copy.custom_metadata)
            for copy in self._storage.copies_of(custom_metadata)
            if copy.place is not None and copy.is_sure
        ]

    def _segment_tier(self, place: str) -> TierReader:
        if place not in self._segments:
            fetch, changed = segment_fetch(self._storage), partial(self._changed, place)
            on_loop = segment_fetch_on_loop(self._storage)
            self._segments[place] = TierReader(fetch, self._breaker, changed, self._make_pool(), on_loop)
        return self._segments[place]

    def _changed(self, place: str, is_open: bool) -> None:
        log.warning("hydration_paused" if is_open else "hydration_resumed", bucket=place or None)
        for callback in list(self.on_breaker_change):
            callback(is_open)
