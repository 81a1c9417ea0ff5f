"""Bounds how far this host's clock is off the store's.

Theory. Ages tell what is deleted, and the times that are compared come from several hosts and the store. A host that
started with a wrong clock takes young objects for old ones. The store tells of each object when it wrote it. Where the
write lay between two monotonic times of this process, that bounds how late it is at the store, from then on, whatever
is done to the host's clock. A host that was suspended counts as off until the next reading. Sans-IO.
"""

from typing import Final

_RESOLUTION_MS: Final = 1000
"""Stores tell whole seconds."""


class StoreClock:
    """Keeps the last write whose time the store told. Times in seconds are monotonic."""

    def __init__(self) -> None:
        self._reading: tuple[int, float, float] | None = None

    def was_written(self, last_modified_ms: int | None, before_s: float, after_s: float) -> None:
        """Note when the store says a write was, which lay between these times; None: it does not say."""
        if last_modified_ms is not None:
            self._reading = last_modified_ms, before_s, after_s

    def ahead_ms(self, wall_ms: int, now_s: float) -> int:
        """Return how far the host's clock is ahead at least; below 0: behind; 0 if both may agree or unknown."""
        if self._reading is None:
            return 0
        written_ms, before_s, after_s = self._reading
        earliest_ms = written_ms + int((now_s - after_s) * 1000)
        latest_ms = written_ms + int((now_s - before_s) * 1000) + _RESOLUTION_MS
        return max(0, wall_ms - latest_ms) + min(0, wall_ms - earliest_ms)
