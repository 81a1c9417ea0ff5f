"""No client of ours makes a topic by asking for it: looked at on the wire, where each says whether it may be made."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kafka_cluster.client_config import ConfluentValue, KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from metadata_topic.topic.topic_producer import confluent_producer
from retention_job.sources.kafka import FETCHING
from tests.metadata_topic.metadata_recorder import MetadataRecorder

ROOT = Path(__file__).parent.parent.parent
TOPIC = "not-there"
CLIENTS = ("Producer", "Consumer", "AdminClient")


def _settings(client: KafkaClientConfig, **overrides: ConfluentValue) -> dict[str, Any]:
    return {**client.for_confluent(topic_metadata_refresh_interval_ms=300, **overrides), "log_level": 0}


def _produces(client: KafkaClientConfig) -> None:
    producer = Producer(_settings(client))
    producer.produce(TOPIC, b"x", partition=0)
    producer.flush(1.0)


def _asks_for_partitions(client: KafkaClientConfig) -> None:
    assert confluent_producer(_settings(client)).partition_count(TOPIC, 5.0) == 0


def _consumes(client: KafkaClientConfig) -> None:
    consumer = Consumer(_settings(client, group_id="g"))
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    consumer.consume(1, 1.0)
    consumer.close()


def _lists(client: KafkaClientConfig) -> None:
    AdminClient(_settings(client)).list_topics(TOPIC, timeout=5.0)


def _describes(client: KafkaClientConfig) -> None:
    assert [topic.error_code for topic in KafkaCluster(client, "d", 5.0).topics([TOPIC])] == [3]


@pytest.mark.parametrize("use", [_produces, _asks_for_partitions, _consumes, _lists, _describes])
def test_asking_for_a_topic_says_that_it_is_not_to_be_made(use: Callable[[KafkaClientConfig], None]) -> None:
    with MetadataRecorder() as broker:
        use(KafkaClientConfig(broker.address))
        assert {asked.may_create for asked in broker.wait_for(TOPIC)} == {False}


def test_a_producer_that_is_not_told_so_would_have_it_made() -> None:
    # As long as this holds, the test above can fail.
    with MetadataRecorder() as broker:
        admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
        with pytest.raises(KafkaException):
            raise KafkaException(admin.list_topics(TOPIC, timeout=5.0).topics[TOPIC].error)
        assert {asked.may_create for asked in broker.wait_for(TOPIC)} == {True}


def test_sparks_consumers_are_told_so_too() -> None:
    assert FETCHING["kafka.allow.auto.create.topics"] == "false"


def test_every_client_gets_its_settings_where_that_is_among_them() -> None:
    """Wherever a client of librdkafka is made, what it is given comes from `KafkaClientConfig`, or says so itself."""
    made = 0
    packages = [one for one in ROOT.iterdir() if one.is_dir() and one.name != "tests" and not one.name.startswith(".")]
    for path in sorted(path for package in packages for path in package.rglob("*.py")):
        source = path.read_text()
        if not any(f"{client}(" in source for client in CLIENTS):
            continue
        for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Name) and call.func.id in CLIENTS:
                made += 1
                given = ast.get_source_segment(source, call.args[0]) or ""
                told = any(
                    word in given for word in ("for_confluent", "CLIENT_CONFIG", "self._config", "allow.auto.create")
                )
                assert told or given == "config", f"{path.relative_to(ROOT)}: {given}"
    assert made > 10
