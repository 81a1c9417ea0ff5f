"""The wall clock, in the only place that reads it; everything else takes a clock as a parameter."""

import time
from collections.abc import Callable
from dataclasses import dataclass


def wall_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000  # noqa: TID251


@dataclass(frozen=True, slots=True)
class Clocks:
    """One clock to measure with, and one for times that are written down."""

    monotonic_s: Callable[[], float]
    wall_ms: Callable[[], int]
    """Milliseconds since 1970."""
