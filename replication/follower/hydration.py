"""Fetches ranges of stored objects for the follower's side, each byte once, ahead of need where announced.

A range that is cached, or on its way, is not fetched again (single flight). Memory is bounded: what is cached and what
is under way share one budget; announcements beyond it are let go, as they are only hints. A follower's Fetch that waits
for a range waits here as in KIP-405's purgatory, with the caller's deadline; the retries are the storage manager's.

What is evicted, too, is ranges, first those of the object that was read from the store the longest ago: a range that is
found in the cache makes its object no younger, as the one broker that all is read for seldom asks twice. An archive
object is as large as many combined segments, and one follower reads it from end to end. A caller's range may be spread
over several that were read, as links end where responses do, and reads where the leader's agent found the end of a run.

Archive objects are in a store of their own, which may fail, or be missing here, while the other answers. So it has a
circuit breaker of its own: while it is open, links to archive objects are refused at once, and a response that names
one comes inline, whole; responses that name combined segments alone are read as ever. The leaders' agents are not told
of it, as they are of the other one.

Used from the event loop alone; the storage manager's calls run in the pool of
`remote.wal.hydration.thread.pool.size` threads.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from plugin.archive_object_id import ArchiveObjectId, StoredObjectId
from plugin.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    defect_site,
    failure_label,
)
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker
from replication.wire.metrics import ReplicationMetrics
from rlm.write_path.metrics import StageTimes

log = structlog.get_logger(__name__)


class ArchiveReads(Protocol):
    """What is asked of the archive's store: see `plugin.archive_storage`."""

    def fetch(self, object_id: ArchiveObjectId, start_position: int, end_position: int) -> bytes: ...


def no_archive() -> ArchiveReads | None:
    """This agent has no archive."""
    return None


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


@dataclass(slots=True)
class HydrationRange:
    """Bytes [start, end) of an object, which are there or will be."""

    start: int
    end: int
    data: asyncio.Future[bytes]

    @property
    def is_read(self) -> bool:
        """Whether the bytes are there."""
        return self.data.done() and not self.data.cancelled() and self.data.exception() is None


@dataclass(slots=True)
class _CachedObject:
    ranges: list[HydrationRange] = field(default_factory=list)
    size_bytes: int = 0


