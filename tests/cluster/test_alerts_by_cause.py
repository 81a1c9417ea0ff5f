"""Alerts fire on a real cluster by their causes, and go by what the runbooks say. A real Prometheus judges.

Debian's package `prometheus` has it; without it this is skipped. One cluster under load is made unwell in one way after
the other, and made well again as an operator does it. Only the alerts that a test names are looked at: what else fires
meanwhile is told where it fails.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import LINKED, LINKED_AND_KEPT
from local_cluster.polling import wait_until
from local_cluster.processes import ManagedProcess
from local_cluster.security.authority import Authority
from local_cluster.workload.ledger import ProducerPlan
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.topic.topic import METADATA_TOPIC
from tests.cluster.agent_views import readiness
from tests.cluster.conftest import IMPATIENT, STORAGE_PLUGINS, BreakableStore
from tests.cluster.prometheus import PATIENCE_S, PROMETHEUS, ROOT, Prometheus, Times
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.recovery_commands import run_command
from tests.cluster.replica_moves import set_topic_setting
from tests.cluster.script import Script
from tests.cluster.test_alerts import Certificates

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.whole_machine,
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not here (Debian's package of that name)"),
]

VICTIM = 2
FEW = ProducerPlan("few", records_per_s=60)
HASTY = {
    "remote.log.wal.storage.manager.class.path": str(STORAGE_PLUGINS),
    **quick(bypass_after_s=1, bypass_return_s=2, unpublished_max_ms=3000, orphans_interval_s=5, orphans_min_objects=1),
    **quick(failover_interval_s=1, cluster_interval_s=2, expiration_interval_s=0.5),
    **quick(delete_grace_times=0.15, snapshot_interval_s=2),
    # An outage of seconds is to be what one of hours is.
    **quick(queue_bytes=256 * 1024),
    "remote.wal.log.manager.combiner.task.upload.bytes": str(128 * 1024),
    # Few objects: what lists and tells of them shares two cores with all of this.
    "remote.wal.log.manager.combiner.task.interval.ms": "250",
}
TIMES = Times(10, {'{loop!="orphans"} > 900': "> 15", '{loop="orphans"} > 172800': "> 15"})
"""HASTY has each of the agents' loops at work every few seconds."""
SHORT = replace(LINKED, wal_retention_ms=20_000)
"""Objects go after a while."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A cluster under load, and the Prometheus that looks at its agents."""

    cluster: LocalCluster
    certificates: Certificates
    script: Script
    prometheus: Prometheus

    @contextmanager
    def alerts(self, *names: str) -> Iterator[None]:
        """Quiet before, and after; the body has them fire, and does then what the runbook says."""
        self.prometheus.expect_quiet(*names)
        yield
        self.prometheus.expect_quiet(*names)

    def reconfigure(self, broker_id: int, settings: Mapping[str, str]) -> None:
        reconfigure(self.script, broker_id, settings)

    def restart(self, broker_id: int, *, wait: bool = True) -> None:
        self.script.stop_agent(broker_id)
        self.cluster.start_agent(broker_id, wait=wait)

    def ready(self, broker_id: int) -> str:
        """What its `/readyz` says, ready or not."""
        return readiness(self.cluster, broker_id)[1]


def reconfigure(script: Script, broker_id: int, settings: Mapping[str, str]) -> None:
    """Start its agent anew with these settings beside those that it began with."""
    layout = script.cluster.layout
    lines = [f"{key}={value}\n" for key, value in settings.items()]
    layout.server_properties(broker_id).write_text(layout.generated_properties(broker_id).read_text() + "".join(lines))
    script.stop_agent(broker_id)
    script.cluster.start_agent(broker_id)


@pytest.fixture(scope="module")
def unwell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """At its end nothing acknowledged is lost, and replicas are equal."""
    directory = tmp_path_factory.mktemp("alerts")
    brokers = {**IMPATIENT, "log.retention.check.interval.ms": "500"}
    settings = ClusterSettings(QuickAgents(BreakableStore(), HASTY, bypass=True, tls=True), brokers)
    with LocalCluster.create(directory / "cluster", settings=settings) as cluster:
        certificates = Certificates(cluster)
        cluster.start()
        with Script(cluster, "watched") as script, Prometheus(cluster, directory / "prometheus", TIMES) as prometheus:
            script.create_topic(linked=False)
            script.link_topic(SHORT)
            script.produce(FEW)
            yield Watched(cluster, certificates, script, prometheus)
            script.heal()
            script.expect_promises()


@pytest.fixture
def watched(unwell: Watched) -> Iterator[Watched]:
    """It links when a test begins, and again when it ends."""
    unwell.script.heal()  # the one before may have failed
    unwell.script.expect_links_to_be_used()
    try:
        yield unwell
    finally:
        unwell.script.clear_switches()
    unwell.script.expect_links_to_be_used()


def test_an_agent_that_starts_while_the_store_refuses_it(watched: Watched) -> None:
    with watched.alerts("RemoteWalNotReady"):
        watched.script.switch(VICTIM, "puts-refused")
        watched.restart(VICTIM, wait=False)
        watched.prometheus.expect_firing("RemoteWalNotReady")
        assert "object storage:" in watched.ready(VICTIM)
        watched.script.clear_switches()


@pytest.mark.parametrize("mistake", ["name", "authority"])
def test_a_certificate_that_others_refuse(watched: Watched, mistake: str, tmp_path: Path) -> None:
    with watched.alerts("RemoteWalPeersRefused"):
        if mistake == "name":
            wrong = watched.certificates.authority.tls_for("broker-9")
        else:
            wrong = Authority(tmp_path).tls_for(f"broker-{VICTIM}")
        watched.certificates.put(VICTIM, wrong)
        try:
            watched.restart(VICTIM)
            watched.prometheus.expect_firing("RemoteWalPeersRefused")
        finally:
            watched.certificates.renew(VICTIM)


