"""Runs parts beside relaying: one that fails is restarted, and affects neither relaying nor the other parts.

A part is a coroutine function that makes what it needs, runs until it is cancelled, and releases everything on its way
out. So nothing that failed is used again: the next run makes everything new. The first pause is short, because most
defects come from one rare input; it doubles while the part fails again soon. Cancellation ends a part in order.
Exceptions that are no Exception (an interrupt, the process's end) pass through.

Belongs to the event loop; `down` may be read on any thread.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry, Counter

log = structlog.get_logger(__name__)

STARTING = "starting"
"""Why an agent is not ready while its parts are made."""

Run = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BackOff:
    """Pauses between a part's failure and its next run, in seconds."""

    first_s: float = 1.0
    max_s: float = 60.0
    well_after_s: float = 60.0
    """After a run of so long, the next failure counts as a first one."""


class Supervisor:
    """Runs the agent's parts side by side, and restarts one that fails."""

    def __init__(
        self,
        registry: CollectorRegistry,
        back_off: BackOff | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._failures = Counter(
            "remote_wal_part_failures",
            "Times that a part of the agent failed by a defect and was restarted",
            ["part"],
            registry=registry,
        )
        self._back_off = back_off or BackOff()
        self._clock = clock
        self._sleep = sleep
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._down: dict[str, str] = {}

    @property
    def down(self) -> dict[str, str]:
        """The parts that failed and wait for their restart, with the error that ended them."""
        return dict(self._down)

    def start(self, part: str, run: Run) -> asyncio.Task[None]:
        """Run this part until `stop`, restarting it when it fails. A part that returns is not run again."""
        task = self._tasks[part] = asyncio.get_running_loop().create_task(self._keep(part, run), name=part)
        return task

    async def stop(self, part: str) -> None:
        """End a part, if it runs. Returns when it has released everything."""
        task = self._tasks.pop(part, None)
        if task is None:
            return
        self._ending.add(part)
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        self._ending.discard(part)
        self._down.pop(part, None)
        if isinstance(ended, Exception):
            self._tell(part, ended, "it was being ended")

    async def stop_all(self, but: str) -> None:
        """End all parts except `but`, the last started first."""
        for part in reversed([one for one in self._tasks if one != but]):
            await self.stop(part)

    async def _keep(self, part: str, run: Run) -> None:
        pause_s = self._back_off.first_s
        while True:
            begun_s = self._clock()
            try:
                await run()
            except Exception as defect:
                if part in self._ending:  # it was cancelled, and failed on its way out
                    raise
                if self._clock() - begun_s >= self._back_off.well_after_s:
                    pause_s = self._back_off.first_s
                cause = root_cause(defect)
                self._down[part] = f"{type(cause).__name__}: {cause}"
                self._tell(part, defect, "relaying goes on without it", again_in_s=pause_s)
            else:
                return
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, self._back_off.max_s)
            del self._down[part]

    def _tell(self, part: str, defect: Exception, consequence: str, **fields: float) -> None:
        self._failures.labels(part).inc()
        log.error("part_failed", part=part, consequence=consequence, exc_info=defect, **fields)


def root_cause(defect: BaseException) -> BaseException:
    """Return the first exception of a group of exceptions, or of groups in it."""
    while isinstance(defect, BaseExceptionGroup):
        defect = defect.exceptions[0]
    return defect
