"""Records when each of the agent's loops last did its work, because nothing else shows a loop that hangs or always
fails.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Gauge


class Loop(StrEnum):
    """The loops that run as long as the agent does; in shadow mode only those in `WITHOUT_STORE`."""

    LEADERSHIP = "leadership"
    """Kafka was asked for leadership."""
    PUBLICATION = "publication"
    """Nothing has waited too long in the metadata's queue."""
    CLUSTER = "cluster"
    """Kafka was asked for topics, replicas and retention."""
    FAILOVER = "failover"
    EXPIRATION = "expiration"
    ORPHANS = "orphans"


WITHOUT_STORE: Final = (Loop.LEADERSHIP, Loop.PUBLICATION)


class LoopTimes:
    """Records when each loop last did its work. Updated in the event loop; metrics may read on any thread."""

    def __init__(
        self, registry: CollectorRegistry, clock: Callable[[], float], running: Iterable[Loop] = tuple(Loop)
    ) -> None:
        """`clock` gives monotonic seconds; `running` are the loops that run: only they are shown, so that alerts
        fire for no other."""
        self._clock = clock
        self._succeeded_s = dict.fromkeys(Loop, clock())
        idle = Gauge(
            "remote_wal_loop_idle_seconds",
            "Time since a loop of the agent last did its work to the end, or since the agent began",
            ["loop"],
            registry=registry,
        )
        for loop in running:
            idle.labels(loop).set_function(partial(self.idle_s, loop))

    def succeeded(self, loop: str) -> None:
        """Record that a loop has just done its work. Raises ValueError for one that does not run."""
        self._succeeded_s[Loop(loop)] = self._clock()

    def idle_s(self, loop: Loop) -> float:
        """Return the seconds since a loop last did its work."""
        return self._clock() - self._succeeded_s[loop]
