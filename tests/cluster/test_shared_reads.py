"""Agents of a zone read objects for each other: a GET for each zone, not for each broker.

az1: broker 1, which leads       az2: brokers 2, 3 and 4, each follows a partition of its own
"""

import gc
from pathlib import Path

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.object_store.store_spec import LocalDirectoryStore
from local_cluster.polling import wait_until
from local_cluster.workload.ledger import ProducerPlan
from tests.cluster.agent_views import AgentCounters
from tests.cluster.brokers_in_zones import in_zones
from tests.cluster.conftest import IMPATIENT
from tests.cluster.script import PATIENCE_S, PLAIN, Script

CONTROLLERS = (1, 2, 3)
REQUESTS, RANGES = "remote_wal_store_requests_total", "remote_wal_shared_ranges_total"
OBJECTS = 60
PUT_MS = 50
QUICK = ProducerPlan("quick", acks="1", records_per_s=600)
"""It does not wait, so all partitions get records all the time, and each object is of all of them."""


def sharing() -> ClusterSettings:
    """Agents speak TLS, and upload one at a time."""
    keys = {
        "remote.wal.log.manager.combiner.thread.pool.size": "1",
        "remote.wal.hydration.timeout.ms": "8000",  # a neighbour has a share of it, on a machine with other work, too
    }
    return ClusterSettings(AgentsMode(LocalDirectoryStore(PUT_MS, 3), keys, tls=True), IMPATIENT)


class Reads:
    """Of objects since it was made, for each object."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._counters = AgentCounters(cluster)

    @property
    def objects(self) -> float:
        return self._counters.growth(REQUESTS, operation="put")

    @property
    def gets(self) -> float:
        return self._counters.growth(REQUESTS, operation="get") / self.objects

    @property
    def given(self) -> float:
        """Ranges that a neighbour gave: each of them would have been a GET."""
        return self._counters.growth(RANGES, outcome="given", role="asker") / self.objects

    def wait_for_objects(self) -> None:
        wait_until(lambda: self.objects > OBJECTS, f"{OBJECTS} objects are made", PATIENCE_S)


def test_a_zone_reads_an_object_once_and_goes_on_when_who_reads_it_is_killed(tmp_path: Path, topic: str) -> None:
    play(tmp_path / "cluster", topic)
    gc.collect()  # what is left of refused connections, while that is allowed


def play(directory: Path, topic: str) -> None:
    with LocalCluster.create(directory, brokers=4) as cluster:
        zones = {1: "az1", 2: "az2", 3: "az2", 4: "az2"}
        cluster.settings = in_zones(sharing(), cluster.layout, zones, CONTROLLERS)
        cluster.configure(cluster.settings.agents)
        cluster.start()
        with Script(cluster, topic) as script:
            script.create_topic(assignment=[[1, 2], [1, 3], [1, 4]])
            script.produce(PLAIN, QUICK)
            script.expect_links_to_be_used()
            script.expect_growth(RANGES, outcome="given", role="asker")

            # three read each object, and one of them from the store
            reads = Reads(cluster)
            reads.wait_for_objects()
            assert reads.gets < 1.4
            assert reads.gets < 0.7 * (reads.gets + reads.given)  # all of it, if each read for itself

            # one of them is killed: what it would have read, the others read
            script.kill_agent(4)
            reads = Reads(cluster)
            reads.wait_for_objects()
            assert reads.gets < 1.4
            script.expect_links_to_be_used()
            script.start_agent(4)
            script.expect_promises()
