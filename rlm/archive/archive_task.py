"""RLMArchiveTask: merges a partition's runs from many combined segments into archive objects (S3Stream's compaction).

Partitions are scheduled as in KIP-405's thread pool. Each led partition of a topic with the archive on has its next
processing time: one interval after success, a retry interval with back-off after a failure. One partition is processed
at a time, so at most one object is in memory. Its sources are read in a pool of their own. All reads and writes wait
for a token bucket first, to leave bandwidth for uploads and hydration.

The steps of one object, and what is left when the process dies after each:

1. read the sources (checksum, batch headers, every batch's CRC, epoch): nothing is left;

2. publish ArchiveObjectPrepared: a prepared object that is not there; its time runs out;

3. write the object, if nothing is under its key: an object that is prepared; its time runs out, and it is deleted;

4. publish ArchiveObjectCommitted: if it gets through, the object is in the index and its sources are released by the
same record; if not, as after 3.

So the range is either archived or as before, and the next start archives it under a new id. A failure in between is
handled the same way: each id is used once, because the outcome of its write may be unknown.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog
from tenacity import AsyncRetrying, retry_if_exception_type, wait_fixed

from kafka_log.batch_digests import batch_digests, run_digest
from kafka_log.broker_files.leader_epoch_checkpoint import read_leader_epochs
from kafka_log.crc32c import crc32c
from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.record_batch import BatchSpan, CorruptBatchError, scan_batches, verify_batches
from kafka_log.segment_files import list_segments
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.archive_records import (
    ArchiveObjectCommitted,
    ArchiveObjectPrepared,
    ArchiveRecord,
)
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.publishable import MetadataPublisher
from metadata_topic.records.states import STARTED
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.archive_storage import ArchiveStorage
from plugin.errors import (
    RemoteResourceNotFoundError,
    RemoteSegmentCorruptError,
    RemoteStorageError,
    failure_label,
)
from plugin.format.archive_object import RUN_BYTES, OpenArchiveObject
from plugin.format.archive_object_id import ArchiveObjectId
from plugin.format.combined_segment import SealedCombinedSegment
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import CombinedSegmentId, RemoteWalLogSegmentMetadata
from plugin.store_loop import ask
from rlm.archive.archive_plan import PREPARED_TTL_MS, ArchiveLimits, ArchivePlan, LogView, PartitionPlanner, SourcePart
from rlm.write_path.commit.bandwidth import TokenBucket
from rlm.write_path.core.partition_schedule import PartitionSchedule, ScheduleIntervals
from rlm.write_path.metrics import ArchiveMetrics
from rlm.write_path.runtime import Runtime

T = TypeVar("T")

log = structlog.get_logger(__name__)

_PUBLISH_AGAIN_S = 0.5
_BACKLOG_LABEL = "publication_backlog"
_LOG_LABEL = "log_unreadable"
_IDLE_S = 3600.0


@dataclass(frozen=True, slots=True)
class ArchiveTaskLimits:
    """How much is archived at once, and how fast."""

    plan: ArchiveLimits
    bytes_per_s: int
    """Reads and writes together."""
    digests: bool = False
    """Whether runs have a SHA-256 in the metadata."""
    look_s: float = 60.0
    """How often a partition is looked at when there was nothing to do (guessed)."""
    retry_s: float = 1.0
    retry_max_s: float = 300.0
    threads: int = 2
    """How many sources are read at a time (guessed)."""
    prepared_ttl_ms: int = PREPARED_TTL_MS
    run_bytes: int = RUN_BYTES


@dataclass(frozen=True, slots=True)
class ArchiveSources:
    """The stores that the archive reads from, and the publisher it writes to."""

    cluster_id: str
    wal_storage: RemoteWalStorageManager
    wal: RemoteWalMetadataStore
    archive: ArchiveStore
    publisher: MetadataPublisher[ArchiveRecord]
    read_to_end: Callable[[], bool]
    """Blocks until the stores know everything that is in the metadata topic now; False if that fails."""
    topic_doubt: Callable[[], str] = str
    """The reason not to draw conclusions from what the metadata topic lacks; empty if there is none."""

    def metadata_is_whole(self) -> bool:
        """Return whether the stores have everything that was ever published; waits for it."""
        return self.read_to_end() and not self.topic_doubt()


@dataclass(frozen=True, slots=True)
class _CheckedPart:
    part: SourcePart
    records: memoryview
    batches: tuple[BatchSpan, ...]


@dataclass(slots=True)
class _Archived:
    planner: PartitionPlanner
    read_log: Callable[[], LogView | None]


class RLMArchiveTask:
    """The archiving of one agent incarnation. For the event loop, except `unsettled`."""

    def __init__(
        self,
        sources: ArchiveSources,
        storage: ArchiveStorage,
        first_writer_id: CombinedSegmentId,
        limits: ArchiveTaskLimits,
        metrics: ArchiveMetrics,
        runtime: Runtime,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`first_writer_id` is the id of the first archive object; ids of combined segments are counted separately."""
        self._sources = sources
        self._storage = storage
        self._next_writer_id = first_writer_id
        self._limits = limits
        self._metrics = metrics
        self._clocks = runtime.clocks
        self._sleep = sleep
        self._pool = runtime.pool(limits.threads, "rlm-archive")
        self._bucket = TokenBucket(limits.bytes_per_s)
        self._schedule = PartitionSchedule(ScheduleIntervals(limits.look_s, limits.retry_s, limits.retry_max_s))
        self._partitions: dict[TopicIdPartition, _Archived] = {}
        self._changed = asyncio.Event()
        self._unsettled: set[ArchiveObjectId] = set()

    @property
    def unsettled(self) -> frozenset[ArchiveObjectId]:
        """Objects whose commit may still come, or was published and not read back yet.

        A search for abandoned prepared objects must skip these, however old they are: a deletion after the commit would
        come when the sources are already released. Any thread may ask.
        """
        return frozenset(
            named for named in self._unsettled.copy() if self._sources.archive.state_of(named) in (None, STARTED)
        )

    def assign(self, partitions: Iterable[tuple[TopicIdPartition, Callable[[], LogView | None]]]) -> None:
        """Set the led partitions to archive, each with a function that reads its log; the function may block.

        The function returns None when the log is not there, and may raise LogDirectoryError or MalformedFileError.
        """
        wanted = dict(partitions)
        for gone in self._partitions.keys() - wanted.keys():
            del self._partitions[gone]
            self._schedule.remove(gone)
        for partition, read_log in wanted.items():
            known = self._partitions.get(partition)
            if known is not None:
                known.read_log = read_log
                continue
            planner = PartitionPlanner(partition, self._sources.wal, self._sources.archive, self._limits.plan)
            self._partitions[partition] = _Archived(planner, read_log)
            self._schedule.add(partition)
        self._changed.set()

    async def run(self) -> None:
        """Archive until cancelled."""
        while True:
            self._changed.clear()
            await self.run_due()
            next_s = self._schedule.next_time_s()
            wait_s = _IDLE_S if next_s is None else max(next_s - self._clocks.monotonic_s(), 0.0)
            waits = [asyncio.ensure_future(self._sleep(wait_s)), asyncio.create_task(self._changed.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def run_due(self) -> int:
        """Archive what is due now, one partition after the other. Returns how many objects were made."""
        made = 0
        while due := self._schedule.take_due(self._clocks.monotonic_s(), 1):
            made += await self._process(due[0])
        return made

    def close(self) -> None:
        """Shut down the pool; reads and writes under way may or may not finish."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _process(self, partition: TopicIdPartition) -> bool:
        """Archive the partition's next range. Returns whether an object was made."""
        archived = self._partitions.get(partition)
        plan = None
        try:
            if archived is not None:
                plan = await self._in_pool(self._plan, archived)
                if plan is not None:
                    object_id = await self._archive(plan)
                    if object_id is None:
                        archived.planner.found_empty(plan)
                    else:
                        archived.planner.published(object_id)
        except (RemoteStorageError, PublicationBacklogFullError, LogDirectoryError, MalformedFileError) as error:
            if archived is not None:
                archived.planner.reset()
            label = _label(error)
            self._metrics.failures.labels(label).inc()
            log.warning("archive_failed", partition=str(partition), reason=label, error=str(error))
            self._schedule.failed(partition, self._clocks.monotonic_s())
            return False
        self._schedule.succeeded(partition, self._clocks.monotonic_s(), more=plan is not None)
        return plan is not None

    def _plan(self, archived: _Archived) -> ArchivePlan | None:
        view = archived.read_log()
        return None if view is None else archived.planner.plan(view, self._clocks.wall_ms())

    async def _archive(self, plan: ArchivePlan) -> ArchiveObjectId | None:
        """Do the steps of the module's theory. None when the range is a hole of a compacted log."""
        parts = await self._read(plan)
        if not any(checked.batches for checked in parts):
            return None
        writer_id = self._next_writer_id
        self._next_writer_id = writer_id._replace(sequence=writer_id.sequence + 1)
        object_id = ArchiveObjectId(plan.topic_id_partition, plan.first_offset, plan.last_offset, writer_id)
        incarnation = writer_id.incarnation
        created_ms = self._clocks.wall_ms()
        sealed = await self._in_pool(self._seal, object_id, created_ms, parts)
        self._unsettled = {*self.unsettled, object_id}
        try:
            self._sources.publisher.publish(
                ArchiveObjectPrepared(object_id, incarnation, self._limits.prepared_ttl_ms, created_ms)
            )
            await self._wait_for_bandwidth(sealed.size_bytes)
            await self._in_pool(self._write, object_id, sealed)
            self._metrics.objects.inc()
            self._metrics.written_bytes.inc(sealed.size_bytes)
            await self._publish_for_sure(
                ArchiveObjectCommitted(
                    object_id, incarnation, sealed.entries, sealed.size_bytes, self._clocks.wall_ms()
                )
            )
        except (RemoteStorageError, PublicationBacklogFullError):
            self._unsettled.discard(object_id)
            raise
        log.info("archived", object=str(object_id), bytes=sealed.size_bytes, sources=len(plan.parts))
        return object_id

    async def _read(self, plan: ArchivePlan) -> list[_CheckedPart]:
        found: list[_CheckedPart | None] = [None] * len(plan.parts)
        todo: Iterator[tuple[int, SourcePart]] = iter(enumerate(plan.parts))

        async def work() -> None:
            for at, part in todo:
                found[at] = await self._read_part(part)

        workers = [asyncio.create_task(work()) for _ in range(min(self._limits.threads, len(plan.parts)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [part for part in found if part is not None]

    async def _read_part(self, part: SourcePart) -> _CheckedPart:
        """Read from the first source that is there and sound. Raises the last source's error."""
        for source in part.sources[:-1]:
            try:
                return await self._read_source(part, source)
            except (RemoteResourceNotFoundError, RemoteSegmentCorruptError) as error:
                self._metrics.failures.labels(failure_label(error)).inc()
                log.warning("archive_source_unusable", segment=str(source.combined_segment_id), error=str(error))
        return await self._read_source(part, part.sources[-1])

    async def _read_source(self, part: SourcePart, source: RemoteWalLogSegmentMetadata) -> _CheckedPart:
        size = source.entry.end_file_position - source.entry.start_file_position
        await self._wait_for_bandwidth(size)
        self._metrics.read_bytes.inc(size)
        return await self._in_pool(_fetch_and_check, self._sources.wal_storage, part, source)

    def _seal(self, object_id: ArchiveObjectId, created_ms: int, parts: list[_CheckedPart]) -> SealedCombinedSegment:
        cluster_id, limits = self._sources.cluster_id, self._limits
        building = OpenArchiveObject(cluster_id, object_id, created_ms, limits.run_bytes, digests=limits.digests)
        try:
            for checked in parts:
                building.append(checked.part.leader_epoch, checked.part.last_offset, checked.records, checked.batches)
            return building.seal()
        except ValueError as error:
            raise RemoteSegmentCorruptError("archive", str(object_id), str(error)) from error

    def _write(self, object_id: ArchiveObjectId, sealed: SealedCombinedSegment) -> None:
        ask(self._storage.write(object_id, sealed))

    async def _publish_for_sure(self, record: ArchiveRecord) -> None:
        """Publish, and retry as long as the process lives: metadata of a written object is never dropped."""
        is_full = retry_if_exception_type(PublicationBacklogFullError)
        async for attempt in AsyncRetrying(retry=is_full, wait=wait_fixed(_PUBLISH_AGAIN_S), sleep=self._sleep):
            with attempt:
                self._sources.publisher.publish(record)

    async def _wait_for_bandwidth(self, size_bytes: int) -> None:
        wait_s = self._bucket.take(size_bytes, self._clocks.monotonic_s())
        if wait_s > 0:
            await self._sleep(wait_s)

    async def _in_pool(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)


def log_view(directory: Path) -> LogView | None:
    """Read a partition directory's start offset and epochs; None when there is no segment (any more).

    The start is the first segment's; offsets below it that DeleteRecords removed may be archived as well. Raises
    MalformedFileError or LogDirectoryError.
    """
    try:
        segments = list_segments(directory)
        epochs = read_leader_epochs(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LogDirectoryError(directory, str(error)) from error
    return LogView(segments[0], epochs.entries) if segments else None


def _fetch_and_check(
    storage: RemoteWalStorageManager, part: SourcePart, source: RemoteWalLogSegmentMetadata
) -> _CheckedPart:
    """Read and check the batches of `part` in one source. Raises RemoteSegmentCorruptError when they are wrong."""
    entry = source.entry
    data = ask(
        storage.fetch_log_segment(
            source.combined_segment_id, entry.start_file_position, entry.end_file_position, source.custom_metadata
        )
    )
    fault = None
    batches: list[BatchSpan] = []
    if crc32c(data) != entry.crc32c:
        fault = "the checksum of the entry is wrong"
    else:
        try:
            batches = scan_batches(data, 0, len(data))
            fault = _fault_of(data, batches, part, source)
            if entry.sha256 and run_digest(batch_digests(data, batches)) != entry.sha256:
                fault = "the SHA-256 of the entry is wrong"
        except CorruptBatchError as error:
            fault = str(error)
    if fault is not None:
        raise RemoteSegmentCorruptError(
            "archive", str(source.combined_segment_id), f"{entry.topic_id_partition} from {entry.first_offset}: {fault}"
        )
    wanted = (batch for batch in batches if part.first_offset <= batch.base_offset <= part.last_offset)
    return _CheckedPart(part, memoryview(data), tuple(wanted))


def _fault_of(
    data: bytes, batches: list[BatchSpan], part: SourcePart, source: RemoteWalLogSegmentMetadata
) -> str | None:
    entry = source.entry
    if not batches or batches[-1].end != len(data) or verify_batches(data, batches) != len(batches):
        return "not whole, sound batches"
    for batch in batches:
        if batch.leader_epoch != entry.leader_epoch:
            return f"a batch of epoch {batch.leader_epoch} where {entry.leader_epoch} belongs"
        if batch.base_offset < entry.first_offset or batch.last_offset > entry.last_offset:
            return f"a batch at offset {batch.base_offset} is beyond the entry"
        for boundary in (part.first_offset, part.last_offset + 1):
            if batch.base_offset < boundary <= batch.last_offset:
                return f"the range is cut at {boundary}, inside of the batch at {batch.base_offset}"
    return None


def _label(error: Exception) -> str:
    if isinstance(error, RemoteStorageError):
        return failure_label(error)
    return _BACKLOG_LABEL if isinstance(error, PublicationBacklogFullError) else _LOG_LABEL
