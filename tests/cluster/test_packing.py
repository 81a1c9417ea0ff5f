"""Record bytes that cross zones inline are packed, of every topic that is not left out, and arrive as they were."""

import random

from confluent_kafka import Producer

from local_cluster.agent_metrics import Counters, scrape_all
from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import CLIENT_CONFIG, set_topics
from local_cluster.polling import wait_until
from local_cluster.workload.json_events import json_event
from local_cluster.workload.replica_comparison import compare_replicas
from metadata_topic.settings.topic_settings import TopicSettings
from tests.cluster.script import PATIENCE_S

PAIRS = ((1, 2), (2, 3), (3, 1))


def crossed(cluster: LocalCluster, topic: str, values: list[bytes]) -> Counters:
    """What the agents counted while these were replicated."""
    before = scrape_all(cluster)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **CLIENT_CONFIG, "acks": "all"})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % len(PAIRS))
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return scrape_all(cluster).subtract(before)


def test_events_cross_zones_as_a_third_and_neither_random_bytes_nor_a_topic_that_is_off_is_packed(
    agent_cluster: LocalCluster, topic: str
) -> None:
    cluster, source = agent_cluster, random.Random(1)
    events = [json_event(source, number) for number in range(4000)]
    noise = [source.randbytes(20_000) for _ in range(200)]
    names = [topic, f"{topic}-noise", f"{topic}-off"]
    for name in names:
        cluster.admin.create_topic(name, assignment=PAIRS)
    set_topics(cluster.bootstrap_servers, [names[2]], TopicSettings(pack=False))

    def is_packed() -> bool:
        counted = crossed(cluster, topic, events[:50])
        return counted.of("remote_wal_not_packed_bytes_total") == 0

    wait_until(is_packed, "all agents know the settings and names of topics", PATIENCE_S)
    told = crossed(cluster, topic, events)
    size = sum(map(len, events))
    assert told.zone_bytes < 0.35 * told.stock_bytes
    assert told.of("remote_wal_packed_bytes_total", form="before") > 0.95 * size
    assert told.of("remote_wal_packed_bytes_total", form="after") < 0.3 * size

    told = crossed(cluster, names[1], noise)  # large responses, of which the first is packed to be judged
    assert told.of("remote_wal_packing_rests_total") == len(PAIRS)
    told = crossed(cluster, names[1], noise)
    assert told.of("remote_wal_not_packed_bytes_total") > 0.95 * sum(map(len, noise))

    told = crossed(cluster, names[2], events)
    assert told.of("remote_wal_not_packed_bytes_total") > 0.95 * size
    assert told.zone_bytes > 0.95 * told.stock_bytes
    for name in names:
        assert all(one.identical for one in compare_replicas(cluster, name, PATIENCE_S).partitions)
