"""Kafka's replication quota, as kafka-reassign-partitions.sh --throttle sets it, while records travel as links."""

import os
import time

from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.workload.replica_comparison import compare_replicas
from tests.cluster.agent_views import RECORD_BYTES, AgentCounters
from tests.cluster.replica_moves import begin_reassignment, wait_for_isr
from tests.cluster.script import PATIENCE_S, Script

LEADER, NEW = 1, 3
RATE = "leader.replication.throttled.rate"
BYTES_PER_S = 1_000_000
RECORDS, PAYLOAD_BYTES = 160, 50_000
AT_ONCE_BYTES = 4_194_304
"""replica.fetch.max.bytes of these clusters: so much the first answer may hold, as nothing counts against it yet."""


def test_a_leaders_quota_counts_the_records_that_travel_as_links_and_is_kept(agent_script: Script) -> None:
    # 1 leads 8 MB with 2, may send 1 MB/s to who is not in sync -> 3 is added -> it gets no more than that a second, by
    # links, though next to nothing crosses between the agents -> ISR 1,2,3
    cluster, topic = agent_script.cluster, agent_script.topic
    cluster.admin.create_topic(topic, assignment=[[LEADER, 2]], config={"leader.replication.throttled.replicas": "*"})
    agent_script.link_topic()
    size = write(cluster, topic)
    set_quota(cluster, str(BYTES_PER_S))
    try:
        counters = AgentCounters(cluster)
        seconds = add_replica(cluster, topic, size)
    finally:
        set_quota(cluster, None)
    assert seconds > (size - AT_ONCE_BYTES) / BYTES_PER_S / 2, "the quota was kept"
    assert counters.growth(RECORD_BYTES, path="linked") > size / 2
    assert counters.growth("remote_wal_peer_bytes_total", role="leader", direction="sent") < size / 2
    assert compare_replicas(cluster, topic, PATIENCE_S).identical


def write(cluster: LocalCluster, topic: str) -> int:
    """Records that no codec makes smaller; their bytes."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for _ in range(RECORDS):
        producer.produce(topic, os.urandom(PAYLOAD_BYTES))
    assert producer.flush(PATIENCE_S) == 0
    return RECORDS * PAYLOAD_BYTES


def set_quota(cluster: LocalCluster, bytes_per_s: str | None) -> None:
    change = AlterConfigOpType.DELETE if bytes_per_s is None else AlterConfigOpType.SET
    entry = ConfigEntry(RATE, bytes_per_s, incremental_operation=change)
    resource = ConfigResource(ResourceType.BROKER, str(LEADER), incremental_configs=[entry])
    for altered in cluster.admin.client.incremental_alter_configs([resource]).values():
        altered.result(PATIENCE_S)


def add_replica(cluster: LocalCluster, topic: str, size: int) -> float:
    """How long it took from the new replica's first byte to its last one."""
    begin_reassignment(cluster.admin, topic, {0: [LEADER, 2, NEW]})

    def held() -> int:
        directory = cluster.layout.partition_directory(NEW, topic, 0)
        return 0 if directory is None else sum(log.stat().st_size for log in directory.glob("*.log"))

    wait_until(lambda: held() > 0, "the new replica has something", PATIENCE_S, interval_s=0.02)
    began_s = time.monotonic()
    wait_until(lambda: held() >= size, "the new replica has all", PATIENCE_S)
    took_s = time.monotonic() - began_s
    wait_for_isr(cluster.admin, topic, [LEADER, 2, NEW])
    return took_s
