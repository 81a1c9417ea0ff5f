"""Counters and histograms that the event loop's thread alone adds to: plain numbers, read when somebody scrapes.

Those of prometheus_client may be added to by any thread, so each addition is four calls and a lock. An object passes
some seventy of them on its way through three agents; there, that was an eighth of all that the loop did for it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

_NO_LABELS: Final = ()


class LoopCount:
    """What was counted under one value of each label."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """So much more."""
        self.value += amount


class LoopCounter(Collector):
    """A counter."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str] = _NO_LABELS, *, registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = labels
        self._counts: dict[tuple[str, ...], LoopCount] = {}
        self._whole = LoopCount() if labels else self.labels()
        registry.register(self)

    def labels(self, *values: str) -> LoopCount:
        """Of these labels' values; what adds often keeps it."""
        count = self._counts.get(values)
        if count is None:
            count = self._counts[values] = LoopCount()
        return count

    def inc(self, amount: float = 1) -> None:
        """So much more, where there are no labels."""
        self._whole.value += amount

    def collect(self) -> Iterator[CounterMetricFamily]:
        """On any thread."""
        (family,) = self.describe()
        for values, count in list(self._counts.items()):
            family.add_metric(values, count.value)
        yield family

    def describe(self) -> Iterator[CounterMetricFamily]:
        """Name and labels, by which a registry refuses another one of this name."""
        yield CounterMetricFamily(self._name, self._documentation, labels=self._labels)


class LoopHistogram(Collector):
    """A histogram with one label."""

    def __init__(
        self, name: str, documentation: str, label: str, *, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        """`buckets`: upper bounds, ascending; there is one more above them."""
        self._name = name
        self._documentation = documentation
        self._label = label
        self._bounds = tuple(buckets)
        self._told = (*(repr(float(bound)) for bound in buckets), "+Inf")
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        registry.register(self)

    def observe(self, value: str, amount: float) -> None:
        """One amount under this value of the label."""
        counts = self._counts.get(value)
        if counts is None:
            self._sums[value] = 0.0
            counts = self._counts[value] = [0] * len(self._told)
        counts[bisect_left(self._bounds, amount)] += 1
        self._sums[value] += amount

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """On any thread."""
        (family,) = self.describe()
        for value, counts in list(self._counts.items()):
            buckets = list(zip(self._told, accumulate(counts), strict=True))
            family.add_metric([value], buckets, self._sums[value])
        yield family

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """As a counter's."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=[self._label])
