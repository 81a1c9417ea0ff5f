"""Counters and histograms that only the event loop's thread adds to: plain numbers, read when somebody scrapes.

Any thread may add to those of prometheus_client, so each addition costs four calls and a lock. An object passes some
seventy of them on its way through three agents; that was an eighth of all the loop's work for it.
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
    """The count of a `LoopCounter` for one value of each label."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Add to the count."""
        self.value += amount


class LoopCounter(Collector):
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
        """Return the count for these label values; frequent users keep a reference."""
        count = self._counts.get(values)
        if count is None:
            count = self._counts[values] = LoopCount()
        return count

    def inc(self, amount: float = 1) -> None:
        """Add to the count of a counter without labels."""
        self._whole.value += amount

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counts for Prometheus. Any thread may call it."""
        (family,) = self.describe()
        for values, count in list(self._counts.items()):
            family.add_metric(values, count.value)
        yield family

    def describe(self) -> Iterator[CounterMetricFamily]:
        """Yield name and labels, by which a registry refuses a second metric of this name."""
        yield CounterMetricFamily(self._name, self._documentation, labels=self._labels)


class LoopHistogram(Collector):
    def __init__(
        self, name: str, documentation: str, label: str, *, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        """`buckets` are upper bounds, ascending; one bucket above them is added."""
        self._name = name
        self._documentation = documentation
        self._label = label
        self._bounds = tuple(buckets)
        self._told = (*(repr(float(bound)) for bound in buckets), "+Inf")
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        registry.register(self)

    def observe(self, value: str, amount: float) -> None:
        counts = self._counts.get(value)
        if counts is None:
            self._sums[value] = 0.0
            counts = self._counts[value] = [0] * len(self._told)
        counts[bisect_left(self._bounds, amount)] += 1
        self._sums[value] += amount

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the histogram for Prometheus. Any thread may call it."""
        (family,) = self.describe()
        for value, counts in list(self._counts.items()):
            buckets = list(zip(self._told, accumulate(counts), strict=True))
            family.add_metric([value], buckets, self._sums[value])
        yield family

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """Yield name and labels, by which a registry refuses a second metric of this name."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=[self._label])
