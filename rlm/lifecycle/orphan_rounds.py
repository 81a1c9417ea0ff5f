"""Looks for orphans among the objects in this agent's care, and heals them with `rlm.lifecycle.orphan_task`."""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import Executor

import structlog

from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.metadata_publisher import MetadataPublisher
from metadata_topic.records.publishable import Publishable
from plugin.errors import RemoteStorageError
from rlm.lifecycle.orphan_task import OrphanTask
from rlm.lifecycle.orphans import Comparison, Kind, MetadataBehindError, skipped_because
from rlm.write_path.metrics import OrphanMetrics

log = structlog.get_logger(__name__)


class OrphanRounds:
    """Use it in the event loop; listings and healing block, on `threads`."""

    def __init__(
        self,
        task: OrphanTask,
        publisher: MetadataPublisher[Publishable],
        brokers: Callable[[], Collection[int]],
        heals: bool,
        metrics: OrphanMetrics,
        threads: Executor,
    ) -> None:
        self._task = task
        self._publisher = publisher
        self._brokers = brokers
        self._heals = heals
        self._metrics = metrics
        self._threads = threads

    async def run_once(self) -> bool:
        """Search once. False when the search must be repeated soon."""
        loop, brokers = asyncio.get_running_loop(), self._brokers()
        try:
            comparisons = await loop.run_in_executor(self._threads, self._task.compare, brokers)
            still = self._brokers()  # a listing takes time, so the care may have changed
            for comparison in (comparisons[broker_id] for broker_id in comparisons if broker_id in still):
                if self._heals and comparison.disagreements:
                    await loop.run_in_executor(self._threads, self._task.heal, comparison, self._publisher)
        except (RemoteStorageError, PublicationBacklogFullError, MetadataBehindError) as error:
            self._metrics.rounds_skipped.labels(skipped_because(error)).inc()
            log.warning("orphans_not_searched", error=str(error))
            return False
        self._tell(comparisons.values())
        return bool(brokers)

    def _tell(self, comparisons: Collection[Comparison]) -> None:
        for kind in Kind:
            count = sum(comparison.count(kind) for comparison in comparisons)
            waiting = sum(found.kind is kind for comparison in comparisons for found in comparison.waiting)
            self._metrics.waiting.labels(kind.value).set(waiting)
            self._metrics.found.labels(kind.value).set(count)
            if kind is Kind.LOST and count:
                self._metrics.lost_segments.inc(count)
                log.error("segments_lost", segments=count, reason="metadata knows them, the store does not have them")