def test_a_second_agent_of_a_broker(watched: Watched, tmp_path: Path) -> None:
    spec, layout = watched.cluster.agent(VICTIM).spec, watched.cluster.layout
    own = tmp_path / "server.properties"
    copied = layout.server_properties(VICTIM).read_text()
    for key, value in (
        ("remote.wal.agent.peer.listener", f"127.0.2.9:{layout.peer_port(VICTIM)}"),
        ("remote.wal.agent.http.listener", f"127.0.2.9:{layout.agent_http_port(VICTIM)}"),
        ("remote.wal.agent.replica.listen.host", "127.0.1.9"),
        ("remote.wal.agent.state.directory", str(tmp_path)),
    ):
        copied += f"{key}={value}\n"
    own.write_text(copied)
    command = tuple(str(own) if one == str(layout.server_properties(VICTIM)) else one for one in spec.command)
    second = ManagedProcess(replace(spec, command=command, log_path=tmp_path / "agent.log", pid_path=tmp_path / "pid"))
    with watched.alerts("RemoteWalFenced"):
        second.start()
        try:
            watched.prometheus.expect_firing("RemoteWalFenced")
        finally:
            second.terminate(30)
        watched.restart(VICTIM)


def test_a_ceiling_of_requests_that_is_too_low(watched: Watched) -> None:
    with watched.alerts("RemoteWalStoreCeiling"):
        watched.reconfigure(VICTIM, {"remote.wal.store.puts.per.minute": "20"})
        try:
            watched.prometheus.expect_firing("RemoteWalStoreCeiling")
        finally:
            watched.reconfigure(VICTIM, {})


def test_a_defect_in_a_part(watched: Watched) -> None:
    with watched.alerts("RemoteWalPartFails"):
        watched.script.switch(VICTIM, "defect-in-pacing")
        watched.prometheus.expect_firing("RemoteWalPartFails")
        watched.script.clear_switches()


def test_a_metadata_topic_that_is_compacted(watched: Watched) -> None:
    with watched.alerts("RemoteWalMetadataStalled"):
        set_topic_setting(watched.cluster, METADATA_TOPIC, "cleanup.policy", "compact")
        try:
            watched.prometheus.expect_firing("RemoteWalMetadataStalled")
            wait_until(lambda: "metadata is not published" in watched.ready(1), "agent 1 says so, too", PATIENCE_S)
        finally:
            set_topic_setting(watched.cluster, METADATA_TOPIC, "cleanup.policy", "delete")


def test_a_store_that_does_not_list(watched: Watched) -> None:
    with watched.alerts("RemoteWalOrphansNotSearched", "RemoteWalLoopIdle"):
        watched.script.switch_all("lists-refused", "")
        watched.prometheus.expect_firing("RemoteWalOrphansNotSearched", "RemoteWalLoopIdle")
        watched.script.clear_switches()


def test_links_that_cost_more_than_they_save(watched: Watched, tmp_path: Path) -> None:
    # Prices by which this cluster's load is worth a report: of bytes across zones, and still more of requests.
    prices = (ROOT / "plugin" / "prices.toml").read_text()
    prices = prices.replace("zone_transfer_gb_per_side = 0.01", "zone_transfer_gb_per_side = 10000.0")
    (tmp_path / "prices.toml").write_text(re.sub(r"put_per_1000 = \S+", "put_per_1000 = 2000.0", prices))
    priced = {
        "remote.wal.prices.file": str(tmp_path / "prices.toml"),
        **quick(orphans_interval_s=3600),  # listings are requests, too
    }
    try:
        with watched.alerts("RemoteWalLosesMoney"):
            for broker_id in watched.cluster.broker_ids:
                watched.reconfigure(broker_id, priced)
            watched.prometheus.expect_firing("RemoteWalLosesMoney")
            watched.script.link_topic(replace(LINKED, link_policy=LinkPolicy.COST))
    finally:
        watched.script.link_topic(SHORT)
        for broker_id in watched.cluster.broker_ids:
            watched.reconfigure(broker_id, {})


def test_a_topic_whose_links_come_too_late(watched: Watched) -> None:
    with watched.alerts("RemoteWalTopicNotSaved"):
        watched.script.switch_all("put-latency-ms", "1500")  # a follower waits for half a second
        watched.prometheus.expect_firing("RemoteWalTopicNotSaved")
        watched.script.clear_switches()


def test_objects_that_somebody_deletes(watched: Watched) -> None:
    def delete() -> None:
        for path in watched.cluster.layout.object_store_directory.rglob("*.rwal"):
            path.unlink(missing_ok=True)

    watched.script.link_topic(LINKED_AND_KEPT)
    with watched.alerts("RemoteWalObjectsMissing", "RemoteWalSegmentsLost", "RemoteWalOrphansWait"):
        watched.script.switch_all("get-latency-ms", "300")  # what a follower is about to read, goes before
        watched.prometheus.expect_firing("RemoteWalObjectsMissing", meanwhile=delete)
        watched.script.clear_switches()
        watched.prometheus.expect_firing("RemoteWalSegmentsLost", "RemoteWalOrphansWait")
        for broker_id in watched.cluster.broker_ids:
            found = run_command(watched.cluster, "orphans", broker_id, exit_code=(0, 1))
            run_command(watched.cluster, "orphans", broker_id, "--heal", "--confirm", found["amount"])
    watched.script.link_topic(SHORT)
