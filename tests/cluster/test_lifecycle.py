"""What becomes of objects: they expire, topics are deleted, leaders die with uploads that nobody else has.

Brokers log in at each other under TLS, so that the check of each change has that too.
"""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from local_cluster.broker_config import ClusterSettings
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.workload.replica_comparison import compare_replicas
from metadata_topic.records.states import DELETING, FINISHED, STARTED
from metadata_topic.store.store import RemoteWalMetadataStore
from tests.cluster.conftest import cluster_of
from tests.cluster.quick_agent import QuickAgents, quick
from tests.cluster.replica_moves import delete_topic
from tests.cluster.script import PATIENCE_S, Script
from tests.cluster.secured import secured
from tests.cluster.stored_log import followed_metadata

HASTY_AGENTS = {
    **quick(expiration_interval_s=0.2, delete_grace_times=0.03),
    "remote.wal.uncommitted.ttl.ms": "20000",
    **quick(topic_gone_ms=2000, cluster_interval_s=0.5),
    **quick(orphans_interval_s=2, failover_interval_s=0.5),
    **quick(metadata_memory_bytes=0),  # all that is known of entries lies on disk
}
BROKERS = {"log.retention.check.interval.ms": "1000", "log.segment.delete.delay.ms": "100"}


cluster = cluster_of(lambda _: secured(ClusterSettings(QuickAgents(overrides=HASTY_AGENTS), BROKERS)))


@pytest.fixture(scope="module")
def store(cluster: LocalCluster) -> Iterator[RemoteWalMetadataStore]:
    with followed_metadata(cluster) as store:
        yield store


def objects(cluster: LocalCluster) -> int:
    return sum(1 for _ in cluster.layout.object_store_directory.rglob("*.rwal"))


def living(store: RemoteWalMetadataStore) -> dict[str, int]:
    totals = store.count_by_state()
    return {state.name: totals[state].segments for state in (STARTED, FINISHED, DELETING) if totals[state].segments}


def expect_nothing_left(cluster: LocalCluster, store: RemoteWalMetadataStore) -> None:
    wait_until(lambda: objects(cluster) == 0, "the bucket is empty", PATIENCE_S)
    wait_until(lambda: not living(store), "no segment lives in the metadata", PATIENCE_S)


def test_what_a_dead_leader_uploaded_alone_is_declared_dead_by_the_next(
    life: Script, store: RemoteWalMetadataStore
) -> None:
    # broker 1 has offsets in the store that no follower has; 2 or 3 is elected and says so

    life.create_topic(assignment=[[1, 2, 3]])
    producer = Producer({"bootstrap.servers": life.cluster.bootstrap_servers, "acks": "1", "linger.ms": "0"})
    send(producer, life.topic, 20)
    life.kill_agent(2)
    life.kill_agent(3)
    send(producer, life.topic, 200)
    wait_until(lambda: uploaded_offset(life) >= 220, "the leader uploads what nobody else has", PATIENCE_S)
    life.cluster.broker(1).kill()
    # Together: with broker 1 dead, neither 2 nor 3 leads anything that can be read to its end before the other one is
    # there to follow it.
    for broker_id in (2, 3):
        life.cluster.start_agent(broker_id, wait=False)
    life.cluster.admin.wait_for_leader(life.topic, other_than=1)
    life.expect_growth("remote_wal_dead_entries_published_total")
    life.cluster.start_broker(1)
    life.cluster.admin.wait_for_full_isr(life.topic)
    send(producer, life.topic, 20)
    comparison = compare_replicas(life.cluster, life.topic, PATIENCE_S)
    assert comparison.identical, str(comparison)
    wait_until(lambda: store.counters.get("dead_entries", 0) > 0, "the metadata says so", PATIENCE_S)
    delete_topic(life.cluster.admin, life.topic)
    expect_nothing_left(life.cluster, store)


def send(producer: Producer, topic: str, records: int) -> None:
    for number in range(records):
        producer.produce(topic, b"%d" % number * 100)
        producer.poll(0)
    assert producer.flush(30) == 0


def uploaded_offset(script: Script) -> int:
    return max((int(str(found["uploaded_offset"])) for found in script.partitions_of_agents()), default=0)
