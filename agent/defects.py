"""Parts that stand beside relaying: one that fails is begun anew, and takes neither relaying nor the others with it.

Theory. A part is a coroutine function that makes what it needs, runs until it is cancelled, and lets go of all of it on
its way out. So what failed is never used again half broken: the next run makes everything anew. The first pause is
short, as most defects are met by one rare input; it doubles while the part fails again soon. Cancellation ends a part
in order. What is not an Exception (an interrupt, the process's end) is nobody's defect, and goes through.

Belongs to the event loop; `down` may be read on any thread.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry, Counter

log = structlog.get_logger(__name__)

Run = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class BackOff:
    """Between a part's failure and its next run, in seconds."""

    first_s: float = 1.0
    max_s: float = 60.0
    well_after_s: float = 60.0
    """A part that ran for so long was well: its next failure is a first one."""


class Supervisor:
    """Runs parts side by side. See the module's theory."""

    def __init__(
        self,
        registry: CollectorRegistry,
        back_off: BackOff | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._failures = Counter(
            "remote_wal_part_failures",
            "Times that a part of the agent failed by a defect and was begun anew",
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
        """The parts that failed and have not begun anew yet, with what ended them."""
        return dict(self._down)

    def start(self, part: str, run: Run) -> asyncio.Task[None]:
        """Run this part from now on, until `stop`. One that returns is done."""
        task = self._tasks[part] = asyncio.get_running_loop().create_task(self._keep(part, run), name=part)
        return task

    async def stop(self, part: str) -> None:
        """End it in order; nothing happens when it is not there. Returns when it has let go of what it had."""
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

    async def _keep(self, part: str, run: Run) -> None:
        pause_s = self._back_off.first_s
        while True:
            begun_s = self._clock()
            try:
                await run()
            except Exception as defect:
                if part in self._ending:  # it was cancelled, and met this on its way out
                    raise
                if self._clock() - begun_s >= self._back_off.well_after_s:
                    pause_s = self._back_off.first_s
                self._down[part] = _cause(defect)
                self._tell(part, defect, "relaying goes on without it", again_in_s=pause_s)
            else:
                return
            await self._sleep(pause_s)
            pause_s = min(2 * pause_s, self._back_off.max_s)
            del self._down[part]

    def _tell(self, part: str, defect: Exception, consequence: str, **fields: float) -> None:
        self._failures.labels(part).inc()
        log.error("part_failed", part=part, consequence=consequence, exc_info=defect, **fields)


def _cause(defect: BaseException) -> str:
    while isinstance(defect, BaseExceptionGroup):
        defect = defect.exceptions[0]
    return f"{type(defect).__name__}: {defect}"
