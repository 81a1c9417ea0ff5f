"""One tier that followers read from: how a range is read there, and whether it is to be asked at all.

Combined segments are in one store, archive objects in another, which may fail, or be missing here, while the other
answers. So each tier has a circuit breaker of its own: while the archive's is open, links to archive objects are
refused at once, and a response that names one comes inline, whole; responses that name combined segments alone are read
as ever. The leaders' agents are not told of it, as they are of the other one.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import structlog

from plugin.archive_object_id import ArchiveObjectId
from plugin.errors import RemoteResourceNotFoundError, RemoteStorageError
from plugin.segment_metadata import CombinedSegmentId
from replication.wire.circuit_breaker import BreakerLimits, CircuitBreaker
from replication.wire.metrics import ReplicationMetrics

log = structlog.get_logger(__name__)

ObjectId = TypeVar("ObjectId", CombinedSegmentId, ArchiveObjectId)


class ArchiveReads(Protocol):
    """What is asked of the archive's store: see `plugin.archive_storage`."""

    def fetch(self, object_id: ArchiveObjectId, start_position: int, end_position: int) -> bytes: ...


class TierReader(Generic[ObjectId]):
    """Reads of one tier. All but `read` is for the event loop alone."""

    def __init__(
        self,
        fetch: Callable[[ObjectId, int, int], bytes],
        limits: BreakerLimits,
        on_breaker_change: Callable[[bool], None],
    ) -> None:
        """`on_breaker_change` is told True when the tier is given up for a while, False when it answers again."""
        self._fetch: Callable[[ObjectId, int, int], bytes] = fetch
        self._on_breaker_change = on_breaker_change
        self.breaker = CircuitBreaker(limits)

    def read(self, object_id: ObjectId, start: int, end: int) -> bytes:
        """The bytes [start, end). On a thread. Raises RemoteStorageError, and whatever a backend's defect may be."""
        data = self._fetch(object_id, start, end)
        if not isinstance(data, bytes):
            raise TypeError("a storage manager gives bytes")
        return data

    def answered(self) -> None:
        """A read succeeded."""
        if self.breaker.succeeded():
            self._on_breaker_change(False)

    def failed(self, now_s: float, error: BaseException | None = None) -> None:
        """A read failed, or took too long. That an object is gone is an answer as any."""
        if isinstance(error, RemoteResourceNotFoundError):
            self.answered()
        elif self.breaker.failed(now_s):
            self._on_breaker_change(True)


def archive_reader(
    archive: Callable[[], ArchiveReads | None], limits: BreakerLimits, metrics: ReplicationMetrics
) -> TierReader[ArchiveObjectId]:
    """Of archive objects, whose store `archive` gives as soon as it is there."""

    def fetch(object_id: ArchiveObjectId, start: int, end: int) -> bytes:
        store = archive()
        if store is None:
            why = "this agent has no archive, or its store has not answered yet"
            raise RemoteStorageError("fetch", str(object_id), why, label="no_archive")
        return store.fetch(object_id, start, end)

    def changed(is_open: bool) -> None:
        event = "archive_reads_paused" if is_open else "archive_reads_resumed"
        metrics.fault(event)
        log.warning(event)

    return TierReader(fetch, limits, changed)
