"""Writes the report's figures for Prometheus' textfile collector (node_exporter), so that alerts need nothing else.

The file is replaced as a whole, because the collector may read it at any time. An unknown figure is left out: an alert
can detect its absence, but not a false 0.
"""

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from retention_job.findings.kinds import SEVERITIES
from retention_job.page.report_data import ReportData

_PREFIX: Final = "remote_wal_report_"


class _ReportCollector(Collector):
    def __init__(self, data: ReportData) -> None:
        self._data = data

    def collect(self) -> Iterator[Metric]:
        data = self._data
        yield _gauge("timestamp_seconds", "When the report's run began", data.now_ms / 1000)
        findings = GaugeMetricFamily(f"{_PREFIX}findings", "Findings", labels=["kind", "severity"])
        for count in data.finding_counts:
            findings.add_metric([count.kind, count.severity], count.count)
        yield findings
        severities = GaugeMetricFamily(
            f"{_PREFIX}findings_by_severity", "Findings, 0 where there are none", labels=["severity"]
        )
        for severity in SEVERITIES:
            severities.add_metric([severity], data.severity_count(severity))
        yield severities
        yield _gauge("quarantined_records", "Records that were not understood", sum(data.quarantine.values()))
        yield from self._costs()

    def _costs(self) -> Iterator[Metric]:
        costs = self._data.costs
        parts = GaugeMetricFamily(
            f"{_PREFIX}cost_dollars", "Dollars with remote WAL in the report's time", labels=["part"]
        )
        for part, usd in costs.parts.items():
            parts.add_metric([part.removesuffix("_usd")], usd)
        yield parts
        known: tuple[tuple[str, str, float | None], ...] = (
            ("stock_cost_dollars", "Dollars that stock Kafka would have cost", costs.stock_usd),
            ("saved_dollars", "Dollars saved, of the days of which all is known", costs.saved_usd),
        )
        for name, about, dollars in known:
            if dollars is not None:
                yield _gauge(name, about, dollars)
        ways = GaugeMetricFamily(
            f"{_PREFIX}clients_dollars",
            "Dollars for what gateways' clients sent and were given, by their zone: directly, by follower fetching "
            "alone as far as its share is known, by the gateway",
            labels=["zone", "way"],
        )
        for clients in costs.clients:
            for way in ("direct", "follower_fetching", "gateway"):
                ways.add_metric([clients.zone, way], clients.dollars[f"{way}_usd"])
        yield ways
        yield _gauge("cost_seconds", "The time that dollars are of", costs.seconds)
        saved = GaugeMetricFamily(f"{_PREFIX}topic_saved_dollars", "Dollars saved by topic", labels=["topic"])
        for topic in costs.topics:
            if topic.saved_usd is not None:
                saved.add_metric([topic.topic], topic.saved_usd)
        yield saved


def _gauge(name: str, about: str, value: float) -> Metric:
    gauge = GaugeMetricFamily(f"{_PREFIX}{name}", about)
    gauge.add_metric([], value)
    return gauge


def textfile(data: ReportData) -> bytes:
    """Return Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_ReportCollector(data))
    return generate_latest(registry)
