"""Reads ranges of stored objects for the follower's side: each byte once, and ahead of need if announced.

The `RangeCache` has what is read, being read, or waited for. Each place of objects has a reader that knows how an
object is read there and whether that place may be asked now (`replication.follower.tiers`). Objects in an unknown place
are not read. If several places hold the object, the nearest working one is read, and the next one after a failure. A
range announced with a `ZoneReading` is requested from the neighbour that reads it for the zone, and from the store if
that neighbour does not give it (`replication.follower.neighbours`). A neighbour never gets a range that comes from
another neighbour, so no two wait for each other.

Memory is bounded: announcements beyond half of the cache are dropped, because they are only hints. A follower's Fetch
that waits for a range waits here with the caller's deadline, as in KIP-405's purgatory. The storage manager does the
retries.

Used from the event loop only.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, Protocol

from plugin.errors import RemoteStorageError, UnknownBucketError, defect_site, failure_label
from plugin.format.archive_object_id import StoredObjectId
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from replication.follower.range_cache import CachedRange, RangeCache, RangeWait
from replication.follower.tiers import ArchiveReads, TierReader, Tiers
from replication.wire.circuit_breaker import BreakerLimits
from replication.wire.link import SegmentLink
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_protocol import ZoneReading
from rlm.write_path.metrics import StageTimes

_NO_TURNS: Final = nullcontext()


class HydrationError(Exception):
    """The bytes could not be read from object storage in time. `reason` labels the counter."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


class ZoneReaders(Protocol):
    """The agents of the own zone that read objects for each other: `replication.follower.neighbours.Neighbours`."""

    @property
    def own_id(self) -> int: ...

    def reader(self, zone: ZoneReading) -> int | None: ...

    async def ask(self, neighbour: int, wanted: CachedRange, read: tuple[int, int]) -> bytes | None: ...

    def record_wrong_bytes(self, neighbour: int) -> None: ...


