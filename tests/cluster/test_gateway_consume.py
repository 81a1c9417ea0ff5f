"""Consumers reach a leader of another zone by their gateway, and get most of their bytes in their own zone.

Zones az1 to az3 with a broker each; topics are led in az2. Consumers of az1 know its gateway alone, and say no rack.
"""

import random
import threading
from itertools import count
from typing import Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from local_cluster.cluster import LocalCluster
from local_cluster.polling import wait_until
from local_cluster.zones import ZoneGateways
from tests.cluster.agent_views import AgentCounters, describe
from tests.cluster.gateway_cluster import BY_OBJECTS, THREE_ZONES, with_gateways
from tests.cluster.script import PATIENCE_S, Script

GATEWAYS = ZoneGateways(THREE_ZONES)
GATEWAY, LEADER = 1, 2
CROSSED_BYTES = "remote_wal_gateway_bytes_total"
FETCHED_BYTES = "remote_wal_gateway_fetch_record_bytes_total"
RECORDS, RECORD_BYTES = 3000, 1000
RECORDS_BYTES = RECORDS * RECORD_BYTES
TIMEOUT_S = 60.0

pytestmark = pytest.mark.timeout(600)


FETCHES = {"remote.wal.gateway.fetch.rack.enable": "true", "remote.wal.gateway.fetch.links.enable": "true"}
BY_RACK = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
cluster = with_gateways(GATEWAYS, BY_OBJECTS | FETCHES, BY_RACK)


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

    def consumer(self) -> Consumer:
        settings = {"group.id": "-", "enable.auto.commit": False, "isolation.level": "read_committed"}
        consumer = Consumer({"bootstrap.servers": self.gateway, **settings})
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        return consumer

    def librdkafka(self) -> list[bytes]:
        consumer = self.consumer()
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


class Tail:
    """A consumer of az1 that reads on while records are produced."""

    def __init__(self, topics: Topic) -> None:
        self.values: list[bytes] = []
        self._topics = topics
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        consumer = self._topics.consumer()
        while not self._ends.is_set():
            messages = consumer.consume(1000, 0.1)
            self.values += [message.value() or b"" for message in messages if message.error() is None]
        consumer.close()

    def expect_all(self) -> None:
        produced = self._topics.produced
        wait_until(lambda: len(self.values) >= len(produced), "all is read", PATIENCE_S)
        assert self.values == produced

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


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
    with Script(cluster, topic) as script, Tail(topics) as tail:
        script.link_topic()

        def links_are_used() -> bool:
            counters = AgentCounters(cluster)
            topics.produce(own)
            tail.expect_all()
            return linked(counters) > RECORDS_BYTES * 0.9 and to_consumers(counters) < RECORDS_BYTES / 10

        wait_until(links_are_used, "most is read from objects", PATIENCE_S)
        for broker_id, switch in ((GATEWAY, "get-defect"), (LEADER, "put-defect")):
            counters = AgentCounters(cluster)
            script.switch(broker_id, switch)
            topics.produce(own)
            tail.expect_all()
            assert to_consumers(counters) > RECORDS_BYTES * 0.9
            script.clear_switches()
            wait_until(links_are_used, "most is read from objects again", PATIENCE_S)
