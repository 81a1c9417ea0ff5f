"""Alerts fire on a real cluster by their causes, and go by what the runbooks say. A real Prometheus judges.

Debian's package `prometheus` has it; without it this is skipped.
"""

import datetime
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.store_spec import S3Store
from local_cluster.polling import WaitTimeoutError, wait_until
from local_cluster.security.authority import Authority
from local_cluster.security.listeners import keystore_of
from tests.cluster.conftest import IMPATIENT
from tests.cluster.prometheus import PATIENCE_S, PROMETHEUS, Prometheus, queries_of_the_board
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.recovery_commands import ask_cluster
from tests.cluster.script import PLAIN, ZSTD, Script
from tests.faulty_store import DEFAULT_BUCKET, Fault, FaultyFront, FaultyServer

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.whole_machine,
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not here (Debian's package of that name)"),
]

VICTIM = 2
BYPASS = quick(bypass_after_s=1, bypass_return_s=2)
EMPTY_WHEN_WELL = {
    "Faults survived": "shows what was counted within the interval alone",
    "Failures": "counters with labels are not there before they count",
    "Agents started": "marks starts alone",
}
"""Queries of the board that have no data while all is well, and why."""


class Certificates:
    """Of the cluster's agents, by an authority that can sign more of them."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        directory = cluster.layout.certificates_directory
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(directory)
        for one in cluster.broker_ids:
            self.renew(one)

    def renew(self, broker_id: int, days: float = 3650) -> None:
        """As an operator brings a new file in the place of the old one, good for so many days from now."""
        layout = self._cluster.layout
        host = layout.bypass_address(broker_id).rpartition(":")[0]
        begun = datetime.datetime.now(datetime.UTC) - datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        files = self.authority.tls_for(f"broker-{broker_id}", [host], begun + datetime.timedelta(days=days))
        keystore_of(layout, broker_id).write_bytes(files.key_file.read_bytes() + files.certificate_file.read_bytes())

    def reload(self, broker_id: int) -> None:
        """As `systemctl reload` does it."""
        self._cluster.agent(broker_id).send_signal(signal.SIGHUP)


def test_alerts_fire_by_their_causes_and_go_by_the_runbooks_and_the_board_has_data(tmp_path: Path, topic: str) -> None:
    # well: quiet, the board has data -> paused -> resumed: quiet
    # -> reads fail -> so do writes -> the store is back: quiet
    # -> an agent is killed, the others go past it -> started again: quiet
    # -> a certificate of ten days -> renewed: quiet
    with FaultyServer(FaultyFront(), [DEFAULT_BUCKET]) as store:
        agents = QuickAgents(S3Store(store.endpoint_url, DEFAULT_BUCKET), BYPASS, bypass=True, tls=True)
        with LocalCluster.create(tmp_path / "cluster", settings=ClusterSettings(agents, IMPATIENT)) as cluster:
            certificates = Certificates(cluster)
            cluster.start()
            with Script(cluster, topic) as script, Prometheus(cluster, tmp_path / "prometheus") as prometheus:
                script.create_topic()
                script.produce(PLAIN, ZSTD)
                script.expect_links_to_be_used()
                prometheus.expect_quiet()
                expect_the_board_to_have_data(prometheus)

                ask_cluster(cluster, "pause", "--all", "--reason", "a trial")
                prometheus.expect_firing("RemoteWalPauseForgotten")
                ask_cluster(cluster, "resume", "--all")
                prometheus.expect_quiet()

                store.faults.add(Fault("error", ("GET",)))
                prometheus.expect_firing("RemoteWalLinksPaused")
                store.faults.add(Fault("error"))
                prometheus.expect_firing("RemoteWalUploadsFail", "RemoteWalUploadLag")
                assert prometheus.query(dict(queries_of_the_board())["Faults survived"])
                store.faults.clear()
                script.expect_links_to_be_used()
                prometheus.expect_quiet()

                cluster.agent(VICTIM).kill()
                prometheus.expect_firing("RemoteWalAgentDown", "RemoteWalPeerBypassed")
                cluster.start_agent(VICTIM)
                prometheus.expect_quiet()

                certificates.renew(VICTIM, days=10)
                certificates.reload(VICTIM)
                prometheus.expect_firing("RemoteWalCertificateEnds")
                certificates.renew(VICTIM)
                certificates.reload(VICTIM)
                prometheus.expect_quiet()
                script.expect_promises()


def expect_the_board_to_have_data(prometheus: Prometheus) -> None:
    """Each query of it, but those that are empty while all is well."""
    wanted = [(title, query) for title, query in queries_of_the_board() if title not in EMPTY_WHEN_WELL]
    assert len(wanted) > 20

    empty: list[str] = []

    def is_full() -> bool:
        empty[:] = [f"{title}: {query}" for title, query in wanted if not prometheus.query(query)]
        return not empty

    with suppress(WaitTimeoutError):
        wait_until(is_full, "the board has data", PATIENCE_S, interval_s=1.0)
    assert empty == []
    for _, query in queries_of_the_board():
        prometheus.query(query)  # None is refused.
