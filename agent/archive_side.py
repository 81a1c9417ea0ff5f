"""The agent's archive: its storage manager, its task and the care of its objects, put together from the settings.

Off the data path, as all of the agent's own use of Kafka: when the archive's store is away, or refuses its settings,
nothing is archived, and everything else goes on.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import structlog

from agent.setting_types import milliseconds
from agent.settings import AgentSettings
from agent.transfer_limits import healing_limits
from metadata_topic.records.archive_records import ArchiveRecord
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.metadata_publisher import MetadataPublisher
from metadata_topic.store.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.archive_storage import ObjectArchiveStorage, load_archive_storage
from plugin.errors import RemoteStorageError
from plugin.loading import settings_under_prefix
from plugin.prices import PriceError, Prices
from plugin.remote_wal_storage_manager import RemoteWalStorageManager, StorageContext
from plugin.segment_metadata import CombinedSegmentId
from rlm.archive.archive_care import ArchiveCare, CareLimits, KnownLogs
from rlm.archive.archive_plan import ArchiveLimits, StoreEntries
from rlm.archive.archive_task import ArchiveAccess, ArchiveTaskLimits, RLMArchiveTask, log_view
from rlm.archive.stored_runs import ArchiveLinks
from rlm.lifecycle.orphans import HealingLimits, MetadataBehindError, skipped_because
from rlm.write_path.assignment import Assignment
from rlm.write_path.combine_task import Clocks
from rlm.write_path.metrics import ArchiveMetrics
from rlm.write_path.partition_schedule import ScheduleIntervals

log = structlog.get_logger(__name__)

_STORAGE_RETRY_S = 30.0
_ORPHANS_RETRY_S = 60.0
_FEW = 10
"""Archive objects are large and few: so many may go whatever their share is."""


@dataclass(frozen=True, slots=True)
class ArchiveParts:
    """What the archive shares with the rest of the agent."""

    wal_storage: RemoteWalStorageManager
    wal: RemoteWalMetadataStore
    archive: ArchiveStore
    publisher: MetadataPublisher[ArchiveRecord]
    metrics: ArchiveMetrics
    clocks: Clocks
    read_to_end: Callable[[], bool]
    """Blocks until the stores know all that is in the metadata topic now; False when that could not be had."""
    topic_doubt: Callable[[], str] = str
    """What speaks against concluding from what the metadata topic does not tell; empty when nothing does."""

    def metadata_is_whole(self) -> bool:
        """Whether the stores know all that was ever told."""
        return self.read_to_end() and not self.topic_doubt()


@dataclass(frozen=True, slots=True)
class CareDuties:
    """What this agent takes care of now, and what it knows of the logs."""

    incarnations: Mapping[int, int]
    """Broker id to the incarnation that is registered for its objects, where this agent is the caretaker; empty as
    long as the metadata topic was not read beyond that registration."""
    logs: KnownLogs


def archive_links(settings: AgentSettings, archive: ArchiveStore, prices: Prices) -> ArchiveLinks | None:
    """What links to archive objects are found by; None when the agent's own archive is off.

    Then it still knows of objects, but its peers may not be able to read them either. Where reading from the archive
    never pays, topics with the policy `always` alone are given such links.
    """
    if not settings.archive.enable:
        return None
    requests = prices.of_storage_manager(settings.archive.storage_manager_class_name)
    try:
        min_run_bytes = prices.get_break_even_bytes(requests)
    except PriceError as error:
        log.warning("archive_links_never_pay", reason=str(error))
        min_run_bytes = sys.maxsize
    return ArchiveLinks(archive, min_run_bytes)


class ArchiveSide:
    """Use it in the event loop."""

    def __init__(
        self,
        settings: AgentSettings,
        raw_properties: Mapping[str, str],
        context: StorageContext,
        first_writer_id: CombinedSegmentId,
        parts: ArchiveParts,
        duties: Callable[[], CareDuties],
    ) -> None:
        """`duties` is called on a thread, before each round of care."""
        self._settings = settings
        self._raw = raw_properties
        self._context = context
        self._first_writer_id = first_writer_id
        self._parts = parts
        self._duties = duties
        self._assignments: list[Assignment] = []
        self._task: RLMArchiveTask | None = None
        self.storage: ObjectArchiveStorage | None = None
        """None until the archive's store has answered."""
        self.missing: str | None = "no answer yet"
        """Why there is no storage; None when there is."""

    @property
    def next_writer_id(self) -> CombinedSegmentId:
        """For the next object, in the place of this one."""
        return self._first_writer_id if self._task is None else self._task.next_writer_id

    def assign(self, assignments: Iterable[Assignment]) -> None:
        """The partitions that are led here now; those with the archive on are archived."""
        self._assignments = [assignment for assignment in assignments if assignment.archive]
        if self._task is not None:
            self._task.assign(
                (found.topic_id_partition, partial(log_view, found.directory)) for found in self._assignments
            )

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Archive until cancelled, whether or not the store is there.

        Leaves what is under way as it is: a prepared object runs out of time. The store may be read from until `close`.
        """
        while (storage := await asyncio.to_thread(self._load)) is None:
            await sleep(_STORAGE_RETRY_S)
        self.storage = storage
        self._task = task = self._make_task(storage)
        self.assign(self._assignments)
        care = ArchiveCare(
            self._parts.archive,
            storage,
            self._parts.publisher,
            self._care_limits(),
            self._parts.metrics,
            self._parts.wal.knows_incarnation,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(task.run())
            group.create_task(self._take_care(care, task, sleep))
            group.create_task(self._look_for_orphans(care, sleep))

    def close(self) -> None:
        """Let go of the store."""
        if self._task is not None:
            self._task.close()
        storage, self.storage = self.storage, None  # nobody begins to read from what is being closed
        if storage is not None:
            storage.close()

    async def _take_care(
        self, care: ArchiveCare, task: RLMArchiveTask, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        interval_s = self._settings.archive.care_interval_s
        while True:
            await asyncio.to_thread(self._care_once, care, task)
            await sleep(interval_s)

    def _care_once(self, care: ArchiveCare, task: RLMArchiveTask) -> None:
        unsettled = task.unsettled
        duties = self._duties()
        care.run_once(
            self._parts.clocks.wall_ms(), duties.incarnations, duties.logs, unsettled, self._parts.metadata_is_whole
        )

    async def _look_for_orphans(self, care: ArchiveCare, sleep: Callable[[float], Awaitable[None]]) -> None:
        interval_s = self._settings.lifecycle.orphans_interval_s
        while True:
            searched = await asyncio.to_thread(self._search_orphans, care)
            await sleep(interval_s if searched else min(interval_s, _ORPHANS_RETRY_S))

    def _search_orphans(self, care: ArchiveCare) -> bool:
        """Find them, and heal them where that is on; False when it is to be tried again soon."""
        incarnations = self._duties().incarnations
        now_ms = self._parts.clocks.wall_ms()
        if not incarnations:
            return False
        try:
            found = care.find_orphans(now_ms, incarnations, self._parts.read_to_end)
            doubt = found.doubt(self._parts.topic_doubt(), self._healing_limits())
            if found.objects or found.metadata or found.of_unknown_writers:
                log.warning("archive_disagrees", objects=len(found.objects), metadata=len(found.metadata))
            if doubt or found.of_unknown_writers:
                log.error(
                    "archive_orphans_not_healed",
                    objects=len(found.objects) + len(found.of_unknown_writers),
                    metadata=len(found.metadata),
                    reason=doubt or "their writers' registrations are not known either",
                    hint="remote-wal metadata rebuild",
                )
            if not doubt and self._settings.lifecycle.orphans_heal_enable:
                care.heal(found, now_ms, incarnations)
        except (RemoteStorageError, PublicationBacklogFullError, MetadataBehindError) as error:
            self._parts.metrics.orphan_rounds_skipped.labels(skipped_because(error)).inc()
            log.warning("archive_orphans_not_searched", error=str(error))
            return False
        return True

    def _healing_limits(self) -> HealingLimits:
        limits = healing_limits(self._settings)
        return replace(limits, min_objects=min(_FEW, limits.min_objects))

    def _load(self) -> ObjectArchiveStorage | None:
        settings = self._settings
        prefix = settings.archive.storage_manager_impl_prefix
        try:
            storage = load_archive_storage(
                settings.archive.storage_manager_class_name,
                settings.archive.storage_manager_class_path,
                settings_under_prefix(self._raw, prefix),
                self._context,
                prefix,
            )
        except RemoteStorageError as error:
            self.missing = str(error)
            log.warning("archive_storage_not_there", error=str(error), consequence="nothing is archived")
            return None
        self.missing = None
        log.info("archive_storage_ready", manager=settings.archive.storage_manager_class_name)
        return storage

    def _make_task(self, storage: ObjectArchiveStorage) -> RLMArchiveTask:
        parts = self._parts
        return RLMArchiveTask(
            ArchiveAccess(
                self._context.cluster_id, parts.wal_storage, storage, StoreEntries(parts.wal), parts.archive,
                parts.publisher,
            ),
            self._first_writer_id,
            self._task_limits(),
            parts.metrics,
            parts.clocks,
        )  # fmt: skip

    def _task_limits(self) -> ArchiveTaskLimits:
        settings = self._settings
        return ArchiveTaskLimits(
            ArchiveLimits(
                settings.archive.object_min_bytes,
                settings.archive.object_max_bytes,
                milliseconds(settings.archive.object_max_age_s),
            ),
            ScheduleIntervals(
                settings.archive.task_interval_s,
                settings.archive.task_retry_interval_s,
                settings.archive.task_retry_interval_max_s,
            ),
            settings.archive.bytes_per_second,
            settings.archive.thread_pool_size,
            milliseconds(settings.archive.prepared_ttl_s),
            settings.archive.object_run_bytes,
        )

    def _care_limits(self) -> CareLimits:
        settings = self._settings
        return CareLimits(
            milliseconds(settings.archive.delete_grace_s),
            milliseconds(settings.metadata.topic_retention_s) // 3,
            milliseconds(settings.archive.prepared_ttl_s),
        )
