"""Kafka's quotas hold for clients of another zone whose bytes go by object storage, and close nothing.

Zones az1 to az3 with a broker each; the topic is led in az2. The clients of az1 know its gateway alone.
"""

import time
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent, TopicPartition

from local_cluster.cluster import LocalCluster
from local_cluster.cluster_admin import LINKED, set_topics
from local_cluster.zones import ZoneGateways
from tests.cluster.agent_views import AgentCounters
from tests.cluster.gateway_cluster import BY_OBJECTS, THREE_ZONES, gateway_cluster

GATEWAYS = ZoneGateways(THREE_ZONES)
LEADER = 2
QUOTA = 200_000
RECORDS, RECORD_BYTES = 4000, 1000
TIMEOUT_S = 120.0
AT_LEAST_S = 5.0
"""What is beyond a window of ten seconds at the quota takes so long."""
REQUESTS = "remote_wal_gateway_produce_requests_total"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    keys = {**BY_OBJECTS, "remote.wal.gateway.fetch.links.enable": "true"}
    with gateway_cluster(tmp_path_factory, GATEWAYS, keys) as made:
        yield made


class Told:
    """What a client was told of throttling and of its connections."""

    def __init__(self, cluster: LocalCluster, client_id: str) -> None:
        self.throttled_s: list[float] = []
        self.errors: list[str] = []
        self.settings: Mapping[str, object] = {
            "bootstrap.servers": GATEWAYS.bootstrap_servers(cluster.layout, "az1"),
            "client.id": client_id,
            "request.timeout.ms": 120_000 if client_id == "producing" else None,
            "socket.timeout.ms": 120_000,
            "throttle_cb": self._throttled,
            "error_cb": lambda error: self.errors.append(str(error)),
        }
        self.settings = {key: value for key, value in self.settings.items() if value is not None}

    def _throttled(self, event: ThrottleEvent) -> None:
        if event.broker_id == LEADER and event.throttle_time:
            self.throttled_s.append(event.throttle_time)


def test_a_throttled_client_is_told_so_and_keeps_its_connection(cluster: LocalCluster, topic: str) -> None:
    cluster.admin.create_topic(topic, assignment=[[LEADER, 1, 3]])
    set_topics(cluster.bootstrap_servers, [topic], LINKED)
    tools = cluster.runtime.tools(cluster.bootstrap_servers)
    for name, quota in (("producing", "producer_byte_rate"), ("consuming", "consumer_byte_rate")):
        of_client = ["--entity-type", "clients", "--entity-name", name, "--alter", "--add-config", f"{quota}={QUOTA}"]
        tools.run("org.apache.kafka.tools.ConfigCommand", ["--bootstrap-server", cluster.bootstrap_servers, *of_client])
    counters = AgentCounters(cluster)

    told = Told(cluster, "producing")
    producer = Producer({**told.settings, "linger.ms": 20, "enable.idempotence": True})
    failed: list[object] = []
    values = [f"{number}-".encode().ljust(RECORD_BYTES, b"x") for number in range(RECORDS)]
    begun_s = time.monotonic()
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failed.extend([error] if error else []))
    assert producer.flush(TIMEOUT_S) == 0
    assert not failed
    assert time.monotonic() - begun_s > AT_LEAST_S
    assert told.throttled_s
    assert told.errors == []
    assert counters.growth(REQUESTS, way="linked") > 0

    told = Told(cluster, "consuming")
    consumer = Consumer(
        {**told.settings, "group.id": "-", "enable.auto.commit": False, "max.partition.fetch.bytes": 300_000}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    begun_s = time.monotonic()
    read: list[bytes | None] = []
    while len(read) < RECORDS:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        read.append(message.value())
    took_s = time.monotonic() - begun_s
    consumer.close()
    assert read == values
    assert took_s > AT_LEAST_S
    assert told.throttled_s
    assert told.errors == []
