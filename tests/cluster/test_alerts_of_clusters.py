"""Alerts whose causes want a cluster of their own: gateways, many buckets, an authorizer, a report.

As in `tests.cluster.test_alerts_by_cause`, a real Prometheus judges; what the runbook says makes it quiet.
"""

import json
import random
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cli.exit_code import ExitCode
from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.layout import free_port_block
from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess, ProcessSpec
from tests.cluster.conftest import IMPATIENT, ClusterFactory
from tests.cluster.gateway_cluster import BY_OBJECTS, gateway_cluster
from tests.cluster.prometheus import PATIENCE_S, PROMETHEUS, Prometheus
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.script import PLAIN, Script
from tests.cluster.test_alerts_by_cause import reconfigure
from tests.cluster.test_daily_report import report
from tests.cluster.test_gateway_durable import DURABLE, GATEWAYS, LEADER, begin, producers
from tests.spark import spark

__all__ = ["spark"]

NODE_EXPORTER = shutil.which("prometheus-node-exporter")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.whole_machine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not here (Debian's package of that name)"),
]
JUDGED_SOON = {"remote.wal.uncommitted.ttl.ms": "10000", **quick(orphans_interval_s=3600)}


def test_producers_that_are_refused_and_clients_that_are_turned_away(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, topic: str
) -> None:
    with (
        gateway_cluster(
            tmp_path_factory, GATEWAYS, BY_OBJECTS, {"min.insync.replicas": "1"}, controllers_apart=True
        ) as cluster,
        Script(cluster, topic) as script,
        Prometheus(cluster, tmp_path / "prometheus") as prometheus,
        ExitStack() as running,
    ):
        begin(cluster, {topic: DURABLE})
        prometheus.expect_quiet("RemoteWalProducersRefused", "RemoteWalClientsTurnedAway")
        patient = producers(cluster, topic, **{"request.timeout.ms": 3000})
        for one in patient:
            running.enter_context(one)
        wait_until(lambda: all(one.acknowledged for one in patient), "both are answered", PATIENCE_S)
        script.switch(LEADER, "puts-refused")
        prometheus.expect_firing("RemoteWalProducersRefused")
        script.clear_switches()
        prometheus.expect_quiet("RemoteWalProducersRefused")
        before = [len(one.acknowledged) for one in patient]
        wait_until(
            lambda: all(len(one.acknowledged) > count for one, count in zip(patient, before, strict=True)),
            "both are answered again",
            PATIENCE_S,
        )
        running.close()

        reconfigure(script, 1, {"remote.wal.gateway.max.connections": "4"})
        with clients(cluster, 5):
            prometheus.expect_firing("RemoteWalClientsTurnedAway")
            assert "too_many_connections" in script.agent_log(1)
        reconfigure(script, 1, {})
        with clients(cluster, 5):
            prometheus.expect_quiet("RemoteWalClientsTurnedAway")


@contextmanager
def clients(cluster: LocalCluster, count: int) -> Iterator[None]:
    """Connected to the gateway of broker 1's zone."""
    host, port = GATEWAYS.bootstrap_servers(cluster.layout, "az1").split(",")[0].rsplit(":", 1)
    with ExitStack() as connected:
        for _ in range(count):
            connected.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
        yield


@contextmanager
def node_exporter(directory: Path) -> Iterator[str]:
    """One that tells of the textfiles in this directory; its address."""
    assert NODE_EXPORTER is not None
    address = f"127.0.0.1:{free_port_block(1, random.SystemRandom())[0]}"
    command = (
        NODE_EXPORTER,
        "--collector.disable-defaults",
        "--collector.textfile",
        f"--collector.textfile.directory={directory}",
        f"--web.listen-address={address}",
    )
    files = (directory / "node-exporter.log", directory / "node-exporter.pid")
    process = ManagedProcess(ProcessSpec("node exporter", command, *files, directory))
    process.start()
    try:
        yield address
    finally:
        process.kill()


@pytest.mark.skipif(NODE_EXPORTER is None, reason="no node exporter (Debian's prometheus-node-exporter)")
@pytest.mark.usefixtures("spark")
def test_a_report_with_critical_findings(make_cluster: ClusterFactory, topic: str, tmp_path: Path) -> None:
    cluster = make_cluster(ClusterSettings(QuickAgents(overrides=JUDGED_SOON), IMPATIENT))
    with (
        Script(cluster, topic) as script,
        node_exporter(tmp_path) as host,
        Prometheus(cluster, tmp_path / "prometheus", host=host) as prometheus,
    ):
        script.create_topic()
        script.produce(PLAIN)
        script.expect_links_to_be_used()
        script.expect_promises()
        kept = list(cluster.layout.object_store_directory.rglob("*.rwal"))
        assert kept
        last_s = max(path.stat().st_mtime for path in kept)
        wait_until(lambda: time.time() > last_s + 12, "the report judges all of them", PATIENCE_S)
        for number, path in enumerate(kept):
            path.rename(tmp_path / f"away-{number}")
        found = report(cluster, tmp_path / "output")
        assert found.exit_code == ExitCode.CRITICAL, found.output
        prometheus.expect_firing("RemoteWalReportCritical")
        findings = json.loads((tmp_path / "report.json").read_text())["findings"]
        assert findings
        for number, path in enumerate(kept):
            (tmp_path / f"away-{number}").rename(path)
        found = report(cluster, tmp_path / "output")
        assert found.exit_code in (0, ExitCode.FINDINGS), found.output
        prometheus.expect_quiet("RemoteWalReportCritical")