class HydrationCache:
    """Recently read ranges of combined segments and archive objects, and reads of missing ones."""

    def __init__(
        self,
        storage: RemoteWalStorageManager,
        cache_bytes: int,
        stage_times: StageTimes,
        metrics: ReplicationMetrics,
        clock: Callable[[], float],
        archive: Callable[[], ArchiveReads | None] = lambda: None,
        breaker: BreakerLimits | None = None,
        neighbours: ZoneReaders | None = None,
    ) -> None:
        """`cache_bytes` bounds what is cached or being read. `archive` returns the archive's store, None until it is
        loaded.

        Without `neighbours`, every range is read from the store.
        """
        self._neighbours = neighbours
        self._stage_times = stage_times
        self._metrics = metrics
        self._clock = clock
        self._max_in_flight_bytes = cache_bytes // 2
        self.tiers = Tiers(storage, archive, breaker or BreakerLimits(), metrics)
        self._waiting: dict[RangeWait, asyncio.Future[memoryview]] = {}
        self.ranges = RangeCache(cache_bytes)
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that all of this runs on, once known."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.in_flight_bytes = 0
        """Bytes of new data that are read, or requested from neighbours."""

    def announce(
        self,
        object_id: StoredObjectId,
        ranges: tuple[tuple[int, int], ...],
        custom_metadata: bytes = b"",
        zone: ZoneReading | None = None,
    ) -> None:
        """Read ranges that will be requested soon. While the storage fails, one of them is the probe.

        With `zone`, its reader reads what the whole zone wants, and the others ask that reader.
        """
        reader = self._neighbours.reader(zone) if zone is not None and self._neighbours is not None else None
        if zone is not None and self._neighbours is not None and reader == self._neighbours.own_id:
            ranges, reader = zone.ranges, None
        for start, end in ranges:
            if not self.ranges.find_missing(object_id, start, end):
                continue
            if not self._has_room(end - start):
                self._metrics.fault("announcement_over_budget")
                return
            try:
                if zone is None or reader is None:
                    self._fetch(object_id, start, end, custom_metadata)
                else:
                    self._ask(reader, zone, self.planned(object_id, start, end, custom_metadata))
            except HydrationError:
                return

    def _has_room(self, size: int) -> bool:
        return self.in_flight_bytes + size <= self._max_in_flight_bytes

    def planned(self, object_id: StoredObjectId, start: int, end: int, custom_metadata: bytes) -> CachedRange:
        """Plan a range for `read`. Raises HydrationError if the place that has the object is unknown or failing.

        A place that keeps failing is probed from time to time.
        """
        tier = self.tiers.of(object_id, custom_metadata)
        if tier is None:
            raise HydrationError(UnknownBucketError.label, "the place where the object is is not known here")
        if not tier.breaker.allows(self._clock()):
            raise HydrationError("breaker_open", "the place where the object is failed repeatedly")
        return self.ranges.reading(object_id, start, end, custom_metadata)

    async def fetch(self, object_id: StoredObjectId, start: int, end: int, custom_metadata: bytes = b"") -> memoryview:
        """Return the bytes [start, end) of an object. Raises HydrationError."""
        found = self.ranges.covering(object_id, start, end)
        if not found:
            found = [self._fetch(object_id, start, end, custom_metadata)]
        wait = RangeWait(start, end, found)
        if wait.is_over:
            return wait.data()
        loop = self._loop = self._loop or asyncio.get_running_loop()
        waiting: asyncio.Future[memoryview] = loop.create_future()
        self._waiting[wait] = waiting
        try:
            return await waiting
        except Exception as error:  # a backend's defect must not stop replication either
            told = str(error) if isinstance(error, RemoteStorageError) else defect_site(error)
            raise HydrationError(failure_label(error), told) from error
        finally:
            del self._waiting[wait]

    async def fetch_for_neighbour(
        self, object_id: StoredObjectId, start: int, end: int, read: tuple[int, int], custom_metadata: bytes
    ) -> memoryview:
        """Return the bytes [start, end) of an object for a neighbour.

        If they are not cached, the range `read`, which includes them, is read. Raises HydrationError.
        """
        found = self.ranges.covering(object_id, start, end)
        if any(one.data is None and one.neighbour is not None for one in found):
            raise HydrationError("asked_elsewhere", "another neighbour was asked for it")
        if not found:
            if not self._has_room(read[1] - read[0]):
                raise HydrationError("over_budget", "as much as may be is being read")
            self._fetch(object_id, *read, custom_metadata)
        return await self.fetch(object_id, start, end, custom_metadata)

    def discard_wrong(self, link: SegmentLink) -> None:
        """Forget an object after a link with wrong bytes, so that the next fetch reads it from the store."""
        for one in self.ranges.covering(link.object_id, link.start_position, link.end_position):
            if one.neighbour is not None and self._neighbours is not None:
                self._neighbours.record_wrong_bytes(one.neighbour)
        self.ranges.discard(link.object_id)

    def not_there(self, links: Iterable[SegmentLink]) -> list[tuple[StoredObjectId, bytes]]:
        """Return the linked objects of which no byte has arrived from the store, with their custom metadata."""
        return [
            (link.object_id, one.custom_metadata)
            for link in links
            for one in self.ranges.covering(link.object_id, link.start_position, link.end_position)
            if one.data is None and one.neighbour is None
        ]

    def timed_out(self, waited_for: Iterable[tuple[StoredObjectId, bytes]]) -> None:
        """Count a caller's timeout as a failure of the places whose objects it waited for."""
        for tier in {self.tiers.of(*one) for one in waited_for}:
            if tier is not None:
                tier.failed(self._clock())

    def close(self) -> None:
        """Abandon fetches under way."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    def _fetch(self, object_id: StoredObjectId, start: int, end: int, custom_metadata: bytes) -> CachedRange:
        wanted = self.planned(object_id, start, end, custom_metadata)
        self.in_flight_bytes += end - start
        self.read(wanted, self._not_in_flight)
        return wanted

    def _ask(self, neighbour: int, zone: ZoneReading, wanted: CachedRange) -> None:
        """Request a range from a neighbour, unless it serves as the probe of a failing store."""
        self.in_flight_bytes += wanted.end - wanted.start
        if self._neighbours is None or self.tiers.is_given_up(wanted.custom_metadata):
            self.read(wanted, self._not_in_flight)
            return
        wanted.neighbour = neighbour
        read = zone.around(wanted.start, wanted.end)
        self._begin(self._asked(self._neighbours, neighbour, wanted, read))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        loop = self._loop = self._loop or asyncio.get_running_loop()
        task = loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _asked(self, neighbours: ZoneReaders, neighbour: int, wanted: CachedRange, read: tuple[int, int]) -> None:
        started_s = self._clock()
        try:
            data = await neighbours.ask(neighbour, wanted, read)
        except asyncio.CancelledError:
            self._not_in_flight(wanted.end - wanted.start)
            self.abandon(wanted)
            raise
        if data is not None:
            self._not_in_flight(wanted.end - wanted.start)
            self._arrived(wanted, data, started_s)
            return
        wanted.neighbour = None
        self.read(wanted, self._not_in_flight)

    def _not_in_flight(self, size: int) -> None:
        self.in_flight_bytes -= size

    def read(
        self, wanted: CachedRange, ended: Callable[[int], None], turns: AbstractAsyncContextManager[None] = _NO_TURNS
    ) -> None:
        """Read a `planned` range once a slot is free; then `ended` is called with the number of its bytes."""
        tier = self.tiers.of(wanted.object_id, wanted.custom_metadata)
        if tier is None:
            raise RuntimeError("a range is planned only in a known place")
        self._begin(self._read(wanted, tier, ended, turns))

    async def _read(
        self,
        wanted: CachedRange,
        tier: TierReader,
        ended: Callable[[int], None],
        turns: AbstractAsyncContextManager[None],
    ) -> None:
        started_s = self._clock()
        try:
            async with turns:
                data = await tier.read(wanted)
        except asyncio.CancelledError:
            ended(wanted.end - wanted.start)
            self.abandon(wanted)
            raise
        except Exception as error:
            self._metrics.fault(f"hydration_{failure_label(error)}")
            tier.failed(self._clock(), error)
            ended(wanted.end - wanted.start)
            for future in self._futures(self.ranges.failed(wanted)):
                future.set_exception(error)
        else:
            ended(wanted.end - wanted.start)
            self._arrived(wanted, data, started_s)
            tier.answered()

    def _arrived(self, wanted: CachedRange, data: bytes, started_s: float) -> None:
        self._stage_times.observe("fetched", self._clock() - started_s)
        for wait in self.ranges.arrived(wanted, data):
            for future in self._futures([wait]):
                future.set_result(wait.data())

    def abandon(self, wanted: CachedRange) -> None:
        """Cancel the callers that wait for a range which will not be read, because this agent ends."""
        for future in self._futures(wanted.waiting):
            future.cancel()

    def _futures(self, waits: list[RangeWait]) -> list[asyncio.Future[memoryview]]:
        """Return the futures of waiting callers that have neither given up nor got an answer."""
        found = (self._waiting.get(wait) for wait in waits)
        return [future for future in found if future is not None and not future.done()]
