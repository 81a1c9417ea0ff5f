"""Virtual time for models: what happens when, in order."""

import heapq
from collections.abc import Callable
from itertools import count


class Timeline:
    """Two things at one time happen in the order in which they were asked for."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._tickets = count()

    def at(self, when_s: float, happens: Callable[[], None]) -> None:
        """Have it happen then."""
        heapq.heappush(self._events, (when_s, next(self._tickets), happens))

    def run(self, until_s: float) -> None:
        """Have everything happen until then."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, happens = heapq.heappop(self._events)
            happens()
