"""Carries out what the RouterChannel decides: uploads, deletions, and sweeps of what dead gateways left.

One for an agent, used in the event loop. An error of the store fails only the one
upload, whose requests go inline, or the one deletion, which is retried.

`WantedObjects` finds what nobody wants, according to the metadata topic, on threads. If no segment names an object, a
log's agent may still publish one that does. A segment that names it is stored soon after it, if ever
(`adoptable_records.NAMED_WITHIN_MS`), and published some time later. So only objects far older than that are checked
(`router_channel.KEEP_S`), and an object stays while an unpublished segment was stored at about the same time. The check
follows a read of the topic to its end, while the topic is not doubted. While nothing is known of the topic, nothing is
unwanted.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import structlog

from gateway.metrics import ProduceMetrics
from gateway.produce.route_core import StoredRecords
from gateway.produce.router_channel import ChannelObject, DueDeletion, RouterChannel, RouterSweep
from kafka_log.crc32c import Buffer
from plugin.blob_storage import BlobStorage, StoredBlob
from plugin.errors import IncompleteListingError, RemoteSegmentConflictError, failure_label
from plugin.hot_path.deadline import wait_at_most
from plugin.router_object_id import ROUTER_KIND, RouterObjectId
from plugin.segment_metadata import CombinedSegmentId
from plugin.wall_clock import Clocks
from rlm.write_path.uploads.adoptable_records import NAMED_WITHIN_MS

CLOCKS_MS: Final = 300_000
"""How far the clocks of gateways, agents and the store may differ."""


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Which segments name which gateways' objects, by the metadata."""

    find_adopters: Callable[[RouterObjectId], Collection[CombinedSegmentId]]
    unpublished_ms: Callable[[int], Collection[int]]
    """Blocks. Returns when segments were stored, by the store's clock, that were begun before that moment and may still
    be published. Raises RemoteStorageError."""
    read_to_end: Callable[[], bool]
    """Blocks; False when the topic could not be read to its present end."""
    doubt: Callable[[], str]
    """The reason not to draw conclusions from what the topic lacks; empty if there is none."""
    is_stopped: Callable[[], bool] = lambda: False
    """Whether this agent may neither store nor delete: another cluster may use the same names."""


class WantedObjects:
    """Finds objects of gateways that no segment names. Before there is metadata, it finds none."""

    def __init__(self, near_ms: int = NAMED_WITHIN_MS + CLOCKS_MS) -> None:
        """`near_ms` bounds how far apart, by the store's clock, an object and a segment that names it can be stored."""
        self._near_ms = near_ms
        self._known: KnownNames | None = None

    def arrived(self, known: KnownNames) -> None:
        """Start to use this metadata."""
        self._known = known

    @property
    def is_stopped(self) -> bool:
        """Whether this agent may neither store nor delete objects now."""
        return self._known is not None and self._known.is_stopped()

    def find_unwanted(self, listed: Iterable[StoredBlob]) -> list[StoredBlob]:
        """Return the objects that no segment names or can still come to name. Raises RemoteStorageError."""
        known = self._known
        if known is None:
            return []
        asked = [(blob, name) for blob in listed if (name := RouterObjectId.parse(blob.name))]
        unnamed = [(blob, name) for blob, name in asked if not known.find_adopters(name)]
        if not unnamed:
            return []
        unpublished_ms = known.unpublished_ms(max(name.begun_until_ms for _, name in unnamed) + self._near_ms)
        if not known.read_to_end() or known.doubt():
            return []
        return [
            blob for blob, name in unnamed if not known.find_adopters(name) and not self._is_near(name, unpublished_ms)
        ]

    def _is_near(self, name: RouterObjectId, stored_ms: Iterable[int]) -> bool:
        begin_ms, end_ms = name.begun_ms - self._near_ms, name.begun_until_ms + self._near_ms
        return any(begin_ms <= at_ms <= end_ms for at_ms in stored_ms)


log = structlog.get_logger(__name__)

CALL_TIMEOUT_S: Final = 60.0
"""For storage managers that do not keep their own deadlines."""
SWEEP_EACH_S: Final = 300.0


class RoutedConnection(Protocol):
    """The client's connection that a routed request belongs to."""

    def stored(self, number: int, where: StoredRecords) -> None:
        """Handle that the request's records are stored."""

    def not_stored(self, number: int) -> None:
        """Handle that the request's records will not be stored."""


class Holder(NamedTuple):
    """Stands for one routed request of one connection."""

    connection: RoutedConnection
    number: int