class HydrationCache:
    """Ranges of combined segments and archive objects that were read last."""

    def __init__(
        self,
        storage: RemoteWalStorageManager,
        limits: HydrationLimits,
        stage_times: StageTimes,
        metrics: ReplicationMetrics,
        clock: Callable[[], float] = time.monotonic,
        archive: Callable[[], ArchiveReads | None] = no_archive,
    ) -> None:
        """`archive` gives the archive's store, as soon as it is there."""
        self._storage = storage
        self._archive = archive
        self._limits = limits
        self._stage_times = stage_times
        self._metrics = metrics
        self._clock = clock
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="hydration")
        self._objects: OrderedDict[StoredObjectId, _CachedObject] = OrderedDict()
        self._size_bytes = 0
        self._in_flight_bytes = 0
        self.breaker = CircuitBreaker(limits.breaker)
        self.archive_breaker = CircuitBreaker(limits.breaker)
        self.on_breaker_change: list[Callable[[bool], None]] = []
        """Called with True when the combined segments' store is given up for a while, with False when it answers."""

    def announce(self, object_id: StoredObjectId, ranges: tuple[tuple[int, int], ...]) -> None:
        """These ranges will be asked for soon. While storage fails, one of them is the probe."""
        for start, end in ranges:
            if self.covers(object_id, start, end):
                continue
            if self._in_flight_bytes + end - start > self._limits.cache_bytes // 2:
                self._metrics.fault("announcement_over_budget")
                return
            if not self.may_read(object_id, self._clock()):
                return
            self._fetch(object_id, start, end)

    def may_read(self, object_id: StoredObjectId, now_s: float) -> bool:
        """Whether the object's store is to be asked now; while it fails, now and then, as a probe."""
        return self._breaker_of(object_id).allows(now_s)

    def covers(self, object_id: StoredObjectId, start: int, end: int) -> bool:
        """Whether the bytes are cached, on their way, or reserved."""
        return not self.missing(object_id, start, end)

    def missing(self, object_id: StoredObjectId, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are neither cached nor on their way nor reserved, in order."""
        cached = self._objects.get(object_id)
        parts: list[tuple[int, int]] = []
        for known in sorted(cached.ranges if cached else (), key=lambda known: known.start):
            if known.start >= end:
                break
            if known.start > start:
                parts.append((start, known.start))
            start = max(start, known.end)
        return [*parts, (start, end)] if start < end else parts

    async def fetch(self, object_id: StoredObjectId, start: int, end: int) -> memoryview:
        """The bytes [start, end) of an object. Raises HydrationError."""
        found = self._covering(object_id, start, end)
        if not found:
            if not self.may_read(object_id, self._clock()):
                raise HydrationError("breaker_open", "object storage failed repeatedly and is left alone for a while")
            found = [self._fetch(object_id, start, end)]
        parts = []
        for cached in found:
            try:
                data = await asyncio.shield(cached.data)
            except Exception as error:  # a backend's defect, too, must not hold up replication
                told = str(error) if isinstance(error, RemoteStorageError) else defect_site(error)
                raise HydrationError(failure_label(error), told) from error
            parts.append(memoryview(data)[max(start - cached.start, 0) : end - cached.start])
            start = cached.end
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def discard(self, object_id: StoredObjectId) -> None:
        """Forget an object whose bytes proved wrong, so that the next fetch reads it anew."""
        cached = self._objects.pop(object_id, None)
        if cached is not None:
            self._size_bytes -= cached.size_bytes

    def timed_out(self) -> None:
        """A caller gave up waiting: as good as a failure."""
        if self.breaker.failed(self._clock()):
            self._tell(self.breaker, is_open=True)

    def close(self) -> None:
        """Fetches under way are abandoned."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _covering(self, object_id: StoredObjectId, start: int, end: int) -> list[HydrationRange]:
        """The fewest ranges that hold these bytes between them, in order; none when some of the bytes are missing."""
        cached = self._objects.get(object_id)
        if cached is None:
            return []
        found: list[HydrationRange] = []
        while start < end:
            here = (candidate for candidate in cached.ranges if candidate.start <= start < candidate.end)
            furthest = max(here, key=lambda candidate: min(candidate.end, end), default=None)
            if furthest is None:
                return []
            found.append(furthest)
            start = furthest.end
        return found

    def _fetch(self, object_id: StoredObjectId, start: int, end: int) -> HydrationRange:
        wanted = self.reserve(object_id, start, end)
        self._in_flight_bytes += end - start
        self.begin(object_id, wanted, self._pool, end - start)
        return wanted

    # For reads at a time and in threads of the caller's choice: see `replication.follower.catch_up_reads`.

    def reserve(self, object_id: StoredObjectId, start: int, end: int) -> HydrationRange:
        """From now on the range is waited for, not read again. `begin` must follow."""
        wanted = HydrationRange(start, end, asyncio.get_running_loop().create_future())
        self._objects.setdefault(object_id, _CachedObject()).ranges.append(wanted)
        return wanted

    def begin(
        self, object_id: StoredObjectId, wanted: HydrationRange, pool: ThreadPoolExecutor, counted_bytes: int = 0
    ) -> None:
        """Read what was reserved. `counted_bytes` is what it takes of the budget for announced ranges."""
        loop = asyncio.get_running_loop()
        fetch = loop.run_in_executor(pool, self._read, object_id, wanted.start, wanted.end)
        started_s = self._clock()

        def done(future: asyncio.Future[bytes]) -> None:
            self._in_flight_bytes -= counted_bytes
            if future.cancelled():
                wanted.data.cancel()
            elif (error := future.exception()) is not None:
                self._failed(object_id, wanted, error)
            else:
                self._stage_times.observe("fetched", self._clock() - started_s)
                self._succeeded(object_id, wanted, future.result())

        fetch.add_done_callback(done)

    def _succeeded(self, object_id: StoredObjectId, wanted: HydrationRange, data: bytes) -> None:
        wanted.data.set_result(data)
        cached = self._objects.get(object_id)
        if cached is not None and wanted in cached.ranges:
            cached.size_bytes += len(data)
            self._size_bytes += len(data)
            self._objects.move_to_end(object_id)
            self._evict(wanted)
        self._answered(object_id)

    def _read(self, object_id: StoredObjectId, start: int, end: int) -> bytes:
        """On a thread."""
        data = self._read_from(object_id, start, end)
        if not isinstance(data, bytes):
            raise TypeError("a storage manager gives bytes")
        return data

    def _read_from(self, object_id: StoredObjectId, start: int, end: int) -> bytes:
        if not isinstance(object_id, ArchiveObjectId):
            return self._storage.fetch_log_segment(object_id, start, end)
        archive = self._archive()
        if archive is None:
            why = "this agent has no archive, or its store has not answered yet"
            raise RemoteStorageError("fetch", str(object_id), why, label="no_archive")
        return archive.fetch(object_id, start, end)

    def _breaker_of(self, object_id: StoredObjectId) -> CircuitBreaker:
        return self.archive_breaker if isinstance(object_id, ArchiveObjectId) else self.breaker

    def _answered(self, object_id: StoredObjectId) -> None:
        breaker = self._breaker_of(object_id)
        if breaker.succeeded():
            self._tell(breaker, is_open=False)

    def _failed(self, object_id: StoredObjectId, wanted: HydrationRange, error: BaseException) -> None:
        cached = self._objects.get(object_id)
        if cached is not None and wanted in cached.ranges:
            cached.ranges.remove(wanted)
            if not cached.ranges:
                del self._objects[object_id]
        if not wanted.data.done():
            wanted.data.set_exception(error)
            wanted.data.exception()  # an announced range may have nobody who waits for it
        self._metrics.fault(f"hydration_{failure_label(error)}")
        if isinstance(error, RemoteResourceNotFoundError):
            self._answered(object_id)
            return
        breaker = self._breaker_of(object_id)
        if breaker.failed(self._clock()):
            self._tell(breaker, is_open=True)

    def _tell(self, breaker: CircuitBreaker, is_open: bool) -> None:
        if breaker is self.archive_breaker:
            event = "archive_reads_paused" if is_open else "archive_reads_resumed"
            self._metrics.fault(event)
            log.warning(event)
            return
        for callback in list(self.on_breaker_change):
            callback(is_open)

    def _evict(self, newest: HydrationRange) -> None:
        """Forget what was read from the store longest ago, until the rest fits; `newest` stays: it is about to be asked
        for.
        """
        emptied = []
        for object_id, cached in self._objects.items():
            if self._size_bytes <= self._limits.cache_bytes:
                break
            for oldest in [each for each in cached.ranges if each.is_read and each is not newest]:
                if self._size_bytes <= self._limits.cache_bytes:
                    break
                cached.ranges.remove(oldest)
                size = len(oldest.data.result())
                cached.size_bytes -= size
                self._size_bytes -= size
            if not cached.ranges:
                emptied.append(object_id)
        for object_id in emptied:
            del self._objects[object_id]
