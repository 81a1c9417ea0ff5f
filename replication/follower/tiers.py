"""Knows the places that followers read from, and which of them have an object.

By an object's custom metadata, the storage manager says which places of combined segments have it, the nearest first;
unknown places are not read. Archive objects have a place of their own. Used from the event loop only.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

import structlog

from plugin.format.archive_object_id import ArchiveObjectId, StoredObjectId
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from replication.follower.tier_reader import TierReader, segment_fetch, segment_fetch_on_loop
from replication.wire.circuit_breaker import BreakerLimits

log = structlog.get_logger(__name__)


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
