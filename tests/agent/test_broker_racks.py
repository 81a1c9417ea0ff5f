"""When the cluster is asked for its brokers' zones."""

import pytest

from agent.leadership import LeadershipReader
from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.responses import DescribedBroker


class Cluster:
    """Brokers that say where they stand, and count how often they are asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.asked, self.is_away = 100.0, 0, False
        self.racks: dict[int, str | None] = {1: "az1", 2: "az2"}
        monkeypatch.setattr(KafkaCluster, "brokers", lambda _: self.brokers())
        self.reader = LeadershipReader(KafkaClientConfig("nowhere:1"), 1, lambda: self.now_s)

    def brokers(self) -> list[DescribedBroker]:
        self.asked += 1
        if self.is_away:
            raise KafkaClusterError("describe cluster", "nowhere", "no broker answers")
        return [DescribedBroker(broker_id, rack) for broker_id, rack in self.racks.items()]


def test_zones_are_asked_for_at_once_and_then_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    assert cluster.reader.racks({2}) == {1: "az1", 2: "az2"}
    assert cluster.reader.racks({2}) == {}
    cluster.now_s += 29
    assert cluster.reader.racks({2}) == {}
    cluster.now_s += 1
    cluster.racks[2] = "az1"
    assert cluster.reader.racks({2}) == {1: "az1", 2: "az1"}
    assert cluster.asked == 2


def test_a_follower_that_was_never_told_of_is_asked_for_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.reader.racks({2})
    assert cluster.reader.racks({2, 3}) == {}
    cluster.now_s += 5
    cluster.racks[3] = None
    assert cluster.reader.racks({2, 3}) == {1: "az1", 2: "az2", 3: None}
    cluster.now_s += 5
    assert cluster.reader.racks({2, 3}) == {}, "it is known that it has none"


def test_a_cluster_that_does_not_answer_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch)
    cluster.is_away = True
    assert cluster.reader.racks({2}) == {}
    cluster.is_away = False
    cluster.now_s += 5
    assert cluster.reader.racks({2}) == {1: "az1", 2: "az2"}
