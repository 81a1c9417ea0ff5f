"""The wall clock, in the one place that asks for it; all else takes a clock as a parameter."""

import time


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000  # noqa: TID251
