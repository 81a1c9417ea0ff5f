"""Runs the tasks for combined segments after their upload: failover, care of nodes, expiration, orphans.

None of them is on the path of replication, and all wait until the metadata topic was read to its end. While the cluster
or the store does not answer, everything stays as it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import structlog

from rlm.lifecycle.cluster_observer import ClusterWatch
from rlm.lifecycle.expiration import RLMWalExpirationTask
from rlm.lifecycle.failover import FailoverTask
from rlm.lifecycle.object_ownership import Caretaking
from rlm.lifecycle.orphans import OrphanRounds, pause_s
from rlm.write_path.assignment import Assignment

log = structlog.get_logger(__name__)

_METADATA_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class LifecycleIntervals:
    """Intervals in seconds (guessed)."""

    failover_s: float = 10.0
    """Looks for entries of older leaders that the logs do not have; also at each change of leadership."""
    cluster_s: float = 30.0
    """Asks for topics, their retention and log start offsets."""
    expiration_s: float = 5.0
    """Looks for objects that may be deleted."""
    orphans_s: float = 6 * 3600.0
    """Compares the store's listing with the metadata."""


class Lifecycle:
    """Runs the tasks. Use it in the event loop."""

    def __init__(
        self,
        failover: FailoverTask,
        cluster: ClusterWatch,
        caretaking: Caretaking,
        expiration: RLMWalExpirationTask,
        orphans: OrphanRounds,
        metadata_was_read: Callable[[float], bool],
        threads: Executor,
        succeeded: Callable[[str], None] = lambda _loop: None,
    ) -> None:
        """`metadata_was_read` blocks for at most so many seconds; `threads` are shut down at the end of `run`.

        `succeeded` is called with the name of a task that did its work.
        """
        self._failover = failover
        self._cluster = cluster
        self._caretaking = caretaking
        self._expiration = expiration
        self._orphans = orphans
        self._intervals = LifecycleIntervals()
        self._metadata_was_read = metadata_was_read
        self._threads = threads
        self._succeeded = succeeded
        self.brokers_to_care_for = caretaking.brokers
        """Returns the brokers whose objects this agent may delete now; any thread may ask."""

    def set_led(self, assignments: Sequence[Assignment]) -> None:
        """Set the partitions that are led here from now on."""
        self._failover.set_led(assignments)

    async def run(self) -> None:
        """Run the tasks until cancelled; another object's next run continues what is half done."""
        try:
            await self.run_tasks()
        finally:
            self._expiration.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def run_tasks(self) -> None:
        """Run the tasks until cancelled, and leave all resources open."""
        loop = asyncio.get_running_loop()
        while not await loop.run_in_executor(self._threads, self._metadata_was_read, _METADATA_WAIT_S):
            log.info("lifecycle_waits", reason="the metadata topic is not read yet")
        intervals, changed = self._intervals, self._failover.led_changed
        async with asyncio.TaskGroup() as group:
            group.create_task(self._repeat("failover", self._failover.run_once, intervals.failover_s, changed))
            group.create_task(self._repeat("cluster", self._cluster.run_once, intervals.cluster_s))
            group.create_task(self._repeat("expiration", self._expiration.run_once, intervals.expiration_s))
            group.create_task(self._look_for_orphans())

    async def _look_for_orphans(self) -> None:
        await self._caretaking.cluster_seen.wait()
        while True:
            searched = await self._orphans.run_once()
            if searched:
                self._succeeded("orphans")
            await asyncio.sleep(pause_s(searched, self._intervals.orphans_s))

    async def _repeat(
        self, task: str, step: Callable[[], Awaitable[bool]], interval_s: float, sooner: asyncio.Event | None = None
    ) -> None:
        sooner = sooner or asyncio.Event()
        while True:
            sooner.clear()
            if await step():
                self._succeeded(task)
            try:
                async with asyncio.timeout(interval_s):
                    await sooner.wait()
            except TimeoutError:
                continue
