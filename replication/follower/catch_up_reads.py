"""Reads for a local broker that is far behind: ahead of need, side by side, and within a quota.

Such reads come in megabytes, from many leaders at once. So that they do not delay the ranges that were stored just now,
they have threads of their own, a share of the cache's memory of their own, and a quota in bytes per second over all
leaders (as KIP-956 has for reads from KIP-405's tier). A read begins when the quota lets it, if that is within
`wait_max_s`; if it is not, it is not made: what was announced is let go, what a response needs is asked for inline. So
the quota shifts a catch-up from object storage to the border, and never slows it down by more than that wait.

What is read stands in the `HydrationCache` as any other range, from the moment on in which it is planned, and only what
is missing there is planned, so nothing is read twice. Used from the event loop alone.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

from plugin.archive_object_id import StoredObjectId
from replication.follower.hydration import HydrationCache, HydrationError, HydrationRange
from replication.wire.link import SegmentLink
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_protocol import coalesce_ranges
from rlm.write_path.bandwidth import TokenBucket


@dataclass(frozen=True, slots=True)
class CatchUpReadLimits:
    """Threads, bytes, bytes per second and seconds."""

    threads: int
    bytes_per_s: int
    under_way_bytes: int
    """What may be planned or under way; what is announced beyond is let go."""
    wait_max_s: float


class CatchUpReads:
    """All reads of an agent for followers' connections that are far behind."""

    def __init__(
        self,
        cache: HydrationCache,
        limits: CatchUpReadLimits,
        metrics: ReplicationMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._quota = TokenBucket(limits.bytes_per_s)
        self._under_way_bytes = 0
        self._closed = False
        self._pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="catch-up-read")

    def read_ahead(self, object_id: StoredObjectId, ranges: tuple[tuple[int, int], ...]) -> None:
        """These ranges will be asked for soon. A hint, let go where it does not fit."""
        for start, end in chain.from_iterable(self._cache.missing(object_id, *wanted) for wanted in ranges):
            if self._under_way_bytes + end - start > self._limits.under_way_bytes:
                self._metrics.fault("catch_up_over_budget")
                return
            refusal = self._plan(object_id, start, end)
            if refusal is not None:
                self._metrics.fault(f"catch_up_{refusal}")
                return

    async def fetch_all(self, links: Sequence[SegmentLink]) -> list[memoryview]:
        """The links' bytes. Raises HydrationError."""
        missing: defaultdict[StoredObjectId, list[tuple[int, int]]] = defaultdict(list)
        for link in links:
            missing[link.object_id] += self._cache.missing(link.object_id, link.start_position, link.end_position)
        for object_id, wanted in missing.items():
            for start, end in coalesce_ranges(wanted, max_gap_bytes=0, max_ranges=math.inf):
                refusal = self._plan(object_id, start, end)
                if refusal is not None:
                    raise HydrationError(refusal, "the bytes are not read now")
        return await asyncio.gather(
            *(self._cache.fetch(link.object_id, link.start_position, link.end_position) for link in links)
        )

    def close(self) -> None:
        """Reads under way are abandoned, planned ones never begin."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _plan(self, object_id: StoredObjectId, start: int, end: int) -> str | None:
        """Have the range read when the quota lets it; or why not."""
        now_s = self._clock()
        if self._quota.wait_s(now_s) > self._limits.wait_max_s:
            return "over_quota"
        if not self._cache.may_read(object_id, now_s):
            return "breaker_open"
        size = end - start
        wait_s = self._quota.take(size, now_s)
        self._under_way_bytes += size
        reserved = self._cache.reserve(object_id, start, end)
        reserved.data.add_done_callback(lambda _: self._ended(size))
        self._metrics.catch_up_read_bytes.inc(size)
        self._metrics.catch_up_wait_seconds.inc(wait_s)
        if wait_s > 0:
            asyncio.get_running_loop().call_later(wait_s, self._begin, object_id, reserved)
        else:
            self._begin(object_id, reserved)
        return None

    def _begin(self, object_id: StoredObjectId, reserved: HydrationRange) -> None:
        if self._closed:
            reserved.data.cancel()
        else:
            self._cache.begin(object_id, reserved, self._pool)

    def _ended(self, size: int) -> None:
        self._under_way_bytes -= size
