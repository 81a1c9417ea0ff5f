"""Fetches ranges of stored objects for the follower's side, each byte once, ahead of need where announced.

What is there, on its way, or waited for is in the `RangeCache`; how an object is read, and whether the place where it
is may be asked at all, is for that place's reader to say (`replication.follower.tiers`). What is in a place that is not
known is not read. Of several that hold the object, the nearest is read that is not given up, and the next one when that
fails.

Memory is bounded: announcements beyond half of the cache are let go, as they are only hints. A follower's Fetch that
waits for a range waits here as in KIP-405's purgatory, with the caller's deadline; the retries are the storage
manager's.

Used from the event loop alone; reads run in `remote.wal.hydration.thread.pool.size` threads for each place, or in a
pool that the caller names (`replication.follower.catch_up_reads`).
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

from plugin.errors import RemoteStorageError, UnknownBucketError, defect_site, failure_label
from plugin.format.archive_object_id import StoredObjectId
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from replication.follower.range_cache import CachedRange, RangeCache, RangeWait
from replication.follower.tier_reader import ArchiveReads, TierReader, archive_fetch, archive_told
from replication.follower.tiers import Tiers
from replication.wire.circuit_breaker import BreakerLimits
from replication.wire.link import SegmentLink
from replication.wire.metrics import ReplicationMetrics
from rlm.write_path.machine import thread_pool
from rlm.write_path.metrics import StageTimes


class HydrationError(Exception):
    """The bytes could not be had from object storage in time. `reason` labels the counter."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class HydrationLimits:
    """Threads, and the bytes that are cached or under way."""

    threads: int
    cache_bytes: int
    breaker: BreakerLimits = field(default_factory=BreakerLimits)


