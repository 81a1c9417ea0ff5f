"""What `remote-wal held restore` produces, against a broker that librdkafka has in itself for tests."""

import random

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from cli.recovery import held
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.plain_records import PlainRecord

_WAIT_S = 60.0


def test_records_of_any_size_are_appended_in_their_order_though_the_queue_is_full() -> None:
    random_bytes = random.Random(3).randbytes
    sizes = [10, 1_500_000, 900_000, 1_000_001, 10]
    values = [random_bytes(size) for size in sizes]
    broker = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "unused"})
    broker.produce("orders", b"makes the topic", partition=0)
    assert broker.flush(_WAIT_S) == 0
    [one] = broker.list_topics(timeout=_WAIT_S).brokers.values()
    client = KafkaClientConfig(f"{one.host}:{one.port}", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(held.AS_IT_WAS, "queue.buffering.max.kbytes", 2_000)
        records = (PlainRecord(at, None, value, at, 0, ()) for at, value in enumerate(values))
        assert held.produce(client, "orders", 0, records) == (len(values), 0, [])
    consumer = Consumer(
        {"bootstrap.servers": client.bootstrap_servers, "group.id": "g", "fetch.max.bytes": 100_000_000}
    )
    consumer.assign([TopicPartition("orders", 0, 1)])
    found = consumer.consume(len(values), _WAIT_S)
    assert [one.value() for one in found] == values
    assert [one.timestamp()[1] for one in found] == [1, 1, 2, 3, 4], "librdkafka takes 0 for the present time"
    consumer.close()
