"""Clients of all zones are led to the brokers as their zone reaches them, and their records go by object storage.

Zones az1 to az3 with a broker each; topics are led in az2. Clients of az1 know its gateway alone, and say no rack.
"""

import random
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonTopicPartition

from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.zones import ZoneGateways
from tests.cluster.agent_views import AgentCounters, describe
from tests.cluster.gateway_cluster import BY_OBJECTS, THREE_ZONES, Reader, consumer_of, with_gateways
from tests.cluster.script import PATIENCE_S, Script
from tests.cluster.stored_log import read_log

GATEWAYS = ZoneGateways(THREE_ZONES, bootstrap=True)
GATEWAY, LEADER = 1, 2
CROSSED_BYTES = "remote_wal_gateway_bytes_total"
FETCHED_BYTES = "remote_wal_gateway_fetch_record_bytes_total"
SENT, RECORDS, RECORD_BYTES = 1000, 3000, 1000
RECORDS_BYTES = RECORDS * RECORD_BYTES
TIMEOUT_S = 60.0

pytestmark = pytest.mark.timeout(600)


FETCHES = {"remote.wal.gateway.fetch.rack.enable": "true", "remote.wal.gateway.fetch.links.enable": "true"}
BROKERS = {
    "transaction.state.log.num.partitions": "3",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
cluster = with_gateways(GATEWAYS, BY_OBJECTS | FETCHES, BROKERS)


class Topic:
    """Led in az2, with one partition; what is in it, and what consumers of az1 read."""

    def __init__(self, cluster: LocalCluster, topic: str, replicas: list[int]) -> None:
        self.cluster, self.topic = cluster, topic
        self.gateway = GATEWAYS.bootstrap_servers(cluster.layout, "az1")
        self.produced: list[bytes] = []
        self._values, self._groups = random.Random(7), count()
        cluster.admin.create_topic(topic, assignment=[replicas], config={"min.insync.replicas": "1"})

    def produce(self, bootstrap: str, **settings: object) -> None:
        """Records that no codec makes smaller."""
        told = {"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all", **settings}
        producer, failed = Producer({key.replace("_", "."): value for key, value in told.items()}), list[object]()
        for _ in range(RECORDS):
            self.produced.append(self._values.randbytes(RECORD_BYTES))
            producer.produce(
                self.topic, self.produced[-1], on_delivery=lambda error, _: failed.append(error) if error else None
            )
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0
        assert not failed

    def produce_transactions(self) -> None:
        """Every other one of them is aborted; by the leader's own listener."""
        producer = Producer(
            {"bootstrap.servers": self.cluster.layout.bootstrap_servers, "transactional.id": self.topic, "linger.ms": 5}
        )
        producer.init_transactions(TIMEOUT_S)
        for number in range(20):
            producer.begin_transaction()
            values = [self._values.randbytes(RECORD_BYTES) for _ in range(RECORDS // 20)]
            for value in values:
                producer.produce(self.topic, value)
            producer.flush(TIMEOUT_S)
            if number % 2:
                producer.abort_transaction(TIMEOUT_S)
            else:
                producer.commit_transaction(TIMEOUT_S)
                self.produced += values

    def wait_until_stored(self) -> None:
        def stored() -> bool:
            [led] = [one for one in describe(self.cluster, LEADER)["partitions"] if one["topic"] == self.topic]
            return bool(led["uploaded_offset"] == led["log_end_offset"] >= len(self.produced))

        wait_until(stored, "objects hold all of it", PATIENCE_S)

    def librdkafka(self) -> list[bytes]:
        consumer = consumer_of(self.gateway, self.topic)
        values: list[bytes] = []
        while len(values) < len(self.produced) and (messages := consumer.consume(1000, TIMEOUT_S)):
            values += [message.value() or b"" for message in messages if message.error() is None]
        consumer.close()
        return values

    def kafka_python(self) -> list[bytes]:
        consumer = KafkaConsumer(
            bootstrap_servers=self.gateway.split(","),
            group_id=None,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        where = PythonTopicPartition(self.topic, 0)
        consumer.assign([where])
        consumer.seek_to_beginning(where)
        values: list[bytes] = []
        while len(values) < len(self.produced) and (
            found := consumer.poll(TIMEOUT_S * 1000, max_records=1000).get(where)
        ):
            values += [record.value for record in found]
        consumer.close()
        return values

    def java(self) -> int:
        """Its values are its own, so only their number is known."""
        settings = {"group.id": f"{self.topic}-{next(self._groups)}", "isolation.level": "read_committed"}
        tools = self.cluster.runtime.tools(self.gateway)
        return min(tools.consume(self.topic, records=len(self.produced), config=settings), len(self.produced))


def to_consumers(counters: AgentCounters) -> float:
    """Bytes that crossed zones to az1."""
    return counters.growth(CROSSED_BYTES, side="gateway", zone="az1", direction="to_client", broker=str(LEADER))


def linked(counters: AgentCounters) -> float:
    """Record bytes that consumers of az1 were sent by object storage."""
    return counters.growth(FETCHED_BYTES, zone="az1", way="linked")


def test_consumers_of_a_zone_without_a_replica_read_what_is_stored_from_objects(
    cluster: LocalCluster, topic: str
) -> None:
    topics = Topic(cluster, topic, [LEADER])
    with Script(cluster, topic) as script:
        script.link_topic()
        topics.produce(cluster.layout.bootstrap_servers)
        topics.produce_transactions()
        topics.wait_until_stored()
        log_bytes, counters = 2 * RECORDS_BYTES, AgentCounters(cluster)  # what was aborted is read, too
        assert topics.librdkafka() == topics.produced
        before = linked(counters)
        assert before > log_bytes * 0.6, "of the first consumer, what comes first may go inline"
        assert topics.java() == len(topics.produced)
        assert linked(counters) - before > log_bytes * 0.85
        assert to_consumers(counters) < 2 * log_bytes * 0.25
        before = linked(counters)
        assert topics.kafka_python() == topics.produced
        assert linked(counters) == before, "it asks for topics by their names"


def test_a_consumer_at_the_end_of_the_log_reads_from_objects_while_the_store_answers(
    cluster: LocalCluster, topic: str
) -> None:
    # produced -> the store fails for the gateway, then for the leader -> it is there again
    topics, own = Topic(cluster, topic, [LEADER]), cluster.layout.bootstrap_servers
    with Script(cluster, topic) as script, Reader(topics.gateway, topic) as tail:
        script.link_topic()

        def expect_all() -> None:
            wait_until(lambda: len(tail.values) >= len(topics.produced), "all is read", PATIENCE_S)
            assert tail.values == topics.produced

        def links_are_used() -> bool:
            counters = AgentCounters(cluster)
            topics.produce(own)
            expect_all()
            return linked(counters) > RECORDS_BYTES * 0.9 and to_consumers(counters) < RECORDS_BYTES / 10

        wait_until(links_are_used, "most is read from objects", PATIENCE_S)
        for broker_id, switch in ((GATEWAY, "get-defect"), (LEADER, "put-defect")):
            counters = AgentCounters(cluster)
            script.switch(broker_id, switch)
            topics.produce(own)
            expect_all()
            assert to_consumers(counters) > RECORDS_BYTES * 0.9
            script.clear_switches()
            wait_until(links_are_used, "most is read from objects again", PATIENCE_S)


LINKED_BYTES = "remote_wal_gateway_produce_linked_bytes_total"


class Clients:
    """Of zone az1, one after the other, and what they have produced."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self.bootstrap = GATEWAYS.bootstrap_servers(cluster.layout, "az1")
        self.produced: list[bytes] = []
        cluster.admin.create_topic(topic, assignment=[[LEADER, 1, 3]])

    def values(self, name: str) -> list[bytes]:
        made = [f"{name}-{number}-".encode().ljust(RECORD_BYTES, b"x") for number in range(SENT)]
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
        produced = tools.produce(self.topic, records=SENT, record_bytes=RECORD_BYTES, config={"acks": acks})
        assert produced.records == SENT
        self.produced += self.read()[len(self.produced) :]
        assert len(self.produced) % SENT == 0

    def read(self) -> list[bytes]:
        return [value.encode() for value in read_log(self.cluster, self.topic)]

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
    record_bytes = 7 * SENT * RECORD_BYTES
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


@pytest.mark.parametrize("client_id", ["app", "app,zone=az3"])
def test_java_clients_go_on_from_one_address(cluster: LocalCluster, topic: str, tmp_path: Path, client_id: str) -> None:
    cluster.admin.create_topic(topic, assignment=[[1, 2], [2, 3], [3, 1]])
    address = GATEWAYS.bootstrap_address(cluster.layout, 2)
    config = tmp_path / "client.properties"
    config.write_text(f"client.id={client_id}\nauto.offset.reset=earliest\n")
    tools, counters = cluster.runtime.tools(address), AgentCounters(cluster)
    common = ["--bootstrap-server", address, "--topic", topic, "--command-config", str(config)]
    tools.run(
        "org.apache.kafka.tools.ProducerPerformance",
        [*common, "--num-records", str(500), "--record-size", "1000", "--throughput", "-1"],
    )
    told = tools.run(
        "org.apache.kafka.tools.ConsumerPerformance",
        [*common, "--num-records", str(500), "--timeout", "30000", "--group", topic],
    )
    assert str(500) in told
    # The agent that it asked stands in az2; the brokers that it goes on at are those of its own zone.
    zone = "az3" if "az3" in client_id else "az2"
    assert counters.growth(CROSSED_BYTES, side="gateway", zone=zone, direction="to_client") > 0
    others = {"az1", "az2", "az3"} - {zone}
    assert sum(counters.growth(CROSSED_BYTES, side="gateway", zone=one, direction="to_client") for one in others) == 0
