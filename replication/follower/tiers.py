"""Knows the places that followers read from, and which of them have an object.

By an object's custom metadata, the storage manager says which places of combined segments have it, the nearest first;
unknown places are not read. Archive objects have a place of their own. Used from the event loop only.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import structlog

from plugin.errors import RemoteResourceNotFoundError, RemoteStorageError
from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from replication.follower.range_cache import CachedRange
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker
from replication.wire.metrics import ReplicationMetrics

log = structlog.get_logger(__name__)


class ArchiveReads(Protocol):
    """The subset of the archive's store (`plugin.archive_storage`) that followers read with."""

    async def fetch(self, object_id: ArchiveObjectId, start_position: int, end_position: int) -> bytes: ...


class TierReader:
    """Reads ranges in one place that holds objects, and knows whether that place may be asked now.

    Combined segments are in one store, or in one bucket for each zone; archive objects are in another store. Each place
    may fail or be missing while the others work. So each has its own circuit breaker. While that is open, links to the
    place's objects are refused at once, and a response with such a link comes inline as a whole; other responses are
    hydrated as usual. If the place holds combined segments, the agents that write there learn of it.
    """

    def __init__(
        self,
        read: Callable[[CachedRange], Awaitable[object]],
        limits: BreakerLimits,
        on_breaker_change: Callable[[bool], None],
    ) -> None:
        """`on_breaker_change` is called with True when the circuit breaker opens, with False when it closes."""
        self._read = read
        self._on_breaker_change = on_breaker_change
        self.breaker = CircuitBreaker(limits)

    async def read(self, wanted: CachedRange) -> bytes:
        """Read the range's bytes from this place.

        Raises RemoteStorageError, and anything that a defective backend raises.
        """
        data = await self._read(wanted)
        if not isinstance(data, bytes):
            raise TypeError("a storage manager gives bytes")
        return data

    def answered(self) -> None:
        """Record a successful read."""
        if self.breaker.succeeded():
            self._on_breaker_change(False)

    def failed(self, now_s: float, error: BaseException | None = None) -> None:
        """Record a read that failed or timed out. A missing object counts as success: the place responded."""
        if isinstance(error, RemoteResourceNotFoundError):
            self.answered()
        elif self.breaker.failed(now_s):
            self._on_breaker_change(True)


class Tiers:
    """The readers of all places. A reader is made when an object in its place is first needed."""

    def __init__(
        self,
        storage: RemoteWalStorageManager,
        archive: Callable[[], ArchiveReads | None],
        breaker: BreakerLimits,
        metrics: ReplicationMetrics,
    ) -> None:
        """`archive` returns the archive's store, None until it is loaded."""
        self._storage = storage
        self._archive = archive
        self._breaker = breaker
        self._metrics = metrics
        self._segments: dict[str, TierReader] = {}
        self.archive = TierReader(self._read_archive, breaker, self._archive_changed)
        self.on_breaker_change: list[Callable[[bool], None]] = []
        """Called with True when a place of combined segments is paused, with False when it answers again."""

    def of(self, object_id: StoredObjectId, custom_metadata: bytes) -> TierReader | None:
        """Return the reader of the place (store or bucket) that has the object; None if the place is unknown."""
        if isinstance(object_id, ArchiveObjectId):
            return self.archive
        place = self._storage.place_of(custom_metadata)
        return self._segment_tier(place) if place is not None else None

    def is_given_up(self, custom_metadata: bytes | None) -> bool:
        """Whether the place of combined segments with this custom metadata keeps failing, so links to it are not
        wanted.

        `custom_metadata` is None for a leader of which no segment was seen yet.
        """
        place = self._storage.place_of(custom_metadata or b"")
        if place is None:
            return custom_metadata is not None
        return place in self._segments and self._segments[place].breaker.is_open

    def is_resting(self, custom_metadata: bytes | None, now_s: float) -> bool:
        """Whether `is_given_up` holds and it is too early for another try."""
        if not self.is_given_up(custom_metadata):
            return False
        place = self._storage.place_of(custom_metadata or b"")
        return place is None or not self._segments[place].breaker.is_due(now_s)

    @property
    def given_up(self) -> list[str]:
        """The places of combined segments that keep failing, and are read only to probe them."""
        return sorted(place for place, is_paused in self.paused.items() if is_paused)

    @property
    def paused(self) -> dict[str, bool]:
        """Each place of combined segments that was read from, and whether it keeps failing. Any thread may ask."""
        return {place: tier.breaker.is_open for place, tier in list(self._segments.items())}

    def _segment_tier(self, place: str) -> TierReader:
        if place not in self._segments:
            changed = partial(self._changed, place)
            self._segments[place] = TierReader(self._read_segment, self._breaker, changed)
        return self._segments[place]

    def _changed(self, place: str, is_open: bool) -> None:
        log.warning("hydration_paused" if is_open else "hydration_resumed", bucket=place or None)
        for callback in list(self.on_breaker_change):
            callback(is_open)

    async def _read_segment(self, wanted: CachedRange) -> object:
        if isinstance(wanted.object_id, ArchiveObjectId):
            raise TypeError("an archive object is in the archive")
        return await self._storage.fetch_log_segment(wanted.object_id, wanted.start, wanted.end, wanted.custom_metadata)

    async def _read_archive(self, wanted: CachedRange) -> object:
        if not isinstance(wanted.object_id, ArchiveObjectId):
            raise TypeError("a combined segment is not in the archive")
        store = self._archive()
        if store is None:
            why = "this agent has no archive, or its store has not answered yet"
            raise RemoteStorageError("fetch", str(wanted.object_id), why, label="no_archive")
        return await store.fetch(wanted.object_id, wanted.start, wanted.end)

    def _archive_changed(self, is_open: bool) -> None:
        event = "archive_reads_paused" if is_open else "archive_reads_resumed"
        self._metrics.fault(event)
        log.warning(event)
