"""Links for followers that are far behind: for batches that the link index has dropped or never had.

When a follower asks for what was uploaded long ago, or by an earlier incarnation or leader, its response waits while a
thread reads the next entries of the metadata store and proves them (`rlm.archive.stored_runs`). Their batches then go
into `FoundBatches`, beside the link index, and `LinkPlanner` links them like any others. Reading continues ahead of the
follower, and its agent is told which ranges will be requested, so that it reads them in parallel. `ReadAhead` decides
what to read and how far ahead.

Used from the event loop only.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

import structlog

from kafka_log.errors import LogDirectoryError, MalformedFileError
from plugin.format.archive_object_id import StoredObjectId
from replication.leader.link_index import FoundBatches, LinkIndex, StoredLogs
from replication.leader.read_ahead import CatchUpLimits, ReadAhead, WantedRead
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_protocol import PeerCapabilities
from rlm.write_path.core.led_views import FoundRuns
from rlm.write_path.runtime import thread_pool

log = structlog.get_logger(__name__)

_THREADS = 1
"""One thread: the log is read from the page cache, where the broker's own read has just put it, or from one disk."""

Announce = Callable[[StoredObjectId, list[tuple[int, int]], bytes], None]
"""Tells the follower's agent that it will get links to these ranges of an object with this custom metadata."""


class CatchUp:
    """Finds older batches of led logs in objects, on one thread, for all connections of a leader's agent."""

    def __init__(
        self,
        index: LinkIndex,
        logs: StoredLogs,
        limits: CatchUpLimits,
        metrics: ReplicationMetrics,
        clock: Callable[[], float],
        pool: Callable[[int, str], Executor] = thread_pool,
    ) -> None:
        """`index` is the agent's link index; `pool` makes a pool of so many threads with that name."""
        self.limits = limits
        self.metrics = metrics
        self.found = FoundBatches(index, logs, limits.max_batches, clock)
        self._logs = logs
        self._pool = pool(_THREADS, "catch-up")

    async def read(self, wanted: WantedRead) -> FoundRuns:
        """Find the runs that `wanted` names, and add their batches to the index. Raises like
        `rlm.archive.stored_runs`."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._pool, self._logs.runs, wanted.log, wanted.offset, self.limits.read_bytes, wanted.archive
        )
        if not wanted.is_dropped:
            for run in found.runs:
                self.found.list_run(wanted.log.topic_id_partition, run)
        return found

    def close(self) -> None:
        """Abandon the reads under way."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class FollowerCatchUp:
    """Carries out the reads that one follower's `ReadAhead` plans."""

    def __init__(
        self, shared: CatchUp, announce: Announce, notify: Callable[[], None], capabilities: PeerCapabilities
    ) -> None:
        """`notify` wakes waiting responses; `capabilities` are those that both agents have."""
        self._shared = shared
        self._announce = announce
        self._notify = notify
        self._tasks: set[asyncio.Task[None]] = set()
        links_archive = PeerCapabilities.ARCHIVE_LINKS in capabilities
        self.plan = ReadAhead(shared.found, shared.limits, shared.metrics, links_archive)

    def begin_reads(self) -> None:
        """Start the reads that the plan asks for now."""
        for wanted in self.plan.take_wanted():
            if not wanted.is_dropped:
                task = asyncio.get_running_loop().create_task(self._read(wanted), name="catch-up")
                self._tasks.add(task)
                task.add_done_callback(self._ended)

    async def _read(self, wanted: WantedRead) -> None:
        found = FoundRuns([])
        try:
            found = await self._shared.read(wanted)
        except (LogDirectoryError, MalformedFileError) as error:
            self._shared.metrics.fault("catch_up_log_unreadable")
            log.warning("catch_up_log_unreadable", partition=str(wanted.log.topic_id_partition), error=str(error))
        finally:  # also after a defect: waiting responses must continue without the runs
            custom_metadata = {run.object_id: run.custom_metadata for run in found.runs}
            for object_id, ranges in self.plan.was_read(wanted, found).items():
                self._announce(object_id, ranges, custom_metadata[object_id])
            self._notify()
            self.begin_reads()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (defect := task.exception()) is not None:
            self._shared.metrics.fault("catch_up_defect")
            log.error("catch_up_defect", error=str(defect), exc_info=defect)

    def close(self) -> None:
        """End the plan and its reads, because the connection ended."""
        self.plan.close()
        for task in self._tasks:
            task.cancel()
