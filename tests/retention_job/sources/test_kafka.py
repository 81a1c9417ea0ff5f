from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from kafka_cluster.answers import ClusterListing, DescribedPartition, DescribedTopic
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_log.topic_partition import TopicId
from metadata_topic.topic.topic import METADATA_TOPIC
from retention_job.errors import SourceError
from retention_job.sources.kafka import Offsets, _ask, offsets_by_topic


def test_a_log_does_not_end_before_it_begins_though_both_were_asked_at_once() -> None:
    earliest = {("orders", 0): 120, ("orders", 1): 0}
    latest = {("orders", 0): 100, ("orders", 1): 7}
    assert offsets_by_topic(earliest, latest, {"orders": [0, 1]}) == {"orders": Offsets({0: 120, 1: 0}, {0: 120, 1: 7})}


def test_what_went_while_it_was_asked_for_has_no_offsets() -> None:
    assert offsets_by_topic({("a", 0): 1}, {("a", 0): 2}, {"a": [0, 1], "b": [0]}) == {
        "a": Offsets({0: 1}, {0: 2}),
        "b": Offsets({}, {}),
    }


class PlayedCluster:
    """A cluster in which partition 1 of `solo` has no leader, and that of `moved` goes while it is asked."""

    client = KafkaClientConfig("nowhere:1")

    def __init__(self, *leaderless: tuple[str, int]) -> None:
        self._leaderless = {("solo", 1), *leaderless}

    def listing(self) -> ClusterListing:
        def described(name: str) -> DescribedTopic:
            partitions = (
                DescribedPartition(one, -1 if (name, one) in self._leaderless else 1, (1,), (1,)) for one in (0, 1)
            )
            return DescribedTopic(name, 0, TopicId(name.encode().ljust(16)[:16]), tuple(partitions))

        return ClusterListing("id", {1: "a"}, {name: described(name) for name in (METADATA_TOPIC, "solo", "moved")})

    def topics(self, names: Sequence[str]) -> list[DescribedTopic]:
        return [self.listing().topics[name] for name in names]

    def topic_configurations(self, names: Iterable[str]) -> SimpleNamespace:
        return SimpleNamespace(get_all=lambda _missing: {name: {} for name in names})

    def offsets(self, partitions: Iterable[tuple[str, int]], at: int) -> SimpleNamespace:
        asked = list(partitions)
        assert not self._leaderless & set(asked), "librdkafka would wait for a leader"
        gone = KafkaClusterError("ask", "moved", "no leader", code=5)
        return SimpleNamespace(each=lambda: ((one, gone if one == ("moved", 0) else 7) for one in asked))


def test_a_partition_without_a_leader_is_named_and_all_others_are_told() -> None:
    found = _ask(cast(KafkaCluster, PlayedCluster()))
    assert found.unanswered == {("solo", 1), ("moved", 0)}
    assert found.offsets["solo"] == Offsets({0: 7}, {0: 7})
    assert found.offsets["moved"] == Offsets({1: 7}, {1: 7})


def test_without_the_metadata_nothing_is_judged() -> None:
    with pytest.raises(SourceError, match="it has no leader"):
        _ask(cast(KafkaCluster, PlayedCluster((METADATA_TOPIC, 0))))
