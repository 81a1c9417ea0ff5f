"""Decides which combined segments may go, and which may be deleted now. Sans-IO; the shell is `RLMWalExpirationTask`.

An object lives as long as one of its entries is wanted. An entry is released when

- a failover killed it, or a person gave it up,
- its topic is gone from the cluster, for longer than a grace time,
- its last offset is below the partition's log start offset,
- the long-term tier holds it: KIP-405's remote storage, or the archive where the topic has one,
- or the object is older than the WAL's retention for the topic (`metadata_topic.settings.wal_retention`), or than the
  longer one for partitions with a replica that is not in sync, unless the topic's archive still waits for it.

What a log lost without an election stays wanted until its topic is gone or somebody gives it up, whatever else would
release it (`metadata_topic.store.held_records`). Unknown facts (a topic's retention, a log start offset, the tier)
never release anything.

Deletion has two phases, both in the metadata topic. After DELETE_SEGMENT_STARTED only a recovery looks for the object,
and no link to it is given. The object is deleted after a grace time in which earlier links are used up, and not before
that record was read back from the topic (a record in the publisher's queue dies with the agent). Then
DELETE_SEGMENT_FINISHED is published. What is due follows from the store and the time alone, so the next incarnation or
a caretaker continues for an agent that died at any step. Each step may be done twice.

The guard: right before the deletion an object's entries are judged again by what is known then. If an entry is wanted
after all (a retention was raised, a COPY_SEGMENT_FINISHED came late), the object stays until that entry is released.

An object that is still COPY_SEGMENT_STARTED after a time that no upload takes has an unknown outcome, and goes the same
way. So a writer must be asked what it has under way.

The store may hold millions of objects. A scan goes through them in the order of writing, a limited number at a time,
and each run looks at the oldest ones, which expire first. For one thread at a time.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from random import Random
from typing import Any, Final, TypeVar

import structlog

from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.publishable import MetadataPublisher
from metadata_topic.records.records import PublishableRecord, PublishedSegment
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.blob_storage import StoredBlob
from plugin.errors import RemoteResourceNotFoundError, RemoteStorageError, failure_label
from plugin.format.adoption_note import split_note
from plugin.format.combined_segment import HEADER_BYTES, decode_header
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, blobs_of
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId, RemoteLogSegmentState, RemoteWalCombinedLogSegmentMetadata
from plugin.store_loop import ask
from plugin.wall_clock import Clocks
from rlm.lifecycle.release import ClusterView, LongTermTier, Release, ReleaseJudge
from rlm.write_path.metrics import LifecycleMetrics
from rlm.write_path.runtime import thread_pool
from rlm.write_path.uploads.adoptable_records import NAMED_WITHIN_MS

log = structlog.get_logger(__name__)

NO_AGE_IS_HIGHER_MS = 2**63

_SEGMENTS_PER_SCAN: Final = 2000
"""Segments that a scan looks at (guessed)."""
_ENTRIES_PER_SCAN: Final = 500_000
"""As many entries a scan as a busy agent uploads between two scans, so releases are found as they occur (guessed)."""
_OLDEST_PER_SCAN: Final = 16
"""The look at the oldest ends after so many that cannot go yet (guessed)."""
_MOST_PER_RUN: Final = 1000
"""Deletions that a run starts, and carries out, at most: more than an agent uploads until the next one (guessed)."""
DELETE_THREADS: Final = 4
"""Deletions at once (guessed)."""
AGE_MS: Final = NAMED_WITHIN_MS
"""A younger object of a gateway may still be adopted."""
_REMEMBERED: Final = 10_000
"""Deleted segments that are remembered, for gateways' objects that they named (guessed)."""


class Verdict(Enum):
    """The result of the last check before a deletion."""

    DELETE = "delete"
    HOLD = "hold"
    AGE_NEEDED = "age_needed"
    """It depends on when the object was written, which the metadata does not have any more."""


@dataclass(frozen=True, slots=True)
class ExpirationLimits:
    """Grace times, back-offs and other times of deletion, in milliseconds."""

    delete_grace_ms: int
    uncommitted_ttl_ms: int
    retry_ms: int = 1000
    retry_max_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class Planned:
    """A segment whose deletion should be started."""

    segment: PublishedSegment
    reason: Release


@dataclass(slots=True)
class _Deletion:
    """A segment in DELETE_SEGMENT_STARTED."""

    due_ms: int
    written_ms: int | None
    """When the object was written; None if an agent before this one started the deletion."""
    failures: int = 0
    is_finished: bool = False
    """DELETE_SEGMENT_FINISHED was published; the store has not read it yet."""


