"""RLMWalExpirationTask: carries out the deletion of combined segments. `rlm.lifecycle.expiration` plans it.

Everything runs in the event loop, except the planning and the storage manager's calls, which have a thread each, so
that two threads never use the planner.

While metadata cannot be published nothing is deleted: the store must not change without a record in the topic. One
reason to delete rests on missing knowledge, namely an upload without a published end. Before it counts, the topic is
read to its end.
"""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.metadata_publisher import MetadataPublisher
from metadata_topic.records.records import PublishableRecord, PublishedSegment
from metadata_topic.records.states import DELETED, DELETING, STARTED
from plugin.errors import RemoteResourceNotFoundError, RemoteStorageError, failure_label
from plugin.format.combined_segment import HEADER_BYTES, decode_header
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata
from plugin.wall_clock import Clocks
from rlm.lifecycle.adopted_objects import AdoptedObjects
from rlm.lifecycle.expiration import DeletionQuota, ExpirationPlanner, Planned, Verdict
from rlm.lifecycle.release import Release
from rlm.write_path.machine import thread_pool
from rlm.write_path.metrics import LifecycleMetrics

T = TypeVar("T")

log = structlog.get_logger(__name__)

_STARTS_PER_RUN = 1000


@dataclass(frozen=True, slots=True)
class Responsibility:
    """What this agent may delete."""

    brokers: Callable[[], Collection[int]]
    """The brokers whose objects are in its care; empty while that is unknown, or while metadata is not read or
    published."""
    under_way: Callable[[CombinedSegmentId], bool]
    """Whether its own upload of a segment still runs, or its metadata is not acknowledged. Called before `read_to_end`,
    so that what is acknowledged by then is read."""
    on_deletion_started: Callable[[CombinedSegmentId], None]
    """Called in the event loop: no link to the segment may be given from now on."""
    read_to_end: Callable[[], bool]
    """Blocks until the store knows everything that is in the metadata topic now; False if that fails."""


