"""Writes the report's figures for Prometheus' textfile collector (node_exporter), so that alerts need nothing else.

The file is replaced as a whole, because the collector may read it at any time. An unknown figure is left out: an alert
can detect its absence, but not a false 0.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from retention_job.findings.kinds import SEVERITIES
from retention_job.page.report_data import Costs, ReportData


def textfile(data: ReportData) -> bytes:
    """Return a report's figures in Prometheus' text format, as a file's content."""
    registry = CollectorRegistry()

    def gauge(name: str, about: str, *labels: str) -> Gauge:
        return Gauge(f"remote_wal_report_{name}", about, labels, registry=registry)

    gauge("timestamp_seconds", "When the report's run began").set(data.now_ms / 1000)
    findings = gauge("findings", "Findings", "kind", "severity")
    for count in data.finding_counts:
        findings.labels(count.kind, count.severity).set(count.count)
    severities = gauge("findings_by_severity", "Findings, 0 where there are none", "severity")
    for severity in SEVERITIES:
        severities.labels(severity).set(data.severity_count(severity))
    gauge("quarantined_records", "Records that were not understood").set(sum(data.quarantine.values()))
    _add_costs(data.costs, gauge)
    return generate_latest(registry)


def _add_costs(costs: Costs, gauge: Callable[..., Gauge]) -> None:
    parts = gauge("cost_dollars", "Dollars with remote WAL in the report's time", "part")
    for part, usd in costs.parts.items():
        parts.labels(part.removesuffix("_usd")).set(usd)
    if costs.stock_usd is not None:
        gauge("stock_cost_dollars", "Dollars that stock Kafka would have cost").set(costs.stock_usd)
    if costs.saved_usd is not None:
        gauge("saved_dollars", "Dollars saved, of the days of which all is known").set(costs.saved_usd)
    ways = gauge(
        "clients_dollars",
        "Dollars for what gateways' clients sent and were given, by their zone: directly, by follower fetching "
        "alone as far as its share is known, by the gateway",
        "zone",
        "way",
    )
    for clients in costs.clients:
        for way in ("direct", "follower_fetching", "gateway"):
            ways.labels(clients.zone, way).set(clients.dollars[f"{way}_usd"])
    gauge("cost_seconds", "The time that dollars are of").set(costs.seconds)
    saved = gauge("topic_saved_dollars", "Dollars saved by topic", "topic")
    for topic in costs.topics:
        if topic.saved_usd is not None:
            saved.labels(topic.topic).set(topic.saved_usd)