class ExpirationPlanner:
    """Decides which segments to delete: it tracks deletions in progress, and scans the segments piece by piece."""

    def __init__(
        self, store: RemoteWalMetadataStore, tier: LongTermTier, limits: ExpirationLimits, rng: Random
    ) -> None:
        self.store = store
        self._tier = tier
        self._limits = limits
        self._rng = rng
        self._view = ClusterView()
        self._judge = ReleaseJudge(self._view, tier)
        self._scans: dict[int, Iterator[PublishedSegment]] = {}
        self._deletions: dict[CombinedSegmentId, _Deletion] = {}
        self.topics_asked: set[TopicId] = set()
        """Topics whose records were judged; a view should know them."""

    def cluster_seen(self, view: ClusterView) -> None:
        """Use this view of the cluster from now on."""
        self._view = view
        self._judge_anew()

    def _judge_anew(self) -> None:
        """Take the tier's contents and the logs' losses as they are known now."""
        self._judge = ReleaseJudge(replace(self._view, held=self.store.local_losses()), self._tier)

    # Which deletions to start.

    def scan(
        self,
        brokers: Collection[int],
        under_way: Callable[[CombinedSegmentId], bool],
        now_ms: int,
        limit: int,
    ) -> list[Planned]:
        """Return at most `limit` deletions to start for these brokers; `under_way` says which uploads still run."""
        self._judge_anew()
        found: dict[CombinedSegmentId, Planned] = {}
        for broker_id in sorted(brokers):
            misses = 0
            for metadata in self.store.published_segments(broker_id=broker_id):
                misses += not self._look_at(metadata, under_way, now_ms, found)
                if misses >= _OLDEST_PER_SCAN or len(found) >= limit:
                    break
            for metadata in self._scan_on(broker_id):
                if len(found) >= limit:
                    break
                self._look_at(metadata, under_way, now_ms, found)
        for broker_id in [known for known in self._scans if known not in brokers]:
            del self._scans[broker_id]
        return list(found.values())

    def _scan_on(self, broker_id: int) -> Iterator[PublishedSegment]:
        """Yield the broker's next segments, going through all of them over several calls."""
        scan = self._scans.get(broker_id)
        if scan is None:
            scan = self._scans[broker_id] = iter(self.store.published_segments(broker_id=broker_id))
        entries, segments = 0, 0
        for metadata in islice(scan, _SEGMENTS_PER_SCAN):
            yield metadata
            segments += 1
            entries += metadata.entry_count
            if entries >= _ENTRIES_PER_SCAN:
                return
        if segments < _SEGMENTS_PER_SCAN:
            self._scans.pop(broker_id, None)

    def _look_at(
        self,
        metadata: PublishedSegment,
        under_way: Callable[[CombinedSegmentId], bool],
        now_ms: int,
        found: dict[CombinedSegmentId, Planned],
    ) -> bool:
        """Whether the segment goes now or is being deleted already."""
        segment_id = metadata.combined_segment_id
        if segment_id in self._deletions or segment_id in found:
            return True
        if metadata.state is DELETING:
            self._deletions[segment_id] = _Deletion(metadata.event_timestamp_ms + self._limits.delete_grace_ms, None)
            return True
        reason = self._reason(metadata, under_way, now_ms)
        if reason is not None:
            found[segment_id] = Planned(metadata, reason)
        return reason is not None

    def _reason(
        self,
        metadata: PublishedSegment,
        under_way: Callable[[CombinedSegmentId], bool],
        now_ms: int,
    ) -> Release | None:
        if metadata.state is STARTED:
            is_late = now_ms - metadata.event_timestamp_ms >= self._limits.uncommitted_ttl_ms
            return Release.UNCOMMITTED if is_late and not under_way(metadata.combined_segment_id) else None
        if metadata.state is not FINISHED:
            return None
        return self._release(metadata, self._view.age_ms(metadata.event_timestamp_ms, now_ms))

    # When an object is released.

    def _release(self, metadata: PublishedSegment, age_ms: int) -> Release | None:
        """Return why all entries are released; None when one is wanted, or for a segment without entries."""
        dead = self.store.dead_tails(metadata.combined_segment_id)
        reason = self._judge.release(metadata.entry_block, age_ms, dead)
        self.topics_asked |= self._judge.topics_asked
        return reason

    # The deletions that were started.

    def started(self, metadata: PublishedSegment, now_ms: int) -> None:
        """Record that DELETE_SEGMENT_STARTED was published; `metadata` is the segment as it was before."""
        due_ms = now_ms + self._limits.delete_grace_ms
        self._deletions[metadata.combined_segment_id] = _Deletion(due_ms, metadata.event_timestamp_ms)

    def due(self, now_ms: int, limit: int) -> list[CombinedSegmentId]:
        """Return at most `limit` objects whose grace time or back-off is over, the longest due first.

        Objects whose deletion start was not read back from the topic are left out, and those that another agent has
        deleted meanwhile.
        """
        self._judge_anew()
        ripe = sorted(
            (deletion.due_ms, segment_id)
            for segment_id, deletion in self._deletions.items()
            if deletion.is_finished or deletion.due_ms <= now_ms
        )
        found: list[CombinedSegmentId] = []
        for _, segment_id in ripe:
            state = self.store.state_of(segment_id)
            if state is DELETED:
                del self._deletions[segment_id]
            elif state is DELETING and len(found) < limit and not self._deletions[segment_id].is_finished:
                found.append(segment_id)
        return found

    def verdict(self, segment_id: CombinedSegmentId, now_ms: int) -> Verdict:
        """Judge right before the deletion whether any known entry of the object is wanted."""
        metadata = self.store.published_segment(segment_id)
        if metadata is None or not metadata.entry_count:
            return Verdict.DELETE  # deleted already, or never finished as far as is known
        written_ms = self._deletions[segment_id].written_ms
        if self._release(metadata, self._view.age_ms(written_ms, now_ms) if written_ms is not None else 0) is not None:
            return Verdict.DELETE
        if written_ms is None and self._release(metadata, NO_AGE_IS_HIGHER_MS) is not None:
            return Verdict.AGE_NEEDED
        return Verdict.HOLD

    def written(self, segment_id: CombinedSegmentId, written_ms: int) -> None:
        """Record when the object was written, according to the object store."""
        self._deletions[segment_id].written_ms = written_ms

    def put_off(self, segment_id: CombinedSegmentId, now_ms: int) -> None:
        """Postpone a deletion that failed or was held back, by a back-off that doubles, with jitter."""
        deletion = self._deletions[segment_id]
        limits = self._limits
        pause_ms = min(limits.retry_ms * 2 ** min(deletion.failures, 30), limits.retry_max_ms)
        deletion.failures += 1
        deletion.due_ms = now_ms + round(pause_ms * self._rng.uniform(0.5, 1.0))

    def finished(self, segment_id: CombinedSegmentId) -> None:
        """Record that DELETE_SEGMENT_FINISHED was published. It is kept until the store has read it."""
        if segment_id in self._deletions:
            self._deletions[segment_id].is_finished = True

    def is_being_deleted(self, segment_id: CombinedSegmentId) -> bool:
        """Whether the segment's deletion was started by this agent, even if the store has not read it yet. On any
        thread."""
        return segment_id in self._deletions


