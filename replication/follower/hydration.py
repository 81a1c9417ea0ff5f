"""Fetches ranges of stored objects for the follower's side, each byte once, ahead of need where announced.

What is there, on its way, or waited for is in the `RangeCache`; how an object is read, and whether its store is asked
at all, is for its tier's reader to say (`replication.follower.tier_reader`). Memory is bounded: announcements beyond
half of the cache are let go, as they are only hints. A follower's Fetch that waits for a range waits here as in
KIP-405's purgatory, with the caller's deadline; the retries are the storage manager's.

Used from the event loop alone; reads run in the pool of `remote.wal.hydration.thread.pool.size` threads, or in one that
the caller names (`replication.follower.catch_up_reads`).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from plugin.archive_object_id import ArchiveObjectId, StoredObjectId
from plugin.errors import RemoteStorageError, defect_site, failure_label
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from replication.follower.range_cache import CachedRange, RangeCache, RangeWait
from replication.follower.tier_reader import ArchiveReads, TierReader, archive_reader
from replication.wire.circuit_breaker import BreakerLimits
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
        self._pool = pool(limits.threads, "hydration")
        self._max_in_flight_bytes = limits.cache_bytes // 2
        self.segments = TierReader(storage.fetch_log_segment, limits.breaker, self._segments_changed)
        self.archive = archive_reader(archive, limits.breaker, metrics)
        self._waiting: dict[RangeWait, asyncio.Future[memoryview]] = {}
        self.ranges = RangeCache(limits.cache_bytes)
        self.in_flight_bytes = 0
        """Of reads in the pool for what is new."""
        self.on_breaker_change: list[Callable[[bool], None]] = []
        """Called with True when the combined segments' store is given up for a while, with False when it answers."""

    def announce(self, object_id: StoredObjectId, ranges: tuple[tuple[int, int], ...]) -> None:
        """These ranges will be asked for soon. While storage fails, one of them is the probe."""
        for start, end in ranges:
            if not self.ranges.missing(object_id, start, end):
                continue
            if self.in_flight_bytes + end - start > self._max_in_flight_bytes:
                self._metrics.fault("announcement_over_budget")
                return
            if not self.may_read(object_id, self._clock()):
                return
            self._fetch(object_id, start, end)

    def may_read(self, object_id: StoredObjectId, now_s: float) -> bool:
        """Whether the object's store is to be asked now; while it fails, now and then, as a probe."""
        return self._tier_of(object_id).breaker.allows(now_s)

    async def fetch(self, object_id: StoredObjectId, start: int, end: int) -> memoryview:
        """The bytes [start, end) of an object. Raises HydrationError."""
        found = self.ranges.covering(object_id, start, end)
        if not found:
            if not self.may_read(object_id, self._clock()):
                raise HydrationError("breaker_open", "object storage failed repeatedly and is left alone for a while")
            found = [self._fetch(object_id, start, end)]
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

    def timed_out(self) -> None:
        """A caller gave up waiting: as good as a failure."""
        self.segments.failed(self._clock())

    def close(self) -> None:
        """Fetches under way are abandoned."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, object_id: StoredObjectId, start: int, end: int) -> CachedRange:
        wanted = self.ranges.reading(object_id, start, end)
        self.in_flight_bytes += end - start
        self.read(wanted, self._pool, self._not_in_flight)
        return wanted

    def _not_in_flight(self, size: int) -> None:
        self.in_flight_bytes -= size

    def read(self, wanted: CachedRange, pool: Executor, ended: Callable[[int], None]) -> None:
        """Read what is on record as being read; `ended` is told of its bytes."""
        tier = self._tier_of(wanted.object_id)
        reading = asyncio.get_running_loop().run_in_executor(
            pool, tier.read, wanted.object_id, wanted.start, wanted.end
        )
        reading.add_done_callback(partial(self._was_read, wanted, tier, self._clock(), ended))

    def _was_read(
        self,
        wanted: CachedRange,
        tier: TierReader[Any],
        started_s: float,
        ended: Callable[[int], None],
        reading: asyncio.Future[bytes],
    ) -> None:
        ended(wanted.end - wanted.start)
        if reading.cancelled():
            self.abandon(wanted)
        elif (error := reading.exception()) is not None:
            for future in self._futures(self.ranges.failed(wanted)):
                future.set_exception(error)
            self._metrics.fault(f"hydration_{failure_label(error)}")
            tier.failed(self._clock(), error)
        else:
            self._stage_times.observe("fetched", self._clock() - started_s)
            for wait in self.ranges.arrived(wanted, reading.result()):
                for future in self._futures([wait]):
                    future.set_result(wait.data())
            tier.answered()

    def abandon(self, wanted: CachedRange) -> None:
        """The range will not be read, as this agent ends: cancel who waits for it."""
        for future in self._futures(wanted.waiting):
            future.cancel()

    def _futures(self, waits: list[RangeWait]) -> list[asyncio.Future[memoryview]]:
        """Of those who have not given up, nor were told already."""
        found = (self._waiting.get(wait) for wait in waits)
        return [future for future in found if future is not None and not future.done()]

    def _tier_of(self, object_id: StoredObjectId) -> TierReader[Any]:
        return self.archive if isinstance(object_id, ArchiveObjectId) else self.segments

    def _segments_changed(self, is_open: bool) -> None:
        for callback in list(self.on_breaker_change):
            callback(is_open)
