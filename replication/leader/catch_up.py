"""Links for followers that are far behind: batches that the link index no longer holds, or never did.

When a follower asks for what was uploaded long ago, by an earlier incarnation or by an earlier leader, its response
waits while the next entries of the metadata store are read and proved in a thread (`rlm.archive.stored_runs`); then
their batches stand in `FoundBatches`, beside the link index, and `LinkPlanner` links them as any. Reading goes on ahead
of the follower, and its agent is told which ranges will be asked for, so that it reads them side by side: what to read,
and how far ahead, is for `ReadAhead` to say.

Used from the event loop alone.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

import structlog

from kafka_log.errors import LogDirectoryError, MalformedFileError
from plugin.format.archive_object_id import StoredObjectId
from replication.leader.found_batches import FoundBatches, StoredLogs
from replication.leader.link_index import LinkIndex
from replication.leader.read_ahead import CatchUpLimits, ReadAhead, WantedRead
from replication.wire.metrics import ReplicationMetrics
from replication.wire.peer_protocol import PeerCapabilities
from rlm.write_path.core.led_views import FoundRuns
from rlm.write_path.machine import thread_pool

log = structlog.get_logger(__name__)

_THREADS = 1
"""The log is read from the page cache, where the broker's own read has just put it, or from one disk."""

Announce = Callable[[StoredObjectId, list[tuple[int, int]], bytes], None]
"""Tell the follower's agent that it will be given links to these ranges of an object with this custom metadata."""


class CatchUp:
    """What all connections of a leader's agent share: the batches that were found again, and the thread that finds."""

    def __init__(
        self,
        index: LinkIndex,
        logs: StoredLogs,
        limits: CatchUpLimits,
        metrics: ReplicationMetrics,
        clock: Callable[[], float],
        pool: Callable[[int, str], Executor] = thread_pool,
    ) -> None:
        """`index` is the agent's link index; `pool` makes so many threads of that name."""
        self.limits = limits
        self.metrics = metrics
        self.found = FoundBatches(index, logs, limits.max_batches, clock)
        self._logs = logs
        self._pool = pool(_THREADS, "catch-up")

    async def read(self, wanted: WantedRead) -> FoundRuns:
        """The runs, whose batches can be found from now on. Raises as `rlm.archive.stored_runs`."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._pool, self._logs.runs, wanted.log, wanted.offset, self.limits.read_bytes, wanted.archive
        )
        if not wanted.is_dropped:
            for run in found.runs:
                self.found.list_run(wanted.log.topic_id_partition, run)
        return found

    def close(self) -> None:
        """Reads under way are abandoned."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class FollowerCatchUp:
    """One follower's connection: makes the reads that its `ReadAhead` wants."""

    def __init__(
        self, shared: CatchUp, announce: Announce, notify: Callable[[], None], capabilities: PeerCapabilities
    ) -> None:
        """`notify` has waiting responses look again; `capabilities` are those that both agents have."""
        self._shared = shared
        self._announce = announce
        self._notify = notify
        self._tasks: set[asyncio.Task[None]] = set()
        links_archive = PeerCapabilities.ARCHIVE_LINKS in capabilities
        self.plan = ReadAhead(shared.found, shared.limits, shared.metrics, links_archive)

    def begin_reads(self) -> None:
        """Those that the plan wants by now."""
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
        finally:  # also after a defect: who waits must go on without
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
        """The connection ended."""
        self.plan.close()
        for task in self._tasks:
            task.cancel()
