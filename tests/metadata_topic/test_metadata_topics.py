"""The agents' two topics are made by one agent, whenever they are missing, and judged for as long as the agent runs."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import structlog

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.responses import UNKNOWN_TOPIC_OR_PARTITION, ClusterListing, DescribedTopic
from metadata_topic.topic.metadata_topics import MetadataTopics
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC, MetadataTopicSettings
from tests.metadata_topic.fake_cluster import FakeCluster

GRACE_MS = 60_000


class Rig:
    """The parts of the agents of three brokers that look after the topics."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.now_s = 100.0
        self.held: list[str | None] = []
        self.longest_retention_ms: int | None = None
        self.agents = {number: self._agent(number) for number in (1, 2, 3)}

    def _agent(self, broker_id: int) -> MetadataTopics:
        return MetadataTopics(
            KafkaClientConfig("b:9092"),
            MetadataTopicSettings(),
            GRACE_MS,
            lambda: self.longest_retention_ms,
            broker_id,
            ThreadPoolExecutor(1),  # never used: looks are called by the test
            self.held.append,
            lambda: self.cluster,
            lambda: self.now_s,
        )


def test_the_agent_with_the_lowest_id_makes_the_topics_and_the_others_find_them() -> None:
    rig = Rig()
    assert not rig.agents[2].look()
    assert not rig.agents[3].look()
    assert rig.cluster.assigned == {}
    assert rig.agents[1].look()
    assert {topic: len(made) for topic, made in rig.cluster.assigned.items()} == {METADATA_TOPIC: 12, SETTINGS_TOPIC: 1}
    assert all(agent.look() for agent in rig.agents.values())
    assert not any(agent.problems for agent in rig.agents.values())


def test_where_no_agent_runs_beside_the_first_broker_the_next_one_makes_them() -> None:
    rig = Rig()
    assert not rig.agents[2].look()
    rig.now_s += 2.0
    assert not rig.agents[2].look()
    rig.now_s += 2.0
    assert rig.agents[2].look()


def test_a_topic_that_goes_missing_is_made_anew_as_it_was_made_first() -> None:
    rig = Rig()
    assert rig.agents[1].look()
    made = rig.cluster.configs[SETTINGS_TOPIC]
    del rig.cluster.assigned[SETTINGS_TOPIC], rig.cluster.configs[SETTINGS_TOPIC]
    assert not rig.agents[2].look()
    assert rig.agents[1].look()
    assert rig.agents[2].look()
    assert rig.cluster.configs[SETTINGS_TOPIC] == made


def test_what_would_lose_records_holds_publication_until_it_is_mended() -> None:
    rig = Rig()
    agent = rig.agents[1]
    agent.look()
    rig.cluster.configs[METADATA_TOPIC]["cleanup.policy"] = "compact"
    with structlog.testing.capture_logs() as told:
        agent.look()
        agent.look()
        rig.cluster.configs[METADATA_TOPIC]["cleanup.policy"] = "delete"
        agent.look()
    assert [event["event"] for event in told] == ["metadata_topic_problem", "metadata_topic_mended"]
    assert "--add-config cleanup.policy=delete" in told[0]["change"]
    assert [reason and "compact" in reason for reason in rig.held] == [None, True, True, None]
    assert agent.problems == ()


def test_what_makes_metadata_less_safe_is_told_and_holds_nothing() -> None:
    rig = Rig()
    agent = rig.agents[1]
    agent.look()
    agent.retention_seen(10 * 24 * 3_600_000)
    agent.retention_seen(None)
    agent.look()
    [problem] = agent.problems
    assert f"retention.ms={10 * 24 * 3_600_000 + 60_000}" in problem.change
    assert set(rig.held) == {None}


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_settings_topic_that_retention_cuts_is_told_with_what_mends_it(policy: str) -> None:
    rig = Rig()
    agent = rig.agents[1]
    agent.look()
    rig.cluster.configs[SETTINGS_TOPIC]["cleanup.policy"] = policy
    agent.look()
    [problem] = agent.problems
    assert f"--topic {SETTINGS_TOPIC} --add-config cleanup.policy=compact" in problem.change
    assert set(rig.held) == {None}


def test_another_number_of_partitions_is_no_problem() -> None:
    rig = Rig()
    agent = rig.agents[1]
    agent.look()
    rig.cluster.assigned[METADATA_TOPIC] = rig.cluster.assigned[METADATA_TOPIC][:5]
    assert agent.look()
    assert agent.problems == ()


def test_where_the_metadata_topic_alone_was_lost_it_is_made_with_the_retention_that_enabled_topics_need() -> None:
    rig = Rig()
    assert rig.agents[1].look()
    first_ms = int(rig.cluster.configs[METADATA_TOPIC]["retention.ms"])
    rig.longest_retention_ms = first_ms + 3_600_000
    del rig.cluster.assigned[METADATA_TOPIC], rig.cluster.configs[METADATA_TOPIC]
    assert rig.agents[1].look()
    assert int(rig.cluster.configs[METADATA_TOPIC]["retention.ms"]) >= first_ms + 3_600_000 + GRACE_MS


class Unheard(FakeCluster):
    """A client whose certificate has expired."""

    def listing(self, topic: str | None = None) -> ClusterListing:
        raise KafkaClusterError(f"list topic {topic}", "b:9092", "SSL handshake failed")


async def test_after_a_cluster_did_not_answer_the_client_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata_topic.topic.metadata_topics._RETRY_S", 0.0)
    clients = [FakeCluster(), Unheard()]
    client, made = KafkaClientConfig("b:9092"), MetadataTopicSettings()
    with ThreadPoolExecutor(1) as threads:
        await MetadataTopics(client, made, GRACE_MS, int, 1, threads, lambda _reason: None, clients.pop).make()
    assert not clients


class Slow(FakeCluster):
    """Does not show the metadata topic at once."""

    not_seen_yet = 3

    def listing(self, topic: str | None = None) -> ClusterListing:
        if topic == METADATA_TOPIC and self.not_seen_yet:
            self.not_seen_yet -= 1
            return ClusterListing("c", {}, {topic: DescribedTopic(topic, UNKNOWN_TOPIC_OR_PARTITION)})
        return super().listing(topic)


async def test_topics_just_made_are_looked_for_until_a_broker_knows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata_topic.topic.metadata_topics._RETRY_S", 0.0)
    cluster, client, made = Slow(), KafkaClientConfig("b:9092"), MetadataTopicSettings()
    with ThreadPoolExecutor(1) as threads:
        await MetadataTopics(client, made, GRACE_MS, int, 1, threads, lambda _reason: None, lambda: cluster).make()
    assert (set(cluster.assigned), cluster.not_seen_yet) == ({METADATA_TOPIC, SETTINGS_TOPIC}, 0)