class AdoptedObjects:
    """Deletes a gateway's object that segments have adopted, together with the last segment that names it.

    See `plugin.adopted_records`. If adopted, a gateway's object holds records for one leader's agent only, so the agent
    that owns that broker's segments knows all segments that name it. An object younger than `AGE_MS` may still be
    adopted by another segment, so it stays; a gateway's sweep finds it later.
    """

    def __init__(
        self,
        storage: RemoteWalStorageManager,
        find_adopters: Callable[[RouterObjectId], Collection[CombinedSegmentId]],
        wall_ms: Callable[[], int],
    ) -> None:
        """`find_adopters` returns the segments that name a gateway's object."""
        self._storage = storage
        self._find_adopters = find_adopters
        self._wall_ms = wall_ms
        self._gone: OrderedDict[CombinedSegmentId, None] = OrderedDict()
        """Segments deleted a moment ago; the store may not have read that from the topic yet."""

    def segment_deleted(self, segment_id: CombinedSegmentId, custom_metadata: bytes) -> None:
        """Delete gateways' objects that only deleted segments name now. Call it again after RemoteStorageError."""
        note = split_note(custom_metadata)[1]
        if note is None:
            return
        self._gone[segment_id] = None
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)
        for source in note.sources:
            is_old = self._wall_ms() >= source.begun_until_ms + AGE_MS
            if is_old and all(one in self._gone for one in self._find_adopters(source)):
                name = source.blob_name
                ask(blobs_of(self._storage, "delete", name).delete_blob(StoredBlob(name, 0)))


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Responsibility:
    """Whose objects this agent may delete, and what it knows of unfinished uploads."""

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
    """RLMWalExpirationTask: carries out the deletion of combined segments. `rlm.lifecycle.expiration` plans it.

    Everything runs in the event loop, except the planning and the storage manager's calls, which have a thread each, so
    that two threads never use the planner.

    While metadata cannot be published nothing is deleted: the store must not change without a record in the topic. One
    reason to delete rests on missing knowledge, namely an upload without a published end. Before it counts, the topic
    is read to its end.
    """

    def __init__(
        self,
        storage: RemoteWalStorageManager,
        publisher: MetadataPublisher[PublishableRecord],
        planner: ExpirationPlanner,
        responsibility: Responsibility,
        clocks: Clocks,
        metrics: LifecycleMetrics,
        pool: Callable[[int, str], Executor] = thread_pool,
    ) -> None:
        """`pool` makes a pool of so many threads with that name."""
        self._storage = storage
        self._publisher = publisher
        self._planner = planner
        self._responsibility = responsibility
        self._clocks = clocks
        self._store = planner.store
        self._metrics = metrics
        self._adopted = AdoptedObjects(storage, planner.store.find_adopters, clocks.wall_ms)
        self._planning = pool(1, "rlm-wal-expiration")
        self._deleting = pool(DELETE_THREADS, "rlm-wal-delete")
        self._turns = asyncio.Semaphore(DELETE_THREADS)

    async def run_once(self) -> bool:
        """Start planned deletions and delete due objects. False if that was not possible.

        Deletions that fail in the object store do not count as False.
        """
        brokers = self._responsibility.brokers()
        if not brokers:
            return False
        now_ms = self._clocks.wall_ms()
        planned = await self._plan(self._planner.scan, brokers, self._responsibility.under_way, now_ms, _MOST_PER_RUN)
        for item in await self._known_by_now(planned):
            if not self._start(item.segment, item.reason):
                return False
        due = await self._plan(self._planner.due, now_ms, _MOST_PER_RUN)
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
        known = self._store.published_segment(metadata.combined_segment_id)
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
        self._metrics.deletions_started.labels(reason).inc()
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
                self._metrics.deletions_held_back.inc()
                log.warning("segment_deletion_held_back", segment=str(segment_id), reason="its records are wanted")
                await self._plan(self._planner.put_off, segment_id, self._clocks.wall_ms())
                return
            known = await self._in_thread(self._delete_object, segment_id)
        except RemoteStorageError as error:
            self._metrics.deletion_failures.labels(failure_label(error)).inc()
            log.warning("segment_deletion_failed", segment=str(segment_id), error=str(error))
            await self._plan(self._planner.put_off, segment_id, self._clocks.wall_ms())
            return
        if not self._publish(deletion_record(known, DELETED, self._clocks.wall_ms())):
            await self._plan(self._planner.put_off, segment_id, self._clocks.wall_ms())
            return
        await self._plan(self._planner.finished, segment_id)
        self._metrics.deletions_finished.inc()

    async def _verdict_by_age(self, segment_id: CombinedSegmentId) -> Verdict:
        try:
            custom_metadata = (self._store.published_segment(segment_id) or _unknown(segment_id)).custom_metadata
            header = await self._storage.fetch_log_segment(segment_id, 0, HEADER_BYTES, custom_metadata)
            written_ms = decode_header(header).created_ms
        except RemoteResourceNotFoundError:
            return Verdict.DELETE
        except ValueError as error:
            raise RemoteStorageError("read header", str(segment_id), str(error), label="corrupt") from error
        await self._plan(self._planner.written, segment_id, written_ms)
        return await self._plan(self._planner.verdict, segment_id, self._clocks.wall_ms())

    def _delete_object(self, segment_id: CombinedSegmentId) -> PublishedSegment:
        """Delete the object. Returns what was known of it."""
        known = self._store.published_segment(segment_id) or _unknown(segment_id)
        with suppress(RemoteResourceNotFoundError):  # already gone, which is what we want
            ask(self._storage.delete_log_segment_data(segment_id, known.custom_metadata))
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


def deletion_record(
    metadata: PublishedSegment, state: RemoteLogSegmentState, now_ms: int
) -> RemoteWalCombinedLogSegmentMetadata:
    """Make a DELETE_SEGMENT_* record. It has no entries: it is about all of the object's."""
    return RemoteWalCombinedLogSegmentMetadata(
        metadata.combined_segment_id, (), state, now_ms, metadata.size_bytes, metadata.custom_metadata
    )


def _unknown(segment_id: CombinedSegmentId) -> PublishedSegment:
    return PublishedSegment(segment_id, DELETING, 0, -1, b"", b"")
