"""The time, as it is handed to all that needs it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """The time to measure with, and the time to write down."""

    monotonic_s: Callable[[], float]
    wall_ms: Callable[[], int]
    """Milliseconds since 1970."""