class RouterUploads:
    """The uploads, deletions and sweeps of one agent's RouterChannel."""

    def __init__(
        self,
        channel: RouterChannel,
        store: BlobStorage,
        clocks: Clocks,
        metrics: ProduceMetrics,
        wanted: WantedObjects,
    ) -> None:
        self.wanted = wanted
        self._channel = channel
        self._store = store
        self._clocks = clocks
        self._metrics = metrics
        self._sweep = RouterSweep(channel.is_live)
        self._woken = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}

    def offer(self, holder: Holder, records: Sequence[Buffer], owner: int | None = None) -> None:
        """Queue records for upload. The holder's connection is notified later, unless `settled` is called before.

        `owner` is the broker whose agent may adopt the records; None if no agent does.
        """
        self._channel.offer(holder, records, owner, self._clocks.monotonic_s())
        self._woken.set()

    def settled(self, holder: Holder) -> None:
        """Record that the request no longer needs its stored records."""
        self._channel.settled(holder, self._clocks.monotonic_s())
        self._woken.set()

    def left(self, holder: Holder) -> None:
        """Record that a log may refer to the request's stored records."""
        self._channel.left(holder, self._clocks.monotonic_s())
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled. Objects of uploads then under way are left to a later sweep.

        After a defect it may be called again: uploads under way go on, and requests that wait meanwhile go inline.
        """
        try:
            await self._go_on()
        except asyncio.CancelledError:
            for task in list(self._tasks):
                task.cancel()
            raise

    async def _go_on(self) -> None:
        while True:
            now_s = self._clocks.monotonic_s()
            if self._channel.start_s(now_s) <= now_s:
                self._round(now_s)
            for due in self._channel.due_deletions(now_s):
                self._begin(self._delete(due))
            self._metrics.live_objects.set(self._channel.objects)
            delay_s = min(self._channel.start_s(now_s), self._channel.next_deletion_s) - now_s
            await wait_at_most(self._woken, delay_s)
            self._woken.clear()

    def _round(self, now_s: float) -> None:
        uploads, refused = self._channel.round(now_s, self._clocks.wall_ms())
        for holder in refused:
            self._tell_not_stored(holder)
        for upload in uploads:
            self._begin(self._upload(upload))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _upload(self, upload: ChannelObject) -> None:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                chunks = [memoryview(one) for one in upload.chunks]
                custom_metadata = await self._store.put_blob(upload.object_id.blob_name, *chunks)
        except Exception as error:  # any storage manager may raise anything; the requests go inline
            self._metrics.objects.labels("upload_failed").inc()
            log.warning("router_upload_failed", object=str(upload.object_id), reason=failure_label(error))
            for holder in self._channel.failed(upload.object_id, self._clocks.monotonic_s()):
                self._tell_not_stored(holder)
            if isinstance(error, RemoteSegmentConflictError):
                self._channel.deleted(upload.object_id)  # the object there is another writer's
        else:
            self._metrics.objects.labels("stored").inc()
            self._metrics.router.put += 1
            self._metrics.router.put_bytes += upload.size_bytes
            now_s = self._clocks.monotonic_s()
            for holder, where in self._channel.stored(upload.object_id, custom_metadata, now_s):
                if isinstance(holder, Holder):
                    holder.connection.stored(holder.number, where)
        self._woken.set()

    def _tell_not_stored(self, holder: object) -> None:
        if isinstance(holder, Holder):
            holder.connection.not_stored(holder.number)

    async def _delete(self, due: DueDeletion) -> None:
        if self.wanted.is_stopped:
            self._channel.not_deleted(due.object_id, self._clocks.monotonic_s())
            return
        blob = StoredBlob(due.object_id.blob_name, 0, due.custom_metadata)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._store.delete_blob(blob)
        except Exception as error:
            self._metrics.objects.labels("delete_failed").inc()
            log.warning("router_delete_failed", object=str(due.object_id), reason=failure_label(error))
            self._channel.not_deleted(due.object_id, self._clocks.monotonic_s())
        else:
            self._metrics.objects.labels("deleted").inc()
            self._channel.deleted(due.object_id)
        self._woken.set()

    async def sweep_always(self) -> None:
        """Sweep from time to time until cancelled; a sweep that fails is counted."""
        while True:
            try:
                await self.sweep()
            except Exception as error:
                self._metrics.objects.labels("sweep_failed").inc()
                log.warning("router_sweep_failed", reason=failure_label(error))
            await asyncio.sleep(SWEEP_EACH_S)

    async def sweep(self) -> None:
        """Delete objects that dead gateways left and that no log refers to. Raises RemoteStorageError."""
        listed: list[StoredBlob] = []
        with suppress(IncompleteListingError):  # objects in the other buckets are swept all the same
            async for part in self._store.list_blobs(ROUTER_KIND):
                listed += part
        dead_ones = self._sweep.dead(listed, self._clocks.monotonic_s())
        for dead in await asyncio.to_thread(self.wanted.find_unwanted, dead_ones):
            await self._store.delete_blob(dead)
            self._metrics.objects.labels("swept").inc()
