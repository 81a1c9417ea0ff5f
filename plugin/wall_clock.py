"""The wall clock, in the only place that reads it; everything else takes a clock as a parameter.

Python's monotonic clock stands still while a machine is suspended. So it does for measuring and waiting, but what was
true some time ago may be over after that: its age is taken by `lasting_s`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass


def wall_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000  # noqa: TID251


def lasting_s() -> float:
    """Return seconds of a clock that is never set, and that also counts while the host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks that parts are given: one to measure durations, and one for times that are written down."""

    monotonic_s: Callable[[], float]
    wall_ms: Callable[[], int]
    """Milliseconds since 1970."""