class HydrationCache:
    """Ranges of combined segments and archive objects that were read last, and reads of what is missing."""

    def __init__(
        self,
        storage: RemoteWalStorageManager,
        limits: HydrationLimits,
        stage_times: StageTimes,
        metrics: ReplicationMetrics,
        clock: Callable[[], float],
        archive: Callable[[], ArchiveReads | None] = lambda: None,
        pool: Callable[[int, str], Executor] = thread_pool,
    ) -> None:
        """`archive` gives the archive's store, as soon as it is there; `pool` makes so many threads of that name."""
        self._stage_times = stage_times
        self._metrics = metrics
        self._clock = clock
        self._max_in_flight_bytes = limits.cache_bytes // 2
        archive_reader = partial(TierReader, archive_fetch(archive), limits.breaker, archive_told(metrics))
        self.tiers = Tiers(storage, archive_reader, limits.breaker, partial(pool, limits.threads, "hydration"))
        self._waiting: dict[RangeWait, asyncio.Future[memoryview]] = {}
        self.ranges = RangeCache(limits.cache_bytes)
        self._is_closed = False
        self.in_flight_bytes = 0
        """Of reads in the pool for what is new."""

    def announce(
        self, object_id: StoredObjectId, ranges: tuple[tuple[int, int], ...], custom_metadata: bytes = b""
    ) -> None:
        """These ranges will be asked for soon. While storage fails, one of them is the probe."""
        for start, end in ranges:
            if not self.ranges.missing(object_id, start, end):
                continue
            if self.in_flight_bytes + end - start > self._max_in_flight_bytes:
                self._metrics.fault("announcement_over_budget")
                return
            try:
                self._fetch(object_id, start, end, custom_metadata)
            except HydrationError:
                return

    def planned(self, object_id: StoredObjectId, start: int, end: int, custom_metadata: bytes) -> CachedRange:
        """A range to be read, by `read`. Raises HydrationError where it is not: its place is not known, or given up.

        A place that is given up is asked now and then.
        """
        tiers = self.tiers.of(object_id, custom_metadata)
        for tier, copy in tiers:
            if tier.breaker.allows(self._clock()):
                return self.ranges.reading(object_id, start, end, custom_metadata, copy)
        if tiers:
            raise HydrationError("breaker_open", "the place where the object is failed repeatedly")
        raise HydrationError(UnknownBucketError.label, "the place where the object is is not known here")

    async def fetch(self, object_id: StoredObjectId, start: int, end: int, custom_metadata: bytes = b"") -> memoryview:
        """The bytes [start, end) of an object. Raises HydrationError."""
        found = self.ranges.covering(object_id, start, end)
        if not found:
            found = [self._fetch(object_id, start, end, custom_metadata)]
        wait = RangeWait(start, end, found)
        if wait.is_over:
            return wait.data()
        self._waiting[wait] = asyncio.get_running_loop().create_future()
        try:
            return await self._waiting[wait]
        except Exception as error:  # a backend's defect, too, must not hold up replication
            told = str(error) if isinstance(error, RemoteStorageError) else defect_site(error)
            raise HydrationError(failure_label(error), told) from error
        finally:
            del self._waiting[wait]

    def discard(self, object_id: StoredObjectId) -> None:
        """Forget an object whose bytes proved wrong, so that the next fetch reads it anew."""
        self.ranges.discard(object_id)

    def not_there(self, links: Iterable[SegmentLink]) -> list[tuple[StoredObjectId, bytes]]:
        """Whose bytes were not read yet, and the copies that they are being read from."""
        return [
            (link.object_id, one.copy)
            for link in links
            for one in self.ranges.covering(link.object_id, link.start_position, link.end_position)
            if one.data is None
        ]

    def timed_out(self, waited_for: Iterable[tuple[StoredObjectId, bytes]]) -> None:
        """A caller gave up waiting for objects with such custom metadata: as good as a failure of their places."""
        tiers = {id(tier): tier for one in waited_for for tier, _ in self.tiers.of(*one)[:1]}
        for tier in tiers.values():
            tier.failed(self._clock())

    def close(self) -> None:
        """Fetches under way are abandoned."""
        self._is_closed = True
        self.tiers.close()

    def _fetch(self, object_id: StoredObjectId, start: int, end: int, custom_metadata: bytes) -> CachedRange:
        wanted = self.planned(object_id, start, end, custom_metadata)
        self.in_flight_bytes += end - start
        self.read(wanted, None, self._not_in_flight)
        return wanted

    def _not_in_flight(self, size: int) -> None:
        self.in_flight_bytes -= size

    def read(self, wanted: CachedRange, pool: Executor | None, ended: Callable[[int], None]) -> None:
        """Read what was `planned`; `ended` is told of its bytes.

        `pool` is None for the place's own.
        """
        [(tier, copy)] = self.tiers.of(wanted.object_id, wanted.copy)
        reading = asyncio.get_running_loop().run_in_executor(pool or tier.pool, tier.read, wanted, copy)
        reading.add_done_callback(partial(self._was_read, wanted, tier, self._clock(), pool, ended))

    def _was_read(
        self,
        wanted: CachedRange,
        tier: TierReader,
        started_s: float,
        pool: Executor | None,
        ended: Callable[[int], None],
        reading: asyncio.Future[bytes],
    ) -> None:
        error = None if reading.cancelled() else reading.exception()
        if error is not None:
            self._metrics.fault(f"hydration_{failure_label(error)}")
            tier.failed(self._clock(), error)
            if self._goes_on(wanted):
                self.read(wanted, pool, ended)
                return
        ended(wanted.end - wanted.start)
        if reading.cancelled():
            self.abandon(wanted)
        elif error is not None:
            for future in self._futures(self.ranges.failed(wanted)):
                future.set_exception(error)
        else:
            self._stage_times.observe("fetched", self._clock() - started_s, (wanted.object_id,))
            for wait in self.ranges.arrived(wanted, reading.result()):
                for future in self._futures([wait]):
                    future.set_result(wait.data())
            tier.answered()

    def _goes_on(self, wanted: CachedRange) -> bool:
        """Whether there is another copy to be read, behind the one that failed."""
        tiers = self.tiers.of(wanted.object_id, wanted.custom_metadata)
        behind = [copy for _, copy in tiers].index(wanted.copy) + 1
        for tier, copy in tiers[behind:]:
            if not self._is_closed and tier.breaker.allows(self._clock()):
                self._metrics.fault("hydration_next_copy")
                wanted.copy = copy
                return True
        return False

    def abandon(self, wanted: CachedRange) -> None:
        """The range will not be read, as this agent ends: cancel who waits for it."""
        for future in self._futures(wanted.waiting):
            future.cancel()

    def _futures(self, waits: list[RangeWait]) -> list[asyncio.Future[memoryview]]:
        """Of those who have not given up, nor were told already."""
        found = (self._waiting.get(wait) for wait in waits)
        return [future for future in found if future is not None and not future.done()]
