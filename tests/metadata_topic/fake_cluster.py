"""A cluster whose topics are in memory, as far as the making of topics asks it."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.responses import (
    UNKNOWN_TOPIC_OR_PARTITION,
    ClusterListing,
    DescribedBroker,
    DescribedPartition,
    DescribedTopic,
    Responses,
)

THREE_ZONES = [DescribedBroker(1, "a"), DescribedBroker(2, "b"), DescribedBroker(3, "c")]


class FakeCluster(KafkaCluster):
    def __init__(self, brokers: Sequence[DescribedBroker] = THREE_ZONES) -> None:
        super().__init__(KafkaClientConfig("b:9092"), "test", 1.0)
        self._living = list(brokers)
        self.assigned: dict[str, list[list[int]]] = {}
        self.configs: dict[str, dict[str, str]] = {}

    def brokers(self) -> list[DescribedBroker]:
        return self._living

    def listing(self, topic: str | None = None) -> ClusterListing:
        topics = {name: _listed(name, assignment) for name, assignment in self.assigned.items()}
        if topic is not None:
            topics = {topic: topics.get(topic, DescribedTopic(topic, UNKNOWN_TOPIC_OR_PARTITION))}
        return ClusterListing("c", {}, topics)

    def create_topic(self, topic: str, assignment: list[list[int]], config: Mapping[str, str]) -> bool:
        self.assigned[topic], self.configs[topic] = assignment, dict(config)
        return True

    def topic_configurations(self, names: Iterable[str]) -> Responses[str, dict[str, str]]:
        answers = {name: Future[Any]() for name in names}
        for name, answer in answers.items():
            answer.set_result(self.configs[name])
        return Responses("describe", "b:9092", answers, dict, 1.0)


def _listed(name: str, assignment: list[list[int]]) -> DescribedTopic:
    replicas = (DescribedPartition(number, one[0], tuple(one), tuple(one)) for number, one in enumerate(assignment))
    return DescribedTopic(name, 0, partitions=tuple(replicas))
