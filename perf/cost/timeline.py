"""Virtual time for models: runs events in the order of their times."""

import heapq
from collections.abc import Callable
from itertools import count


class Timeline:
    """Runs events; two events at one time run in the order in which they were scheduled."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._tickets = count()

    def at(self, when_s: float, happens: Callable[[], None]) -> None:
        """Schedule an event."""
        heapq.heappush(self._events, (when_s, next(self._tickets), happens))

    def run(self, until_s: float) -> None:
        """Run all events until then."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, happens = heapq.heappop(self._events)
            happens()
