"""The topics' layout and making."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_cluster.client_config import KafkaClientConfig
from metadata_topic.records.errors import TopicSetupError
from metadata_topic.topic.topic import (
    METADATA_TOPIC,
    SETTINGS_TOPIC,
    Broker,
    MetadataTopicSettings,
    ensure_topics,
    metadata_partition,
    replica_assignment,
)
from metadata_topic.topic.topic_requirements import TopicLayout

THREE_ZONES = [Broker(1, "a"), Broker(2, "b"), Broker(3, "c")]
NOWHERE = KafkaClientConfig("nowhere:1")


class FakeAdmin:
    def __init__(self, brokers: list[Broker], existing: dict[str, int] | None = None) -> None:
        self._brokers = brokers
        self.topics = existing or {}
        self.configs: dict[str, dict[str, str]] = {}
        self.not_seen_yet = 0

    def brokers(self) -> list[Broker]:
        return self._brokers

    def partition_counts(self) -> dict[str, int]:
        if self.not_seen_yet and METADATA_TOPIC in self.topics:
            self.not_seen_yet -= 1
            return {}
        return dict(self.topics)

    def layout(self, topic: str) -> TopicLayout | None:
        count = self.partition_counts().get(topic)
        return None if count is None else TopicLayout(count, min(3, len(self._brokers)))

    def create(self, topic: str, assignment: list[list[int]], config: Mapping[str, str]) -> bool:
        self.topics[topic], self.configs[topic] = len(assignment), dict(config)
        return True

    def topic_config(self, topic: str) -> dict[str, str]:
        return self.configs.get(topic, {})


@given(
    st.dictionaries(st.integers(0, 50), st.none() | st.sampled_from("abc"), min_size=1, max_size=9),
    st.integers(1, 20),
    st.integers(1, 4),
)
def test_every_layout_is_legal_and_led_by_the_publisher_where_there_is_one(
    racks: dict[int, str | None], partitions: int, replicas: int
) -> None:
    brokers = [Broker(*item) for item in racks.items()]
    replicas = min(replicas, len(brokers))
    layout = replica_assignment(brokers, partitions, replicas)
    assert len(layout) == partitions
    for partition, chosen in enumerate(layout):
        assert len(set(chosen)) == len(chosen) == replicas
        assert set(chosen) <= set(racks)
        publishers = [b for b in racks if metadata_partition(b, partitions) == partition]
        assert not publishers or chosen[0] in publishers


def test_replicas_are_spread_over_the_racks() -> None:
    brokers = [Broker(n, "abc"[n % 3]) for n in range(9)]
    for chosen in replica_assignment(brokers, 12, 3):
        assert {"abc"[n % 3] for n in chosen} == {"a", "b", "c"}


def test_partitions_that_no_agent_writes_are_led_in_turn() -> None:
    leaders = [chosen[0] for chosen in replica_assignment(THREE_ZONES, 12, 3)]
    assert leaders[1:4] == [1, 2, 3]
    assert {leaders.count(n) for n in (1, 2, 3)} <= {3, 4, 5}


def test_too_few_brokers_is_told_with_the_key_to_change() -> None:
    with pytest.raises(TopicSetupError, match=r"remote\.wal\.log\.metadata\.topic\.replication\.factor") as error:
        ensure_topics(NOWHERE, MetadataTopicSettings(), admin=FakeAdmin(THREE_ZONES[:2]))
    assert error.value.retriable


def test_both_topics_are_made_once() -> None:
    admin = FakeAdmin(THREE_ZONES)
    ensure_topics(NOWHERE, MetadataTopicSettings(), admin=admin)
    assert admin.topics == {METADATA_TOPIC: 12, SETTINGS_TOPIC: 1}
    assert admin.configs[METADATA_TOPIC]["cleanup.policy"] == "delete"
    assert admin.configs[METADATA_TOPIC]["retention.ms"] == "691200000"
    assert admin.configs[SETTINGS_TOPIC]["cleanup.policy"] == "compact"
    admin.configs = {METADATA_TOPIC: {"retention.ms": "60000"}, SETTINGS_TOPIC: {}}
    ensure_topics(NOWHERE, MetadataTopicSettings(), admin=admin)
    assert admin.configs == {METADATA_TOPIC: {"retention.ms": "60000"}, SETTINGS_TOPIC: {}}


def test_it_waits_until_a_topic_just_made_is_seen() -> None:
    admin = FakeAdmin(THREE_ZONES)
    admin.not_seen_yet = 3
    waits: list[float] = []
    ensure_topics(NOWHERE, MetadataTopicSettings(), admin=admin, wait=waits.append)
    assert len(waits) == 3


def test_a_topic_that_no_broker_ever_knows_is_an_error_that_names_it() -> None:
    admin = FakeAdmin(THREE_ZONES)
    admin.not_seen_yet = 10**6
    with pytest.raises(TopicSetupError, match=METADATA_TOPIC):
        ensure_topics(NOWHERE, MetadataTopicSettings(), 1.0, admin=admin, wait=lambda _seconds: None)


@pytest.mark.parametrize(
    ("configured_ms", "local_ms", "grace_ms", "expected_ms"),
    [(1000, 500, 100, 1000), (1000, 1000, 100, 1100), (1000, -1, 100, -1), (-1, 5000, 100, -1)],
)
def test_the_topic_keeps_records_as_long_as_objects_live_and_never_shorter_than_configured(
    configured_ms: int, local_ms: int, grace_ms: int, expected_ms: int
) -> None:
    covering = MetadataTopicSettings(retention_ms=configured_ms).covering(local_ms, grace_ms)
    assert covering.retention_ms == expected_ms
    assert covering.metadata_topic_config()["retention.ms"] == str(expected_ms)
    assert int(covering.metadata_topic_config()["segment.ms"]) >= 60_000
