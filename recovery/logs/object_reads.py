"""Plans in which order, and in how few requests, the objects behind many logs are read. Sans-IO.

An object of a busy broker holds a run of every partition. So logs are restored side by side and not one after the
other, in the order in which their objects were written, and what several logs need of one object is read at once. A
log's own order comes first: its extents keep it even if clocks disagree about which object is older.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Final, NamedTuple

from recovery.logs.log_plan import Extent, LogPlan
from recovery.logs.stored_run import StoredObject

MAX_READ_BYTES: Final = 8 * 1024 * 1024
"""The size of one request, unless a single run is longer."""
MAX_WASTED_BYTES: Final = 256 * 1024
"""Unneeded bytes between two runs that are read at once: cheaper than another request."""


class LogExtent(NamedTuple):
    """An extent and the log that it belongs to."""

    log: int
    """Index into the plans."""
    extent: Extent


@dataclass(frozen=True, slots=True)
class ObjectRead:
    """One request to the object store: the bytes [start, end) of an object, and the extents in it."""

    stored_in: StoredObject
    start: int
    end: int
    extents: tuple[LogExtent, ...]
    """In the order of use."""

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def order_reads(plans: Sequence[LogPlan]) -> Iterator[ObjectRead]:
    """Yield reads for all extents of all plans, each extent once; a plan's extents in its order."""
    ordered = merge(*(_keyed(number, plan) for number, plan in enumerate(plans)))
    return group_reads((LogExtent(log, extent) for _, _, log, _, extent in ordered))


def group_reads(extents: Iterable[LogExtent], max_read_bytes: int = MAX_READ_BYTES) -> Iterator[ObjectRead]:
    """Group extents into reads, in this order; adjacent extents of one object share a read."""
    waiting: list[LogExtent] = []
    for one in extents:
        if waiting and not _fits(waiting, one.extent, max_read_bytes):
            yield _read(waiting)
            waiting = []
        waiting.append(one)
    if waiting:
        yield _read(waiting)


def _keyed(log: int, plan: LogPlan) -> Iterator[tuple[int, bytes, int, int, Extent]]:
    """Yield each extent with a key that never decreases within the log."""
    latest = (0, b"")
    for number, extent in enumerate(plan.extents):
        stored_in = extent.run.stored_in
        latest = max(latest, (stored_in.written_ms, stored_in.object_id.to_bytes()))
        yield *latest, log, number, extent


def _fits(waiting: Sequence[LogExtent], extent: Extent, max_read_bytes: int) -> bool:
    """Whether the same request can read this extent too."""
    run = extent.run
    if waiting[0].extent.run.stored_in != run.stored_in:
        return False
    last = waiting[-1].extent.run
    if not last.start_position <= run.start_position <= last.end_position + MAX_WASTED_BYTES:
        return False
    return run.end_position - waiting[0].extent.run.start_position <= max_read_bytes


def _read(extents: Sequence[LogExtent]) -> ObjectRead:
    runs = [one.extent.run for one in extents]
    return ObjectRead(
        runs[0].stored_in,
        min(run.start_position for run in runs),
        max(run.end_position for run in runs),
        tuple(extents),
    )
