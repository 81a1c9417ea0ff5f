"""Clients produce to a broker of another zone through their gateway, and their records go by object storage.

Zones az1 to az3 with a broker each; the topic is led in az2. Clients of az1 know its gateway alone.
"""

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer

from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.zones import ZoneGateways
from tests.cluster.agent_views import AgentCounters
from tests.cluster.gateway_cluster import BY_OBJECTS, THREE_ZONES, with_gateways
from tests.cluster.script import PATIENCE_S
from tests.cluster.test_gateway_durable import read

GATEWAYS = ZoneGateways(THREE_ZONES)
GATEWAY, LEADER = 1, 2
LINKED_BYTES = "remote_wal_gateway_produce_linked_bytes_total"
CROSSED_BYTES = "remote_wal_gateway_bytes_total"
RECORDS, RECORD_BYTES = 1000, 1000
TIMEOUT_S = 60.0

pytestmark = pytest.mark.timeout(600)


cluster = with_gateways(GATEWAYS, BY_OBJECTS, {"transaction.state.log.num.partitions": "3"})


class Clients:
    """Of zone az1, one after the other, and what they have produced."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self.bootstrap = GATEWAYS.bootstrap_servers(cluster.layout, "az1")
        self.produced: list[bytes] = []
        cluster.admin.create_topic(topic, assignment=[[LEADER, 1, 3]])

    def values(self, name: str) -> list[bytes]:
        made = [f"{name}-{number}-".encode().ljust(RECORD_BYTES, b"x") for number in range(RECORDS)]
        self.produced += made
        return made

    def librdkafka(self, name: str, **settings: object) -> None:
        told = {"bootstrap.servers": self.bootstrap, "linger.ms": 5, **settings}
        producer = Producer({key.replace("_", "."): value for key, value in told.items()})
        failed: list[object] = []

        def delivered(error: object, _message: object) -> None:
            failed.extend([error] if error is not None else [])

        is_transactional = "transactional_id" in settings
        if is_transactional:
            producer.init_transactions(TIMEOUT_S)
            producer.begin_transaction()
        for number, value in enumerate(self.values(name)):
            producer.produce(self.topic, value, on_delivery=delivered)
            if number % 100 == 99:
                producer.poll(0.01)
        if is_transactional:
            producer.commit_transaction(TIMEOUT_S)
        assert producer.flush(TIMEOUT_S) == 0
        assert not failed
        self.wait_until_read()

    def kafka_python(self, name: str, acks: int | str) -> None:
        producer = KafkaProducer(bootstrap_servers=self.bootstrap.split(","), acks=acks, linger_ms=5)
        sent = [producer.send(self.topic, value) for value in self.values(name)]
        producer.flush(TIMEOUT_S)
        assert all(one.succeeded() for one in sent)
        self.wait_until_read()
        producer.close()

    def java(self, acks: str) -> None:
        """Its values are its own, so only their number is known."""
        tools = self.cluster.runtime.tools(self.bootstrap)
        produced = tools.produce(self.topic, records=RECORDS, record_bytes=RECORD_BYTES, config={"acks": acks})
        assert produced.records == RECORDS
        self.produced += self.read()[len(self.produced) :]
        assert len(self.produced) % RECORDS == 0

    def read(self) -> list[bytes]:
        return [value.encode() for value in read(self.cluster, self.topic)]

    def wait_until_read(self) -> None:
        """With acks=0 nobody says when it is there."""
        wait_until(lambda: len(self.read()) >= len(self.produced), "all is in the log", PATIENCE_S)
        assert self.read() == self.produced


@pytest.mark.gate
def test_what_clients_produce_goes_by_object_storage_and_is_in_the_log_as_they_sent_it(
    cluster: LocalCluster, topic: str
) -> None:
    clients, counters = Clients(cluster, topic), AgentCounters(cluster)
    clients.librdkafka("idempotent", enable_idempotence=True)
    clients.librdkafka("leader", acks=1)
    clients.librdkafka("transactional", transactional_id=f"{topic}-1")
    clients.kafka_python("python", "all")
    clients.kafka_python("python-leader", 1)
    clients.java("all")
    clients.java("1")
    record_bytes = 7 * RECORDS * RECORD_BYTES
    assert counters.growth(LINKED_BYTES) > record_bytes * 0.9
    assert counters.growth(CROSSED_BYTES, side="gateway", direction="to_broker", broker=str(LEADER)) < record_bytes / 5
    before = counters.growth(LINKED_BYTES)
    clients.librdkafka("none", acks=0)
    clients.kafka_python("python-none", 0)
    assert counters.growth(LINKED_BYTES) == before
    stored = cluster.layout.directory.rglob("router/**/*")
    wait_until(lambda: not any(one.is_file() for one in stored), "the channel is empty", PATIENCE_S)
    log = cluster.layout.partition_directory(LEADER, topic, 0)
    assert log is not None
    assert cluster.runtime.tools(clients.bootstrap).dump_log(*sorted(log.glob("*.log")), deep=True)
