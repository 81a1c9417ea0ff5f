"""Reads agents' counters from /metrics: at one moment, or between two; of one agent, or of several together."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.http.http_asking import ask_agent_page

if TYPE_CHECKING:
    from local_cluster.cluster import LocalCluster

_TIMEOUT_S = 30.0
"""An agent whose calls are counted, on a machine with other work, is slow to answer."""
_STAGE = "remote_wal_stage_seconds"

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name, and its labels in order."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of agents at one moment, or their growth between two; histograms as `_bucket`, `_count`, `_sum`.

    Gauges are included; they have a meaning only at one moment.
    """

    values: Mapping[Series, float] = field(default_factory=dict)

    def of(self, name: str, **labels: str) -> float:
        """Return the sum of all series with this name and these labels."""
        wanted = set(labels.items())
        return sum(value for (found, have), value in self.values.items() if found == name and wanted <= set(have))

    def sum_by(self, name: str, label: str) -> dict[str, float]:
        """Return the sums of a counter by the value of a label."""
        sums: defaultdict[str, float] = defaultdict(float)
        for (found, have), value in self.values.items():
            if found == name:
                sums[dict(have)[label]] += value
        return dict(sums)

    def subtract(self, earlier: "Counters") -> "Counters":
        """Return the growth since the earlier counters."""
        return Counters({series: value - earlier.values.get(series, 0.0) for series, value in self.values.items()})

    def __add__(self, other: "Counters") -> "Counters":
        sums = defaultdict(float, self.values)
        for series, value in other.values.items():
            sums[series] += value
        return Counters(dict(sums))

    @property
    def cpu_s(self) -> float:
        """Processor seconds of the agents' processes."""
        return self.of("process_cpu_seconds_total")

    @property
    def zone_bytes(self) -> float:
        """Bytes between agents, both ways; each connection is counted once, at its leader's end."""
        return self.of("remote_wal_peer_bytes_total", role="leader")

    @property
    def stock_bytes(self) -> float:
        """The bytes that frames between agents would have had without links."""
        return self.of("remote_wal_stock_bytes_total")

    @property
    def linked_bytes(self) -> float:
        """Record bytes that followers got as links."""
        return self.of("remote_wal_replicated_record_bytes_total", path="linked")

    @property
    def inline_bytes(self) -> float:
        """Record bytes that followers got inline."""
        return self.of("remote_wal_replicated_record_bytes_total", path="inline")

    @property
    def topics_linked_share(self) -> float:
        """The share of record bytes that followers got as links, in enabled topics."""
        linked, inline = (self.of("remote_wal_topic_record_bytes_total", path=path) for path in ("linked", "inline"))
        return linked / max(linked + inline, 1.0)

    @property
    def linked_share_by_topic(self) -> dict[str, float]:
        """The share of record bytes that followers got as links, by enabled topic; only topics with any bytes."""
        sums = self.sum_by("remote_wal_topic_record_bytes_total", "topic")
        return {
            topic: self.of("remote_wal_topic_record_bytes_total", topic=topic, path="linked") / size
            for topic, size in sums.items()
            if size
        }

    @property
    def puts(self) -> float:
        """PUT requests, each attempt counted."""
        return self.of("remote_wal_store_requests_total", operation="put")

    @property
    def gets(self) -> float:
        """GET requests, each attempt counted."""
        return self.of("remote_wal_store_requests_total", operation="get")

    def stages_ms(self) -> dict[str, dict[str, float]]:
        """Return p50, p99 and count of each stage that was passed at least once, times in ms."""
        passed = sorted(self.sum_by(f"{_STAGE}_count", "stage").items())
        return {
            stage: {
                "p50": self.quantile_ms(_STAGE, 0.5, stage=stage) or 0.0,
                "p99": self.quantile_ms(_STAGE, 0.99, stage=stage) or 0.0,
                "count": times,
            }
            for stage, times in passed
            if times > 0
        }

    def quantile_ms(self, name: str, fraction: float, **labels: str) -> float | None:
        """Return a quantile of a histogram of seconds, linear within its buckets; None without observations.

        Beyond the last bucket's bound, the result is that bound.
        """
        wanted = set(labels.items())
        cumulated: defaultdict[float, float] = defaultdict(float)
        for (found, have), value in self.values.items():
            if found == f"{name}_bucket" and wanted <= set(have):
                cumulated[float(dict(have)["le"])] += value
        rank = fraction * max(cumulated.values(), default=0.0)
        lower, below = 0.0, 0.0
        for upper, count in sorted(cumulated.items()):
            if count >= rank > 0:
                return 1000 * (
                    lower if math.isinf(upper) else lower + (upper - lower) * (rank - below) / (count - below)
                )
            lower, below = upper, count
        return None


def parse_metrics(text: str) -> Counters:
    """Parse Prometheus' text format. Raises ValueError."""
    from prometheus_client.parser import text_string_to_metric_families

    return Counters(
        {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
    )


def scrape(cluster: "LocalCluster", broker_id: int) -> Counters:
    """Read the counters of a broker's agent. Raises OSError if it does not respond, ValueError."""
    where = str(cluster.layout.agent_http_address(broker_id))
    return parse_metrics(ask_agent_page(where, "/metrics", _TIMEOUT_S).decode())


def scrape_all(cluster: "LocalCluster") -> Counters:
    """Read and add up the counters of all agents. Raises OSError if one does not respond, ValueError."""
    return sum((scrape(cluster, broker_id) for broker_id in cluster.broker_ids), Counters())
