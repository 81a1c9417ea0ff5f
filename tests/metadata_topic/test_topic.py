"""The topics' layout and making."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_cluster.responses import DescribedBroker
from metadata_topic.records.errors import TopicSetupError
from metadata_topic.topic.topic import (
    METADATA_TOPIC,
    SETTINGS_TOPIC,
    MetadataTopicSettings,
    ensure_topics,
    metadata_partition,
    replica_assignment,
)
from tests.metadata_topic.fake_cluster import THREE_ZONES, FakeCluster


@given(
    st.dictionaries(st.integers(0, 50), st.none() | st.sampled_from("abc"), min_size=1, max_size=9),
    st.integers(1, 20),
    st.integers(1, 4),
)
def test_every_layout_is_legal_and_led_by_the_publisher_where_there_is_one(
    racks: dict[int, str | None], partitions: int, replicas: int
) -> None:
    brokers = [DescribedBroker(*item) for item in racks.items()]
    replicas = min(replicas, len(brokers))
    layout = replica_assignment(brokers, partitions, replicas)
    assert len(layout) == partitions
    for partition, chosen in enumerate(layout):
        assert len(set(chosen)) == len(chosen) == replicas
        assert set(chosen) <= set(racks)
        publishers = [b for b in racks if metadata_partition(b, partitions) == partition]
        assert not publishers or chosen[0] in publishers


def test_replicas_are_spread_over_the_racks() -> None:
    brokers = [DescribedBroker(n, "abc"[n % 3]) for n in range(9)]
    for chosen in replica_assignment(brokers, 12, 3):
        assert {"abc"[n % 3] for n in chosen} == {"a", "b", "c"}


def test_partitions_that_no_agent_writes_are_led_in_turn() -> None:
    leaders = [chosen[0] for chosen in replica_assignment(THREE_ZONES, 12, 3)]
    assert leaders[1:4] == [1, 2, 3]
    assert {leaders.count(n) for n in (1, 2, 3)} <= {3, 4, 5}


def test_too_few_brokers_is_told_with_the_key_to_change() -> None:
    with pytest.raises(TopicSetupError, match=r"remote\.wal\.log\.metadata\.topic\.replication\.factor") as error:
        ensure_topics(FakeCluster(THREE_ZONES[:2]), MetadataTopicSettings())
    assert error.value.retriable


def test_both_topics_are_made_once() -> None:
    cluster = FakeCluster()
    ensure_topics(cluster, MetadataTopicSettings())
    assert {topic: len(assignment) for topic, assignment in cluster.assigned.items()} == {
        METADATA_TOPIC: 12,
        SETTINGS_TOPIC: 1,
    }
    assert cluster.configs[METADATA_TOPIC]["cleanup.policy"] == "delete"
    assert cluster.configs[METADATA_TOPIC]["retention.ms"] == "691200000"
    assert cluster.configs[SETTINGS_TOPIC]["cleanup.policy"] == "compact"
    cluster.configs = {METADATA_TOPIC: {"retention.ms": "60000"}, SETTINGS_TOPIC: {}}
    ensure_topics(cluster, MetadataTopicSettings())
    assert cluster.configs == {METADATA_TOPIC: {"retention.ms": "60000"}, SETTINGS_TOPIC: {}}


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
