"""Virtual time for models: runs events in the order of their times, and says how long requests take."""

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Final

import numpy as np

_NOISY_P50_S: Final = 0.005
_NOISY_SIGMA: Final = math.log(20) / 2.326
"""The sigma of a lognormal time whose p99 is 20 times its p50: 100 ms."""
_STALL_EVERY_S: Final = 5.0
_STALL_S: Final = 0.2


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


class StoreTimes:
    """The times of requests: constant, or with a heavy tail on a machine that stalls now and then."""

    def __init__(self, seed: int, *, is_noisy: bool) -> None:
        self._random, self._is_noisy = np.random.default_rng(seed), is_noisy

    def took_s(self, usual_s: float, now_s: float) -> float:
        """Return the time of a request that begins now."""
        if not self._is_noisy:
            return usual_s
        stalled_s = max(_STALL_S - now_s % _STALL_EVERY_S, 0.0)
        return stalled_s + _NOISY_P50_S * float(self._random.lognormal(0.0, _NOISY_SIGMA))
