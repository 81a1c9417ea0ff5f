"""The wall clock, in the only place that reads it; everything else takes a clock as a parameter."""

import time


def wall_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000  # noqa: TID251
