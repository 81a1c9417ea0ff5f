"""What the agents count, added up over all agents and across their restarts.

An agent's counters start anew when it is killed and comes back, so each process of an agent has an account of
its own: what a process counted last stays in the totals when the next one begins. A process that is killed takes
along what it counted after its last scrape; the demonstration scrapes right before it kills one.
"""

import math
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

SCRAPE_TIMEOUT_S: Final = 3.0
STAGES: Final = (
    "queued",
    "combined",
    "uploaded",
    "announced",
    "fetched",
    "hydrated",
    "spliced",
    "link_wait",
    "high_watermark",
)

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name, and its labels in order."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer of an agent's /metrics."""

    counters: Mapping[Series, float]
    """Histograms are counters too: `_bucket`, `_count` and `_sum`."""
    gauges: Mapping[Series, float]


def parse_metrics(text: str) -> Scrape:
    """Read Prometheus text. Raises ValueError."""
    from prometheus_client.parser import text_string_to_metric_families

    counters: dict[Series, float] = {}
    gauges: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        target = gauges if family.type == "gauge" else counters
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                target[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return Scrape(counters, gauges)


def scrape(address: str) -> Scrape:
    """Ask the agent at host:port. Raises OSError, ValueError."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=SCRAPE_TIMEOUT_S) as answer:
        return parse_metrics(answer.read().decode())


@dataclass(frozen=True, slots=True)
class Totals:
    """Counters at one moment, or their growth between two."""

    values: Mapping[Series, float]

    def of(self, name: str, **labels: str) -> float:
        """The sum of all series of that name that have these labels."""
        wanted = set(labels.items())
        return sum(value for (found, have), value in self.values.items() if found == name and wanted <= set(have))

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by the value of a label."""
        sums: defaultdict[str, float] = defaultdict(float)
        for (found, have), value in self.values.items():
            if found == name:
                sums[dict(have)[label]] += value
        return dict(sums)

    def since(self, earlier: "Totals") -> "Totals":
        """The growth since then."""
        return Totals({series: value - earlier.values.get(series, 0.0) for series, value in self.values.items()})

    def quantile_ms(self, name: str, fraction: float, **labels: str) -> float | None:
        """A quantile of a histogram of seconds, straight lines within its buckets; None without observations.

        Of what lies beyond the last bucket's bound, only that bound is known.
        """
        wanted = set(labels.items())
        buckets: defaultdict[float, float] = defaultdict(float)
        for (found, have), value in self.values.items():
            if found == f"{name}_bucket" and wanted <= set(have):
                buckets[float(dict(have)["le"])] += value
        return _quantile_of(sorted(buckets.items()), fraction)


def _quantile_of(buckets: list[tuple[float, float]], fraction: float) -> float | None:
    if not buckets or buckets[-1][1] <= 0:
        return None
    rank = fraction * buckets[-1][1]
    lower, below = 0.0, 0.0
    for upper, cumulated in buckets:
        if cumulated >= rank:
            if math.isinf(upper):
                return lower * 1000
            inside = cumulated - below
            return 1000 * (lower + (upper - lower) * ((rank - below) / inside if inside else 1.0))
        lower, below = upper, cumulated
    return lower * 1000


class AgentAccounts:
    """Adds up. Not thread safe."""

    def __init__(self) -> None:
        self._ended: defaultdict[Series, float] = defaultdict(float)
        self._running: dict[int, tuple[int, Scrape]] = {}

    def observe(self, broker_id: int, process: int, found: Scrape) -> None:
        """What the agent of this broker says, running as this process."""
        known = self._running.get(broker_id)
        if known is not None and known[0] != process:
            for series, value in known[1].counters.items():
                self._ended[series] += value
        self._running[broker_id] = (process, found)

    def totals(self) -> Totals:
        """Over all agents and all their processes."""
        sums = defaultdict(float, self._ended)
        for _, found in self._running.values():
            for series, value in found.counters.items():
                sums[series] += value
        return Totals(dict(sums))

    def gauge(self, name: str) -> Iterable[float]:
        """One value per agent, as last seen."""
        for _, found in self._running.values():
            yield from (value for (known, _), value in found.gauges.items() if known == name)


@dataclass(frozen=True, slots=True)
class Moment:
    """All that is counted, at one time."""

    at_s: float
    """On the clock of the run."""
    totals: Totals
    metadata_log_bytes: int
    """Size of the agents' own topics, of one replica."""
    records_in_logs: int
    """Of the demonstration's topics, control records of transactions among them."""
    upload_lag_bytes: float
    oldest_unstored_s: float
