"""Reads for a local broker that is far behind: ahead of its requests, in parallel, and within a quota.

Such reads come in megabytes, from many leaders at once. They must not delay the ranges that were stored just now. So
only a few run at once, in their own share of the cache's memory, and within a quota in bytes per second. When the quota
refuses a read, a hint is dropped, and a range that a response needs is requested inline.

Ranges are in the `HydrationCache` like any other, from the moment in which they are planned, and only missing ranges
are planned. So nothing is read twice. Used from the event loop only.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from plugin.format.archive_object_id import StoredObjectId
from replication.follower.hydration import HydrationCache, HydrationError
from replication.follower.range_cache import CachedRange
from replication.wire.link import SegmentLink
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_protocol import coalesce_ranges
from rlm.write_path.commit.bandwidth import TokenBucket


@dataclass(frozen=True, slots=True)
class CatchUpReadLimits:
    """Limits of catch-up reads: how many at once, bytes, bytes per second, and seconds."""

    bytes_per_s: int
    under_way_bytes: int
    """The most bytes that may be planned or being read; announcements beyond it are dropped."""
    wait_max_s: float
    reads: int = 4
    """Guessed."""


class CatchUpReads:
    """Reads objects for all followers' connections of an agent that are far behind, within one quota.

    A read begins when the quota allows it. If it does not within `wait_max_s`, the bytes come inline instead. So the
    quota moves a catch-up from object storage to cross-zone traffic, and slows it down by at most that wait.
    """

    def __init__(
        self,
        cache: HydrationCache,
        limits: CatchUpReadLimits,
        metrics: ReplicationMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._metrics = metrics
        self._clock = clock
        self._limits = limits
        self._quota = TokenBucket(limits.bytes_per_s)
        self._under_way_bytes = 0
        """Bytes of reads that were planned and have not ended."""
        self._turns = asyncio.Semaphore(limits.reads)
        self._closed = False

    def read_ahead(
        self, object_id: StoredObjectId, ranges: tuple[tuple[int, int], ...], custom_metadata: bytes = b""
    ) -> None:
        """Read ranges that will be requested soon. This is a hint, dropped if it does not fit the quota."""
        for start, end in chain.from_iterable(self._cache.ranges.find_missing(object_id, *wanted) for wanted in ranges):
            if self._under_way_bytes + end - start > self._limits.under_way_bytes:
                self._metrics.fault("catch_up_over_budget")
                return
            refusal = self._plan(object_id, start, end, custom_metadata)
            if refusal is not None:
                self._metrics.fault(f"catch_up_{refusal}")
                return

    async def fetch_all(self, links: Sequence[SegmentLink]) -> list[memoryview]:
        """Return the bytes of these links, in their order. Raises HydrationError."""
        missing: defaultdict[StoredObjectId, list[tuple[int, int]]] = defaultdict(list)
        custom_metadata = {link.object_id: link.custom_metadata for link in links}
        for link in links:
            missing[link.object_id] += self._cache.ranges.find_missing(
                link.object_id, link.start_position, link.end_position
            )
        for object_id, wanted in missing.items():
            for start, end in coalesce_ranges(wanted, max_gap_bytes=0, max_ranges=math.inf):
                refusal = self._plan(object_id, start, end, custom_metadata[object_id])
                if refusal is not None:
                    raise HydrationError(refusal, "the bytes are not read now")
        return await asyncio.gather(
            *(
                self._cache.fetch(link.object_id, link.start_position, link.end_position, link.custom_metadata)
                for link in links
            )
        )

    def close(self) -> None:
        """Drop the planned reads; the cache abandons those under way."""
        self._closed = True

    def _plan(self, object_id: StoredObjectId, start: int, end: int, custom_metadata: bytes) -> str | None:
        """Have the range read when the quota allows it. Returns why not otherwise."""
        now_s, size = self._clock(), end - start
        if self._quota.wait_s(now_s) > self._limits.wait_max_s:
            return "over_quota"
        try:
            wanted = self._cache.planned(object_id, start, end, custom_metadata)
        except HydrationError as error:
            return error.reason
        self._under_way_bytes += size
        wait_s = self._quota.take(size, now_s)
        self._metrics.catch_up.read_bytes.inc(size)
        if wait_s > 0:
            asyncio.get_running_loop().call_later(wait_s, self._begin, wanted)
        else:
            self._begin(wanted)
        return None

    def _begin(self, wanted: CachedRange) -> None:
        if self._closed:
            self._cache.abandon(wanted)
        else:
            self._cache.read(wanted, self._ended, self._turns)

    def _ended(self, size: int) -> None:
        self._under_way_bytes -= size
