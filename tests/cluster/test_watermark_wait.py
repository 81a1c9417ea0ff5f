"""Followers that are told of high watermarks sooner get the same records, and consumers there see them before the next.

The topic is led by broker 1; the consumer reads from broker 2, in whose zone it says it is.
"""

import time

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from local_cluster.broker_config import AgentsMode, ClusterSettings
from local_cluster.cluster import LocalCluster
from tests.cluster.conftest import STORAGE_PLUGINS, BreakableStore, ClusterFactory
from tests.cluster.script import PATIENCE_S, PLAIN, TRANSACTIONS, ZSTD, Script

LEADER, FOLLOWER = 1, 2
ALONE, WARM_UP = 12, 3
SOON_MS, NEXT_FETCH_MS = 150.0, 500.0
"""The latter is `replica.fetch.wait.max.ms`: when a follower is told of a high watermark where no records come. Without
the setting each record took 260 ms here.
"""
BROKERS = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}


def seen_after_ms(cluster: LocalCluster, topic: str) -> list[float]:
    """Of records that come one by one, far apart: from their acknowledgement by the leader alone, at the follower."""
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "-", "client.rack": f"az{FOLLOWER}"}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    consumer.poll(2.0)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": 1, "linger.ms": 0})
    took: list[float] = []
    for _ in range(ALONE):
        producer.produce(topic, b"alone", partition=0)
        assert not producer.flush(PATIENCE_S)
        begun_s = time.monotonic()
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        took.append((time.monotonic() - begun_s) * 1e3)
        consumer.poll(NEXT_FETCH_MS / 1000)
    consumer.close()
    return sorted(took[WARM_UP:])


def test_replicas_are_equal_and_a_consumer_at_one_does_not_wait_for_the_next_record(
    make_cluster: ClusterFactory, topic: str
) -> None:
    keys = {"remote.log.wal.storage.manager.class.path": str(STORAGE_PLUGINS), "remote.wal.link.watermark.wait.ms": "2"}
    cluster = make_cluster(ClusterSettings(AgentsMode(BreakableStore(), keys), BROKERS))
    with Script(cluster, topic) as script:
        script.create_topic(assignment=[[LEADER, FOLLOWER, 3], [2, 3, 1], [3, 1, 2]])
        script.produce(PLAIN, ZSTD, TRANSACTIONS)
        script.expect_records_to_flow(3000)
        script.kill_agent(FOLLOWER)
        script.start_agent(FOLLOWER)
        script.expect_records_to_flow(3000)
        script.expect_promises()
    alone = f"{topic}-alone"
    with Script(cluster, alone) as script:
        script.create_topic(assignment=[[LEADER, FOLLOWER, 3]])
        took_ms = seen_after_ms(cluster, alone)
    assert took_ms[len(took_ms) // 2] < SOON_MS, took_ms