class RLMWalExpirationTask:
    """Starts deletions, waits, deletes. `run_once` is one round."""

    def __init__(
        self,
        storage: RemoteWalStorageManager,
        publisher: MetadataPublisher[PublishableRecord],
        planner: ExpirationPlanner,
        responsibility: Responsibility,
        clocks: Clocks,
        policy: "DeletionPolicy",
        pool: Callable[[int, str], Executor] = thread_pool,
    ) -> None:
        """`pool` makes a pool of so many threads with that name."""
        self._storage = storage
        self._publisher = publisher
        self._planner = planner
        self._responsibility = responsibility
        self._clocks = clocks
        self._policy = policy
        self._adopted = AdoptedObjects(storage, policy.naming, clocks.wall_ms)
        self._quota = DeletionQuota(policy.per_second, clocks.monotonic_s())
        self._planning = pool(1, "rlm-wal-expiration")
        self._deleting = pool(policy.threads, "rlm-wal-delete")
        self._turns = asyncio.Semaphore(policy.threads)

    async def run_once(self) -> bool:
        """Start what can be started and delete what is due, within the quota. False if it was not possible.

        Deletions that the store fails are counted separately.
        """
        brokers = self._responsibility.brokers()
        if not brokers:
            return False
        now_ms = self._clocks.wall_ms()
        planned = await self._plan(self._planner.scan, brokers, self._responsibility.under_way, now_ms, _STARTS_PER_RUN)
        for item in await self._known_by_now(planned):
            if not self._start(item.segment, item.reason):
                return False
        due = await self._plan(self._planner.due, now_ms, self._quota.available(self._clocks.monotonic_s()))
        self._quota.taken(len(due))
        await asyncio.gather(*(self._delete_in_turn(segment_id) for segment_id in due))
        return True

    async def _known_by_now(self, planned: list[Planned]) -> list[Planned]:
        """Leave out uploads whose end is in the topic but unread, or might be."""
        if not any(item.reason is Release.UNCOMMITTED for item in planned):
            return planned
        is_read = await self._in_thread(self._responsibility.read_to_end)
        return [
            item
            for item in planned
            if item.reason is not Release.UNCOMMITTED or (is_read and self._is_uncommitted(item.segment))
        ]

    def _is_uncommitted(self, metadata: PublishedSegment) -> bool:
        known = self._policy.segment(metadata.combined_segment_id)
        return known is not None and known.state is STARTED

    def close(self) -> None:
        """Shut down; deletions under way may or may not finish."""
        self._planning.shutdown(wait=False, cancel_futures=True)
        self._deleting.shutdown(wait=False, cancel_futures=True)

    def _start(self, metadata: PublishedSegment, reason: str) -> bool:
        segment_id = metadata.combined_segment_id
        if not self._publish(deletion_record(metadata, DELETING, self._clocks.wall_ms())):
            return False
        self._responsibility.on_deletion_started(segment_id)
        self._planner.started(metadata, self._clocks.wall_ms())
        self._policy.metrics.deletions_started.labels(reason).inc()
        log.info("segment_deletion_started", segment=str(segment_id), reason=reason, size=metadata.size_bytes)
        return True

    async def _delete_in_turn(self, segment_id: CombinedSegmentId) -> None:
        """Judge an object only once a thread is free to delete it.

        While the store is slow, an earlier judgement could become outdated: the object may be wanted by then, or in
        another agent's care.
        """
        async with self._turns:
            if self._responsibility.brokers():
                await self._delete(segment_id)

    async def _delete(self, segment_id: CombinedSegmentId) -> None:
        verdict = await self._plan(self._planner.verdict, segment_id, self._clocks.wall_ms())
        try:
            if verdict is Verdict.AGE_NEEDED:
                verdict = await self._verdict_by_age(segment_id)
            if verdict is not Verdict.DELETE:
                self._policy.metrics.deletions_held_back.inc()
                log.warning("segment_deletion_held_back", segment=str(segment_id), reason="its records are wanted")
                await self._plan(self._planner.put_off, segment_id, self._clocks.wall_ms())
                return
            known = await self._in_thread(self._delete_object, segment_id)
        except RemoteStorageError as error:
            self._policy.metrics.deletion_failures.labels(failure_label(error)).inc()
            log.warning("segment_deletion_failed", segment=str(segment_id), error=str(error))
            await self._plan(self._planner.put_off, segment_id, self._clocks.wall_ms())
            return
        if not self._publish(deletion_record(known, DELETED, self._clocks.wall_ms())):
            await self._plan(self._planner.put_off, segment_id, self._clocks.wall_ms())
            return
        await self._plan(self._planner.finished, segment_id)
        self._policy.metrics.deletions_finished.inc()

    async def _verdict_by_age(self, segment_id: CombinedSegmentId) -> Verdict:
        try:
            custom_metadata = (self._policy.segment(segment_id) or _unknown(segment_id)).custom_metadata
            header = await self._in_thread(
                self._storage.fetch_log_segment, segment_id, 0, HEADER_BYTES, custom_metadata
            )
            written_ms = decode_header(header).created_ms
        except RemoteResourceNotFoundError:
            return Verdict.DELETE
        except ValueError as error:
            raise RemoteStorageError("read header", str(segment_id), str(error), label="corrupt") from error
        await self._plan(self._planner.written, segment_id, written_ms)
        return await self._plan(self._planner.verdict, segment_id, self._clocks.wall_ms())

    def _delete_object(self, segment_id: CombinedSegmentId) -> PublishedSegment:
        """Delete the object. Returns what was known of it."""
        known = self._policy.segment(segment_id) or _unknown(segment_id)
        with suppress(RemoteResourceNotFoundError):  # already gone, which is what we want
            self._storage.delete_log_segment_data(segment_id, known.custom_metadata)
        self._adopted.segment_deleted(segment_id, known.custom_metadata)
        return known

    def _publish(self, record: RemoteWalCombinedLogSegmentMetadata) -> bool:
        try:
            self._publisher.publish(record)
        except PublicationBacklogFullError:
            return False
        return True

    async def _plan(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._planning, function, *args)

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._deleting, function, *args)


@dataclass(frozen=True, slots=True)
class DeletionPolicy:
    """How deletions run."""

    per_second: float
    threads: int
    segment: Callable[[CombinedSegmentId], PublishedSegment | None]
    """What the metadata store knows of a segment."""
    metrics: LifecycleMetrics
    naming: Callable[[RouterObjectId], Collection[CombinedSegmentId]]
    """Returns the segments that name a gateway's object."""


def deletion_record(
    metadata: PublishedSegment, state: RemoteLogSegmentState, now_ms: int
) -> RemoteWalCombinedLogSegmentMetadata:
    """Make a DELETE_SEGMENT_* record without entries, which means all of the object's."""
    return RemoteWalCombinedLogSegmentMetadata(
        metadata.combined_segment_id, (), state, now_ms, metadata.size_bytes, metadata.custom_metadata
    )


def _unknown(segment_id: CombinedSegmentId) -> PublishedSegment:
    return PublishedSegment(segment_id, DELETING, 0, -1, b"", b"")
