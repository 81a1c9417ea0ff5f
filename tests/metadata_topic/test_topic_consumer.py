"""The adapter of the real consumer, against the brokers that librdkafka has in itself for tests."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaException, Producer

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from metadata_topic.topic.topic_consumer import ConfluentReader, ConsumerLike


@dataclass
class Rig:
    reader: ConsumerLike
    partitions: range


@pytest.fixture
def rig() -> Iterator[Rig]:
    producer = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "unused"})
    brokers = producer.list_topics(timeout=10).brokers.values()
    for number in range(7):
        producer.produce("t", b"x", partition=number % 3)
    assert producer.flush(10) == 0
    reader = ConfluentReader(
        {
            "bootstrap.servers": ",".join(f"{broker.host}:{broker.port}" for broker in brokers),
            "group.id": "g",
            "enable.partition.eof": True,
        },
        KafkaCluster(KafkaClientConfig("nowhere:1"), "c", 1.0),
    )
    yield Rig(reader, range(reader.partition_count("t", 10)))
    reader.close()


def test_begins_and_ends_of_all_partitions_are_told_at_once(rig: Rig) -> None:
    assert len(rig.partitions) >= 3
    ends = rig.reader.end_offsets("t", rig.partitions, 10)
    assert [ends[partition] for partition in range(3)] == [3, 2, 2]
    assert set(ends) == set(rig.partitions)
    assert rig.reader.begin_offsets("t", rig.partitions, 10) == dict.fromkeys(rig.partitions, 0)


def test_of_no_partitions_nothing_is_asked(rig: Rig) -> None:
    assert rig.reader.end_offsets("t", [], 0.0) == {}


def test_a_partition_that_is_not_there_is_an_error_and_no_offset(rig: Rig) -> None:
    with pytest.raises(KafkaException):
        rig.reader.end_offsets("t", [0, len(rig.partitions)], 2.0)
