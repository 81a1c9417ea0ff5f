"""What clients produce through their zone's gateway is written to object storage once, and all that a log is made of.

Zones az1 to az3 with a broker each; the topic is led in az2, and clients of az1 produce to it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kafka_cluster.client_config import KafkaClientConfig
from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.workload.replica_comparison import compare_replicas
from local_cluster.zones import ZoneGateways
from metadata_topic.topic.topic_session import read_metadata
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId
from tests.cluster.agent_views import AgentCounters, describe
from tests.cluster.gateway_cluster import BY_OBJECTS, THREE_ZONES, with_gateways
from tests.cluster.quick_agent import quick
from tests.cluster.recovery_commands import drilled_recovery
from tests.cluster.script import PATIENCE_S, Script
from tests.cluster.test_lost_metadata import in_doubt, lose_metadata_topic, rebuild

GATEWAYS = ZoneGateways(THREE_ZONES)
LEADER = 2
RECORDS, RECORD_BYTES = 20_000, 1000
TIMEOUT_S = 60.0

pytestmark = pytest.mark.timeout(600)


cluster = with_gateways(GATEWAYS, {**BY_OBJECTS, **quick(cluster_interval_s=0.5)})


def produce(cluster: LocalCluster, topic: str) -> int:
    """As a client of az1, with acks of the replicas in sync; the bytes of all values."""
    producer = Producer(
        {
            "bootstrap.servers": GATEWAYS.bootstrap_servers(cluster.layout, "az1"),
            "enable.idempotence": True,
            "linger.ms": 20,
        }
    )
    failed: list[object] = []
    for number in range(RECORDS):
        value = f"{number}-".encode().ljust(RECORD_BYTES, b"x")
        producer.produce(topic, value, on_delivery=lambda error, _: failed.extend([error] if error else []))
        if number % 100 == 99:
            producer.poll(0.02)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failed
    return RECORDS * RECORD_BYTES


@contextmanager
def produced(cluster: LocalCluster, topic: str) -> Iterator[AgentCounters]:
    with Script(cluster, topic) as script:
        script.link_topic()
        counters = AgentCounters(cluster)
        produced_bytes = produce(cluster, topic)
        wait_until(lambda: uploaded_offset(cluster, topic) >= RECORDS, "all is stored", PATIENCE_S)
        assert counters.growth("remote_wal_adopted_bytes_total") > 0.9 * produced_bytes
        yield counters


def router_files(cluster: LocalCluster) -> set[str]:
    return {path.as_posix() for path in cluster.layout.object_store_directory.rglob("router/*/*/*/*")}


def named_objects(cluster: LocalCluster) -> dict[RouterObjectId, frozenset[CombinedSegmentId]]:
    """Gateways' objects in the store that segments name, by what the metadata topic tells, and which do."""
    store, _ = read_metadata(KafkaClientConfig(cluster.bootstrap_servers))
    stored = [RouterObjectId.parse(name[name.index("/router/") + 1 :]) for name in router_files(cluster)]
    return {one: names for one in stored if one is not None and (names := store.find_adopters(one))}


def uploaded_offset(cluster: LocalCluster, topic: str) -> int:
    views = [view for view in describe(cluster, LEADER)["partitions"] if view["topic"] == topic]
    return max((int(view["uploaded_offset"]) for view in views), default=0)


def test_produced_bytes_are_stored_once_and_replicas_and_a_rebuilt_log_are_equal(
    cluster: LocalCluster, topic: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cluster.admin.create_topic(topic, assignment=[[LEADER, 1, 3]])
    with produced(cluster, topic) as counters:
        produced_bytes = RECORDS * RECORD_BYTES
        ratio = counters.growth("remote_wal_store_bytes_total", operation="put") / produced_bytes
        adopted = counters.growth("remote_wal_adopted_bytes_total") / produced_bytes
        told = f"{ratio:.3f} bytes written per byte produced, {adopted:.3f} adopted"
        record_property("written", told)
        assert ratio <= 1.05
        cluster.admin.wait_for_full_isr(topic, timeout_s=PATIENCE_S)
        comparison = compare_replicas(cluster, topic, PATIENCE_S)
        assert comparison.identical, str(comparison)
        drilled = drilled_recovery(cluster, LEADER, topic, tmp_path / "drill")
        assert drilled["end_offset"] >= RECORDS
        # The topic is lost, and objects alone are left to tell of it: those of gateways are named again.
        named = named_objects(cluster)
        assert named
        lose_metadata_topic(cluster)
        assert rebuild(cluster, "--write")["unreadable"] == []
        wait_until(lambda: not any(in_doubt(cluster)), "nobody doubts the topic", PATIENCE_S)
        assert named_objects(cluster) == named
        assert drilled_recovery(cluster, LEADER, topic, tmp_path / "again") == drilled
