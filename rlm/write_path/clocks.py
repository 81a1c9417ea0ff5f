"""The clocks that are handed to everything that needs the time."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    """One clock to measure with, and one for times that are written down."""

    monotonic_s: Callable[[], float]
    wall_ms: Callable[[], int]
    """Milliseconds since 1970."""
