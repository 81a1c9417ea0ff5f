"""Declares dead what the led logs do not have. `rlm.lifecycle.failover` plans it."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import structlog

from kafka_log.errors import MalformedFileError
from kafka_log.leader_epoch_checkpoint import read_leader_epochs
from metadata_topic.records.declared_gaps import DeclaredGap
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.metadata_publisher import MetadataPublisher
from metadata_topic.records.publishable import Publishable
from metadata_topic.store.store import RemoteWalMetadataStore
from rlm.lifecycle.failover import FailoverPlanner
from rlm.write_path.assignment import Assignment
from rlm.write_path.metrics import LifecycleMetrics

log = structlog.get_logger(__name__)

_PARTITIONS_AT_ONCE = 100


class FailoverTask:
    """Use it in the event loop; files are read on `threads`."""

    def __init__(
        self,
        broker_id: int,
        store: RemoteWalMetadataStore,
        publisher: MetadataPublisher[Publishable],
        wall_ms: Callable[[], int],
        metrics: LifecycleMetrics,
        threads: Executor,
        declare_loss: Callable[[DeclaredGap], None],
    ) -> None:
        """`declare_loss` is called in the event loop with what a led log lost without an election."""
        loop = asyncio.get_running_loop()

        def declare(loss: DeclaredGap) -> None:
            loop.call_soon_threadsafe(declare_loss, loss)

        self._planner = FailoverPlanner(broker_id, store, declare)
        self._store = store
        self._publisher = publisher
        self._wall_ms = wall_ms
        self._metrics = metrics
        self._threads = threads
        self._led: Sequence[Assignment] = ()
        self.led_changed = asyncio.Event()

    def led(self, assignments: Sequence[Assignment]) -> None:
        """Set the partitions that are led here from now on."""
        if [a.topic_id_partition for a in assignments] != [a.topic_id_partition for a in self._led]:
            self.led_changed.set()
        self._led = tuple(assignments)

    async def run_once(self) -> bool:
        """Look at every led partition that has objects. Always True: unreadable logs are logged, and looked at
        again.
        """
        loop, led = asyncio.get_running_loop(), self._led
        self._planner.keep_only(assignment.topic_id_partition for assignment in led)
        stored = frozenset(await loop.run_in_executor(self._threads, self._store.topic_id_partitions))
        wanted = [assignment for assignment in led if assignment.topic_id_partition in stored]
        for start in range(0, len(wanted), _PARTITIONS_AT_ONCE):
            some = wanted[start : start + _PARTITIONS_AT_ONCE]
            await loop.run_in_executor(self._threads, self._declare_dead_of_all, some)
        return True

    def _declare_dead_of_all(self, assignments: Sequence[Assignment]) -> None:
        for assignment in assignments:
            self._declare_dead_of(assignment)

    def _declare_dead_of(self, assignment: Assignment) -> None:
        partition = assignment.topic_id_partition
        try:
            epochs = read_leader_epochs(assignment.directory)
        except (OSError, MalformedFileError) as error:
            log.warning("leader_epochs_not_read", partition=str(partition), error=str(error))
            return
        alone = assignment.is_only_replica
        for update in self._planner.plan(partition, epochs, self._wall_ms(), is_only_replica=alone):
            try:
                self._publisher.publish(update)
            except PublicationBacklogFullError:
                self._planner.untold(update)
                continue
            self._metrics.dead_entries.inc(len(update.entries))
            log.info(
                "dead_entries_published",
                partition=str(partition),
                segment=str(update.combined_segment_id),
                leader_epoch=update.leader_epoch,
                from_offset=min(entry.first_offset for entry in update.entries),
                to_offset=max(entry.last_offset for entry in update.entries) + 1,
            )
