"""When each of the agent's loops last did its work: one that hangs, or fails each time, shows in nothing else."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial

from prometheus_client import CollectorRegistry, Gauge


class Loop(StrEnum):
    """What is done again and again, as long as the agent runs."""

    LEADERSHIP = "leadership"
    """Asked of Kafka."""
    PUBLICATION = "publication"
    """Nothing has waited for too long in the metadata's queue."""
    CLUSTER = "cluster"
    """Topics, replicas and retention asked of Kafka."""
    FAILOVER = "failover"
    EXPIRATION = "expiration"
    ORPHANS = "orphans"


class LoopTimes:
    """Told in the event loop; metrics ask on any thread."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._succeeded_s = dict.fromkeys(Loop, clock())
        idle = Gauge(
            "remote_wal_loop_idle_seconds",
            "Time since a loop of the agent last did its work to the end, or since the agent began",
            ["loop"],
            registry=registry,
        )
        for loop in Loop:
            idle.labels(loop).set_function(partial(self.idle_s, loop))

    def succeeded(self, loop: str) -> None:
        """It did its work, just now. Raises ValueError where there is no such loop."""
        self._succeeded_s[Loop(loop)] = self._clock()

    def idle_s(self, loop: Loop) -> float:
        """Since then."""
        return self._clock() - self._succeeded_s[loop]
