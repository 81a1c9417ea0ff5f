"""Where agents make more objects than all are to follow, each waits for longer from upload to upload."""

import time

import pytest

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.object_store.store_spec import LocalDirectoryStore
from local_cluster.polling import wait_until
from local_cluster.workload.ledger import ProducerPlan
from tests.cluster.agent_views import AgentCounters, read_metrics
from tests.cluster.conftest import IMPATIENT, ClusterFactory
from tests.cluster.script import PATIENCE_S, PLAIN, Script

BOUND_PER_S = 12
"""Without it these loads come to more than 60 here."""
OBJECTS = 60
SPACING = ("remote_wal_upload_spacing_seconds", ())
QUICK = ProducerPlan("quick", acks="1", records_per_s=600)


@pytest.mark.thorough
def test_all_together_make_no_more_objects_than_each_is_to_follow(make_cluster: ClusterFactory, topic: str) -> None:
    keys = {"remote.wal.log.manager.cluster.objects.per.second": str(BOUND_PER_S)}
    cluster = make_cluster(ClusterSettings(AgentsMode(LocalDirectoryStore(), keys), IMPATIENT))
    leaders = (1, 2)
    with Script(cluster, topic) as script:
        script.create_topic(assignment=[[1, 2, 3], [2, 3, 1]])
        script.produce(PLAIN, QUICK)
        wait_until(
            lambda: all(read_metrics(cluster, leader)[SPACING] >= 1 / BOUND_PER_S for leader in leaders),
            "the agents hold their uploads back",
            PATIENCE_S,
        )
        objects, begun_s = AgentCounters(cluster), time.monotonic()
        wait_until(
            lambda: objects.growth("remote_wal_store_requests_total", operation="put") > OBJECTS,
            f"{OBJECTS} objects are made",
            PATIENCE_S,
        )
        # a machine that is busy makes fewer, and so do snapshots among the puts
        assert time.monotonic() - begun_s > 0.7 * OBJECTS / BOUND_PER_S
        script.expect_links_to_be_used()
        script.expect_promises()
