"""A cluster was cloned from snapshots of its disks, with its bucket: what the clone did there stops the original."""

import shutil
from pathlib import Path

import pytest

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import LINKED_AND_KEPT, set_topics
from local_cluster.polling import wait_until
from tests.cluster.agent_views import describe, readiness
from tests.cluster.conftest import ClusterFactory
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.recovery_commands import remote_wal
from tests.cluster.replica_moves import leader_of
from tests.cluster.script import PATIENCE_S
from tests.cluster.stored_log import read_log
from tests.cluster.test_stored_offsets import produce

TOPIC = "orders"
HASTY = {
    "remote.wal.uncommitted.ttl.ms": "5000",
    **quick(orphans_interval_s=1, delete_grace_times=0.03, expiration_interval_s=0.5),
}


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_an_original_whose_clone_wrote_into_its_bucket_stops_until_a_person_decides(
    make_cluster: ClusterFactory, tmp_path: Path
) -> None:
    # the snapshot is taken, the clone runs in the original's place; then the disks are again what they were
    cluster = make_cluster(ClusterSettings(QuickAgents(overrides=HASTY)))
    cluster.admin.create_topic(TOPIC, assignment=[[1, 2, 3]])
    set_topics(cluster.bootstrap_servers, [TOPIC], LINKED_AND_KEPT)
    produce(cluster, TOPIC, range(100))
    wait_until(lambda: uploaded(cluster) == 100, "all is uploaded", PATIENCE_S)
    cluster.stop()
    snapshot = tmp_path / "snapshot"
    shutil.copytree(cluster.layout.directory, snapshot, ignore=shutil.ignore_patterns("object-store"))
    lease = newest_lease(cluster)

    cluster.start()
    produce(cluster, TOPIC, range(100, 200))
    wait_until(lambda: uploaded(cluster) == 200, "the clone uploads", PATIENCE_S)
    wait_until(lambda: newest_lease(cluster) > lease, "the clone renews the lease", PATIENCE_S)
    cluster.stop()
    stored = objects(cluster)

    for path in cluster.layout.directory.iterdir():
        if path != cluster.layout.object_store_directory:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(snapshot, cluster.layout.directory, dirs_exist_ok=True)
    for broker_id in cluster.broker_ids:
        cluster.start_agent(broker_id, wait=False)
    for broker_id in cluster.broker_ids:
        cluster.start_broker(broker_id, wait=False)
    cluster.wait_for_brokers(cluster.broker_ids)
    wait_until(lambda: all(map(is_stopped, [cluster] * 3, cluster.broker_ids)), "all agents have stopped", PATIENCE_S)
    produce(cluster, TOPIC, range(300, 400))
    cluster.admin.wait_for_full_isr(TOPIC)
    assert read_log(cluster, TOPIC) == [str(one) for one in (*range(100), *range(300, 400))]
    assert objects(cluster) == stored, "neither uploaded nor deleted"

    remote_wal(cluster, "lease", "take", "--broker-config", str(cluster.layout.server_properties(1)))
    for broker_id in cluster.broker_ids:
        cluster.wait_for_agent(broker_id, 3 * PATIENCE_S)
    produce(cluster, TOPIC, range(400, 500))
    wait_until(lambda: uploaded(cluster) == 300, "the original uploads", PATIENCE_S)


def uploaded(cluster: LocalCluster) -> int:
    """Up to which offset, as the leader's agent says."""
    leader = leader_of(cluster.admin, TOPIC)
    told = describe(cluster, leader)["partitions"] if leader is not None else []
    return max((int(one["uploaded_offset"]) for one in told if one["topic"] == TOPIC), default=0)


def objects(cluster: LocalCluster) -> set[str]:
    return {path.name for path in cluster.layout.object_store_directory.rglob("*.rwal")}


def newest_lease(cluster: LocalCluster) -> int:
    places = cluster.layout.object_store_directory.rglob("lease/*")
    return max((int(path.name) for path in places if path.name.isdigit()), default=0)


def is_stopped(cluster: LocalCluster, broker_id: int) -> bool:
    """Whether its agent has met the clone's renewal."""
    try:
        status, told = readiness(cluster, broker_id)
    except OSError:
        return False
    return status != 200 and "has renewed the lease" in told
