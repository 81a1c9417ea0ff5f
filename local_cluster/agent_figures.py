"""What the agents of a cluster count, read from their metrics, added up over all of them."""

import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from local_cluster.cluster import LocalCluster

_TIMEOUT_S = 5.0
Labels = tuple[tuple[str, str], ...]
_STAGE_BUCKET = "remote_wal_stage_seconds_bucket"


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """Counters by metric name and labels. Subtract an earlier reading to get what happened in between."""

    counters: Mapping[tuple[str, Labels], float] = field(default_factory=dict)

    def __sub__(self, earlier: "AgentFigures") -> "AgentFigures":
        return AgentFigures({key: value - earlier.counters.get(key, 0.0) for key, value in self.counters.items()})

    def __add__(self, other: "AgentFigures") -> "AgentFigures":
        total: defaultdict[tuple[str, Labels], float] = defaultdict(float, self.counters)
        for key, value in other.counters.items():
            total[key] += value
        return AgentFigures(dict(total))

    def sum(self, name: str, **labels: str) -> float:
        """The sum of a metric over all label sets that have these labels."""
        wanted = set(labels.items())
        return sum(value for (metric, has), value in self.counters.items() if metric == name and wanted <= set(has))

    @property
    def cpu_s(self) -> float:
        """Processor seconds of all agents."""
        return self.sum("process_cpu_seconds_total")

    @property
    def zone_bytes(self) -> float:
        """Bytes between agents, both ways; each connection is counted once, at its leader's end."""
        return self.sum("remote_wal_peer_bytes_total", role="leader")

    @property
    def stock_bytes(self) -> float:
        """What the same frames would have had without links."""
        return self.sum("remote_wal_stock_bytes_total")

    @property
    def linked_bytes(self) -> float:
        """Record bytes that followers got as links."""
        return self.sum("remote_wal_replicated_record_bytes_total", path="linked")

    @property
    def inline_bytes(self) -> float:
        """Record bytes that crossed as they are."""
        return self.sum("remote_wal_replicated_record_bytes_total", path="inline")

    @property
    def puts(self) -> float:
        """PUT requests, each attempt counted."""
        return self.sum("remote_wal_store_requests_total", operation="put")

    @property
    def gets(self) -> float:
        """GET requests, each attempt counted."""
        return self.sum("remote_wal_store_requests_total", operation="get")

    def stages(self) -> list[str]:
        """The stages that were passed at least once."""
        return sorted({dict(has)["stage"] for (metric, has), value in self.counters.items()
                       if metric == "remote_wal_stage_seconds_count" and value > 0})  # fmt: skip

    def stage_quantile_ms(self, stage: str, quantile: float) -> float:
        """A quantile of a stage's time, interpolated within its histogram bucket as Prometheus does; NaN if unused."""
        buckets = sorted(
            (float(dict(has)["le"]), value)
            for (metric, has), value in self.counters.items()
            if metric == _STAGE_BUCKET and dict(has)["stage"] == stage
        )
        if not buckets or buckets[-1][1] <= 0:
            return float("nan")
        rank = quantile * buckets[-1][1]
        lower_s = lower_count = 0.0
        for upper_s, count in buckets:
            if count >= rank:
                if upper_s == float("inf"):
                    return lower_s * 1000
                share = (rank - lower_count) / (count - lower_count) if count > lower_count else 1.0
                return (lower_s + (upper_s - lower_s) * share) * 1000
            lower_s, lower_count = upper_s, count
        return lower_s * 1000


def parse_figures(text: str) -> AgentFigures:
    """One agent's counters out of its Prometheus text; gauges are left out."""
    from prometheus_client.parser import text_string_to_metric_families

    counters: dict[tuple[str, Labels], float] = {}
    for family in text_string_to_metric_families(text):
        if family.type not in ("counter", "histogram"):
            continue
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                counters[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return AgentFigures(counters)


def read_agent(http_address: str) -> AgentFigures:
    """One agent's counters now. Raises OSError when it does not answer."""
    with urllib.request.urlopen(f"http://{http_address}/metrics", timeout=_TIMEOUT_S) as response:
        return parse_figures(response.read().decode())


def read_agents(cluster: "LocalCluster", broker_ids: Iterable[int] | None = None) -> AgentFigures:
    """All agents' counters now, added up. Raises OSError when one does not answer."""
    total = AgentFigures()
    for broker_id in broker_ids if broker_ids is not None else cluster.broker_ids:
        total += read_agent(str(cluster.layout.agent_http_address(broker_id)))
    return total
