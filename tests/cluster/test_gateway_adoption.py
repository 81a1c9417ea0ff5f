"""What clients produce through their zone's gateway is written to object storage once, and all that a log is made of.

Zones az1 to az3 with a broker each; the topic is led in az2, and clients of az1 produce to it.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.workload.replica_comparison import compare_replicas
from local_cluster.zone_gateways import ZoneGateways
from metadata_topic.topic.client_config import KafkaClientConfig
from plugin.router_object_id import RouterObjectId
from plugin.segment_metadata import CombinedSegmentId
from recovery.metadata.metadata_notes import read_metadata
from tests.cluster.agent_views import AgentCounters, describe
from tests.cluster.gateway_cluster import BY_OBJECTS, THREE_ZONES, gateway_cluster
from tests.cluster.lost_metadata import in_doubt, lose_metadata_topic, rebuild
from tests.cluster.recovery_commands import drilled_recovery
from tests.cluster.script import PATIENCE_S, Script

GATEWAYS = ZoneGateways(THREE_ZONES)
LEADER = 2
RECORDS, RECORD_BYTES = 20_000, 1000
TIMEOUT_S = 60.0

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    agents = {**BY_OBJECTS, "remote.wal.gateway.produce.adopt.enable": "true"}
    with gateway_cluster(tmp_path_factory, GATEWAYS, agents) as made:
        yield made


def produce(cluster: LocalCluster, topic: str) -> int:
    """As a client of az1; the bytes of all values."""
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


def named_objects(cluster: LocalCluster) -> dict[RouterObjectId, frozenset[CombinedSegmentId]]:
    """Gateways' objects in the store that segments name, by what the metadata topic tells, and which do."""
    noted, _ = read_metadata(KafkaClientConfig(cluster.bootstrap_servers), TIMEOUT_S)
    files = [path.as_posix() for path in cluster.layout.object_store_directory.rglob("router/*/*/*/*")]
    stored = [RouterObjectId.parse(name[name.index("/router/") + 1 :]) for name in files]
    return {one: names for one in stored if one is not None and (names := noted.store.naming(one))}


def uploaded_offset(cluster: LocalCluster, topic: str) -> int:
    views = [view for view in describe(cluster, LEADER)["partitions"] if view["topic"] == topic]
    return max((int(view["uploaded_offset"]) for view in views), default=0)


def test_produced_bytes_are_stored_once_and_replicas_and_a_rebuilt_log_are_equal(
    cluster: LocalCluster, topic: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cluster.admin.create_topic(topic, assignment=[[LEADER, 1, 3]])
    with Script(cluster, topic) as script:
        script.link_topic()
        counters = AgentCounters(cluster)
        produced_bytes = produce(cluster, topic)
        wait_until(lambda: uploaded_offset(cluster, topic) >= RECORDS, "all is stored", PATIENCE_S)
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
