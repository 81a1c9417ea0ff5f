"""The archive of one agent: its store, its task and the care of its objects.

It is not on the data path: when the archive's store is away or refuses its settings, only archiving stops.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import structlog

from plugin.archive_storage import ArchiveStorage
from plugin.loading import until_loaded
from plugin.segment_metadata import CombinedSegmentId
from rlm.archive.archive_care import ArchiveCare, CareDuties, CareLimits
from rlm.archive.archive_task import ArchiveSources, ArchiveTaskLimits, RLMArchiveTask, log_view
from rlm.lifecycle.orphans import ORPHANS_S, pause_s
from rlm.write_path.assignment import Assignment
from rlm.write_path.metrics import ArchiveMetrics
from rlm.write_path.runtime import Runtime

T = TypeVar("T")

log = structlog.get_logger(__name__)

_CARE_THREADS = 2
"""One for care, one for the search for orphans."""


@dataclass(frozen=True, slots=True)
class ArchivingLimits:
    """How much is archived and deleted at once, and how often."""

    task: ArchiveTaskLimits
    care: CareLimits = field(default_factory=CareLimits)
    care_interval_s: float = 30.0
    """How often it looks for objects that may be deleted (guessed)."""
    orphans_interval_s: float = ORPHANS_S


class Archiving:
    """Runs the archive's tasks. For the event loop."""

    def __init__(
        self,
        load: Callable[[], ArchiveStorage],
        first_writer_id: CombinedSegmentId,
        sources: ArchiveSources,
        limits: ArchivingLimits,
        duties: Callable[[], CareDuties],
        metrics: ArchiveMetrics,
        runtime: Runtime,
    ) -> None:
        """`load` blocks, and raises RemoteStorageError; `duties` is called on a thread, before each round of care."""
        self._load = load
        self._first_writer_id = first_writer_id
        self._sources = sources
        self._limits = limits
        self._duties = duties
        self._metrics = metrics
        self._runtime = runtime
        self._threads = runtime.pool(_CARE_THREADS, "rlm-archive-care")
        self._assignments: list[Assignment] = []
        self._task: RLMArchiveTask | None = None
        self.storage: ArchiveStorage | None = None
        """None until the archive's store has answered."""
        self.missing: str | None = "no answer yet"
        """Why there is no storage; None when there is."""

    def assign(self, assignments: Iterable[Assignment]) -> None:
        """Set the partitions that are led here now; those with the archive on are archived."""
        self._assignments = [assignment for assignment in assignments if assignment.archive]
        if self._task is not None:
            self._task.assign(
                (found.topic_id_partition, partial(log_view, found.directory)) for found in self._assignments
            )

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Archive until cancelled; while the object store cannot be loaded, retry.

        Work under way is dropped: a prepared object is deleted after its time to live. The store may be read until
        `close`.
        """
        load = partial(self._in_thread, self._load)
        storage = await until_loaded(load, self._is_missing, "nothing is archived", sleep)
        self.storage, self.missing = storage, None
        log.info("archive_storage_ready")
        self._task = task = RLMArchiveTask(
            self._sources, storage, self._first_writer_id, self._limits.task, self._metrics, self._runtime
        )
        self.assign(self._assignments)
        care = ArchiveCare(self._sources, storage, self._limits.care, self._metrics)
        async with asyncio.TaskGroup() as group:
            group.create_task(task.run())
            group.create_task(self._take_care(care, task, sleep))
            group.create_task(self._look_for_orphans(care, sleep))

    def close(self) -> None:
        """Close the store."""
        if self._task is not None:
            self._task.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        storage, self.storage = self.storage, None  # so that nobody begins to read from a store that is being closed
        if storage is not None:
            storage.close()

    def _is_missing(self, failure: str) -> None:
        self.missing = failure

    async def _take_care(
        self, care: ArchiveCare, task: RLMArchiveTask, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        while True:
            await self._in_thread(self._care_once, care, task)
            await sleep(self._limits.care_interval_s)

    def _care_once(self, care: ArchiveCare, task: RLMArchiveTask) -> None:
        unsettled = task.unsettled
        care.run_once(self._runtime.clocks.wall_ms(), self._duties(), unsettled)

    async def _look_for_orphans(self, care: ArchiveCare, sleep: Callable[[float], Awaitable[None]]) -> None:
        while True:
            searched = await self._in_thread(self.search_orphans, care)
            await sleep(pause_s(searched, self._limits.orphans_interval_s))

    def search_orphans(self, care: ArchiveCare) -> bool:
        """Find orphans and heal them, for whose objects this agent cares for now. Blocks. Returns False if that
        failed."""
        incarnations = self._duties().incarnations
        return care.search_orphans(self._runtime.clocks.wall_ms(), incarnations)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
