"""Makes docs/metrics.md: `python -m agent.metrics.metrics_doc > docs/metrics.md`."""

import inspect
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from agent.defects import Supervisor
from agent.descriptors import DescriptorWatch
from agent.http.http_endpoint import Health, tell_health
from agent.http.http_server import HttpMetrics
from agent.log_stream import lost_lines
from agent.metrics.agent_metrics import ImbalanceCollector, StateCollector
from agent.metrics.loop_times import LoopTimes
from agent.metrics.paused import Paused
from agent.metrics.savings import Dollars, SavingsCollector
from agent.metrics.store_times import StoreTimes
from agent.metrics.topic_metrics import TopicCollector
from agent.release import agent_info, build_info
from agent.settings.configuration_doc import table
from agent.tls.certificates import CertificateWatch
from gateway.durable.durable_logs import DurableLogs
from gateway.metrics import ConsumeMetrics, DurableMetrics, GatewayMetrics, ProduceMetrics, ServeMetrics
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.wall_clock import wall_ms
from plugin.wrappers.guarded_storage import GuardedStorageManager
from replication.leader.shadow import Shadow
from replication.wire.metrics import ReplicationMetrics
from rlm.write_path.metrics import ArchiveMetrics, LifecycleMetrics, StageTimes, WriteMetrics

_INTRODUCTION = """\
# Metrics

Generated from the code: `python -m agent.metrics.metrics_doc > docs/metrics.md`.

The agent serves these as Prometheus text at `/metrics` of `remote.wal.agent.http.listener`, next to the usual
`process_*` and `python_*` metrics. What to watch, and when to be woken, stands in
[operations](operations.md#what-to-watch); the values of `reason` stand in [alerts and faults](runbooks.md).
"""


def no_run(break_even_bytes: int | None = None) -> tuple[Any, Any, Any, Any]:
    """Return stand-ins for the storage system's parts, which would open files: nothing is led, nothing known."""
    known = SimpleNamespace(store=RemoteWalMetadataStore(), archive=ArchiveStore(), counters=Counter())
    relaying, publisher = SimpleNamespace(storage=GuardedStorageManager()), SimpleNamespace(pending=0)
    price = SimpleNamespace(break_even_bytes=break_even_bytes)
    return (
        SimpleNamespace(relaying=relaying, publisher=publisher),
        SimpleNamespace(metadata=known, incarnation=SimpleNamespace(fenced_because=None)),
        SimpleNamespace(manager=SimpleNamespace(status=dict), price=price),
        SimpleNamespace(offsets=0, held_offsets=0),
    )


def metrics_document() -> str:
    """Return the content of docs/metrics.md."""
    what_they_are, _, stages = (inspect.getdoc(StageTimes) or "").partition("\n\n")
    stage_rows = re.findall(r"`(\w+)` ([^;]+)[;.]", stages.replace("\n", " "))
    return "\n".join(
        [
            _INTRODUCTION,
            table(("metric", "type", "labels", "meaning"), sorted(_rows())),
            "## Stages\n",
            f"{what_they_are}\n",
            table(("stage", "from, to"), ((f"`{name}`", meaning) for name, meaning in stage_rows)),
        ]
    )


def _rows() -> Iterator[tuple[str, str, str, str]]:
    for collector in _collectors():
        for metric in collector.collect():
            suffix = "_total" if metric.type == "counter" else ""
            labels = ", ".join(_labels(metric) or _labels(collector))
            yield f"`{metric.name}{suffix}`", metric.type, labels, metric.documentation


def _labels(owner: Metric | Collector) -> tuple[str, ...]:
    return tuple(getattr(owner, "_labelnames", ()))


def _collectors() -> list[Collector]:
    """Return all of the agent's own collectors, with nothing behind them."""
    registry = _Registry()
    StageTimes(registry)
    WriteMetrics(registry)
    ArchiveMetrics(registry)
    LifecycleMetrics(registry)
    ReplicationMetrics(registry)
    Shadow(registry, 0.0, lambda _brokers: {}, time.monotonic)
    GatewayMetrics(registry)
    ProduceMetrics(registry)
    DurableMetrics(registry, DurableLogs())
    ConsumeMetrics(registry)
    ServeMetrics(registry)
    Supervisor(registry)
    DescriptorWatch(registry)
    HttpMetrics(registry)
    lost_lines(registry)
    tell_health(registry, Health())
    CertificateWatch(registry, {}, wall_ms)
    LoopTimes(registry, time.monotonic)
    StoreTimes(registry, time.monotonic)
    build_info(registry)
    agent_info(registry)
    return [
        *registry.collectors,
        SavingsCollector(lambda: Dollars(0, 0, 0)),
        SavingsCollector(lambda: Dollars(0, 0, 0), is_shadow=True),
        Paused(None, None),
        TopicCollector(dict, dict, dict, 0),
        ImbalanceCollector(lambda: None, wall_ms),
        StateCollector(*no_run()),
    ]


class _Registry(CollectorRegistry):
    """Remembers what was registered."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        super().register(collector)
        self.collectors.append(collector)


if __name__ == "__main__":
    sys.stdout.write(metrics_document())
