"""What is concluded from the cluster's answers about topics: only what they say."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import KafkaError

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import EARLIEST, KafkaCluster
from kafka_cluster.responses import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    ClusterListing,
    DescribedPartition,
    DescribedTopic,
    Responses,
)
from kafka_log.topic_partition import TopicId, topic_id_to_text
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_table import AGENTS, TOPICS
from metadata_topic.settings.settings_topic import SettingsReader, read_settings
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings
from metadata_topic.topic.topic import METADATA_TOPIC
from rlm.lifecycle import cluster_observer
from rlm.lifecycle.cluster_observer import (
    ClusterObserver,
    ClusterUnknownError,
    Replication,
    longest_enabled_retention_ms,
    longest_retention_ms,
)
from rlm.lifecycle.release import NEVER, TopicWatch
from tests.metadata_topic.fake_topic import FakeTopic

K = TypeVar("K")
V = TypeVar("V")

GRACE_MS = 300


def id_of(name: str) -> TopicId:
    return TopicId(uuid.uuid5(uuid.NAMESPACE_OID, name).bytes)


@dataclass
class FakeAdmin:
    """A cluster as a client sees it. The list leaves out what is hidden, and what `listed` leaves out."""

    there: set[str] = field(default_factory=lambda: {METADATA_TOPIC, "orders"})
    hidden: set[str] = field(default_factory=set)
    faults: dict[str, int] = field(default_factory=dict)
    faults_by_id: dict[str, int] = field(default_factory=dict)
    can_ask_by_id: bool = True
    asked: set[str] = field(default_factory=set)
    partitions: dict[str, tuple[DescribedPartition, ...]] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=lambda: {"retention.ms": "1000"})

    def listing(self) -> ClusterListing:
        one = (DescribedPartition(0, 1, (1,), (1,)),)
        topics = {name: DescribedTopic(name, 0, partitions=one) for name in self.there - self.hidden}
        return ClusterListing("", {1: "a"}, topics)

    def topics(self, names: Sequence[str]) -> list[DescribedTopic]:
        self.asked.update(names)
        return [
            DescribedTopic(name, self._error_code(name), id_of(name), self.partitions.get(name, ())) for name in names
        ]

    def topics_by_id(self, topic_ids: Sequence[TopicId]) -> list[DescribedTopic]:
        there = {id_of(name): name for name in self.there}
        return [self._topic_by_id(topic_id, there.get(topic_id)) for topic_id in topic_ids]

    def _topic_by_id(self, topic_id: TopicId, name: str | None) -> DescribedTopic:
        if name is None:
            return DescribedTopic("", UNKNOWN_TOPIC_ID, topic_id)
        if name in self.hidden:
            return DescribedTopic("", TOPIC_AUTHORIZATION_FAILED, topic_id)
        return DescribedTopic(name, self.faults_by_id.get(name, 0), topic_id)

    def topic_configurations(self, names: Iterable[str]) -> Responses[str, dict[str, str]]:
        return _answers(dict.fromkeys(names, self.config))

    def offsets(self, partitions: Iterable[tuple[str, int]], at: int) -> Responses[tuple[str, int], int]:
        assert at == EARLIEST
        return _answers(dict.fromkeys(partitions, 7))

    def _error_code(self, name: str) -> int:
        if name in self.hidden:
            return TOPIC_AUTHORIZATION_FAILED
        return self.faults.get(name, 0) if name in self.there else UNKNOWN_TOPIC_OR_PARTITION


def _answers(given: Mapping[K, V]) -> Responses[K, V]:
    futures: dict[K, Future[V]] = {key: Future() for key in given}
    for key, future in futures.items():
        future.set_result(given[key])
    return Responses("ask", "nowhere", futures, lambda answer: answer, 1.0)


class Rig:
    def __init__(self, login: dict[str, str]) -> None:
        client = KafkaClientConfig("127.0.0.1:1", login)
        self.admin = FakeAdmin(can_ask_by_id=KafkaCluster(client, "test", 1.0).can_ask_by_id)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rlm.lifecycle.cluster_observer.KafkaCluster", lambda *_: self.admin)
            self.observer = ClusterObserver(client, 1, TopicWatch(GRACE_MS))

    def is_gone(self, name: str, now_ms: int, heard_of: Iterable[str] = ()) -> bool:
        wanted = [id_of(name)]
        return self.observer.observe(wanted, tuple(heard_of), lambda: now_ms).view.is_gone(id_of(name))


LIBRDKAFKAS_ALONE = {"enable.ssl.certificate.verification": "true"}


@pytest.fixture
def by_id() -> Rig:
    """Asks for topics by their ids."""
    return Rig({})


@pytest.fixture
def by_name() -> Rig:
    """Has a login with which topics are asked for by name alone."""
    return Rig(LIBRDKAFKAS_ALONE)


@pytest.fixture(params=["by id", "by name"])
def rig(request: pytest.FixtureRequest) -> Rig:
    return Rig({} if request.param == "by id" else LIBRDKAFKAS_ALONE)


def test_what_is_known_of_a_topic_that_is_there(rig: Rig) -> None:
    seen = rig.observer.observe([id_of("orders")], ("orders",), lambda: 0)
    assert seen.names[id_of("orders")] == "orders"
    assert seen.view.retention_ms == {id_of("orders"): 1000}
    assert list(seen.view.log_start.values()) == [7]
    assert seen.hidden == frozenset()


@pytest.mark.parametrize(("retention_ms", "expected"), [("9000", 9000), ("-1", NEVER), ("soon", NEVER)])
def test_a_tiered_log_is_kept_longer_than_its_local_retention(rig: Rig, retention_ms: str, expected: int) -> None:
    assert rig.observer.observe([id_of("orders")], (), lambda: 0).tier_ms == {}
    assert rig.observer.log_retentions_ms(["orders"]) == {"orders": 1000}
    rig.admin.config = {"remote.storage.enable": "true", "local.retention.ms": "10", "retention.ms": retention_ms}
    seen = rig.observer.observe([id_of("orders")], (), lambda: 0)
    assert (seen.view.retention_ms, seen.tier_ms) == ({id_of("orders"): 10}, {id_of("orders"): expected})
    assert rig.observer.log_retentions_ms(["orders"]) == {"orders": expected}


def test_a_view_is_as_of_the_first_question(rig: Rig) -> None:
    times_ms = iter([100, 20_100])
    assert rig.observer.observe([id_of("orders")], (), lambda: next(times_ms)).view.as_of_ms == 100


def test_partitions_with_a_replica_that_is_not_in_sync_are_known(rig: Rig) -> None:
    rig.admin.partitions["orders"] = (
        DescribedPartition(0, 1, (1, 2, 3), (1, 2, 3)),
        DescribedPartition(1, 2, (2, 3, 1), (2, 1)),
        DescribedPartition(2, -1, (3, 1), ()),
    )
    seen = rig.observer.observe([id_of("orders")], (), lambda: 0)
    assert seen.replication == {id_of("orders"): Replication(2, frozenset({1, 2}))}


def test_of_a_topic_without_known_partitions_no_replicas_are_known(rig: Rig) -> None:
    seen = rig.observer.observe([id_of("orders")], (), lambda: 0)
    assert seen.replication == {id_of("orders"): Replication(0, frozenset())}


def test_a_topic_that_was_deleted_is_gone_after_the_grace_time(rig: Rig) -> None:
    assert not rig.is_gone("orders", 0)
    rig.admin.there.remove("orders")
    assert not rig.is_gone("orders", 1000)
    assert not rig.is_gone("orders", 1299)
    assert rig.is_gone("orders", 1300)


def test_the_grace_time_does_not_begin_before_the_first_answer_that_lacks_the_topic(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question may have waited for long, and the topic may have been there meanwhile."""
    assert not rig.is_gone("orders", 0)
    now_ms = 1000
    answer = rig.admin.topics

    def deleted_before_a_late_answer(names: Sequence[str]) -> list[DescribedTopic]:
        nonlocal now_ms
        now_ms = 1250
        rig.admin.there.discard("orders")
        return answer(names)

    monkeypatch.setattr(rig.admin, "topics", deleted_before_a_late_answer)
    rig.observer.observe([id_of("orders")], (), lambda: now_ms)
    assert not rig.is_gone("orders", 1300)
    assert rig.is_gone("orders", 1550)


def test_a_topic_that_the_client_may_no_longer_describe_is_not_gone(rig: Rig) -> None:
    assert not rig.is_gone("orders", 0)
    rig.admin.hidden.add("orders")
    assert not rig.is_gone("orders", 1000)
    assert not rig.is_gone("orders", 9000)
    assert rig.observer.observe([id_of("orders")], (), lambda: 9001).hidden == {"orders"}


def test_a_topic_that_is_wanted_only_after_it_was_hidden_is_not_gone(rig: Rig) -> None:
    rig.observer.observe([], (), lambda: 0)
    rig.admin.hidden.add("orders")
    for now_ms in (1, 1000):
        rig.observer.observe([], (), partial(int, now_ms))
    assert not rig.is_gone("orders", 9000)


def test_a_hidden_topic_is_asked_for_by_the_name_in_its_settings_when_this_agent_never_saw_it(rig: Rig) -> None:
    rig.admin.hidden.add("orders")
    for now_ms in (0, 1000, 9000):
        assert not rig.is_gone("orders", now_ms, heard_of=["orders"])


def test_a_hidden_topic_of_which_no_name_is_known_is_not_gone(by_id: Rig) -> None:
    by_id.admin.hidden.add("orders")
    for now_ms in (0, 1000, 9000):
        assert not by_id.is_gone("orders", now_ms)
    assert by_id.observer.observe([id_of("orders")], (), lambda: 9001).hidden == {topic_id_to_text(id_of("orders"))}


def test_a_topic_that_is_deleted_while_it_is_hidden_is_gone_after_the_grace_time_by_its_id(by_id: Rig) -> None:
    assert not by_id.is_gone("orders", 0)
    by_id.admin.hidden.add("orders")
    assert not by_id.is_gone("orders", 9000)
    by_id.admin.there.remove("orders")
    assert not by_id.is_gone("orders", 9100)
    assert not by_id.is_gone("orders", 9399)
    assert by_id.is_gone("orders", 9400)


def test_a_topic_that_was_gone_before_this_agent_came_is_gone_though_others_are_hidden(by_id: Rig) -> None:
    by_id.admin.there.add("payments")
    by_id.admin.hidden.add("payments")
    by_id.admin.there.remove("orders")
    assert not by_id.is_gone("orders", 1000, heard_of=["payments"])
    assert not by_id.is_gone("orders", 1299, heard_of=["payments"])
    assert by_id.is_gone("orders", 1300, heard_of=["payments"])


def test_a_topic_that_was_not_asked_for_is_not_gone(by_id: Rig) -> None:
    for now_ms in (0, 9000):
        view = by_id.observer.observe([], (), partial(int, now_ms)).view
        assert not view.is_gone(id_of("made since the question"))


def test_a_broker_that_does_not_know_the_metadata_topic_by_its_id_gives_no_answer(
    by_id: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_id.admin.there.remove("orders")
    nothing_known = [DescribedTopic("", UNKNOWN_TOPIC_ID, id_of(name)) for name in ("orders", METADATA_TOPIC)]
    monkeypatch.setattr(by_id.admin, "topics_by_id", lambda _ids: nothing_known)
    with pytest.raises(ClusterUnknownError, match="whole cluster"):
        by_id.is_gone("orders", 0)


def test_an_answer_by_id_with_any_other_fault_in_it_is_no_answer(by_id: Rig) -> None:
    by_id.admin.faults_by_id[METADATA_TOPIC] = KafkaError.LEADER_NOT_AVAILABLE
    with pytest.raises(ClusterUnknownError, match="error 5"):
        by_id.is_gone("of unknown name", 0)


def test_a_topic_that_is_deleted_while_its_name_is_hidden_is_gone_once_that_may_be_known(by_name: Rig) -> None:
    rig = by_name
    assert not rig.is_gone("orders", 0)
    rig.admin.hidden.add("orders")
    rig.admin.there.remove("orders")
    assert not rig.is_gone("orders", 9000)
    rig.admin.hidden.clear()
    assert not rig.is_gone("orders", 9100)
    assert not rig.is_gone("orders", 9399)
    assert rig.is_gone("orders", 9400)


def test_an_answer_with_any_other_fault_in_it_is_no_answer(rig: Rig) -> None:
    assert not rig.is_gone("orders", 0)
    rig.admin.there.remove("orders")
    rig.admin.faults[METADATA_TOPIC] = KafkaError.LEADER_NOT_AVAILABLE
    with pytest.raises(ClusterUnknownError):
        rig.is_gone("orders", 9000)


def test_a_cluster_that_does_not_show_the_metadata_topic_is_no_answer(rig: Rig) -> None:
    rig.admin.hidden.add(METADATA_TOPIC)
    with pytest.raises(ClusterUnknownError):
        rig.is_gone("orders", 9000)


def test_names_of_topics_that_are_gone_and_not_wanted_are_not_asked_for_for_ever(rig: Rig) -> None:
    rig.is_gone("orders", 0)
    rig.admin.there.remove("orders")
    rig.observer.observe([], (), lambda: 1)
    rig.admin.asked.clear()
    rig.observer.observe([], (), lambda: 2)
    assert rig.admin.asked == {METADATA_TOPIC}


@pytest.mark.parametrize(("retentions", "expected"), [([], None), ([5, 9, 7], 9), ([5, NEVER, 9], NEVER), ([0], 0)])
def test_the_longest_retention(retentions: list[int], expected: int | None) -> None:
    assert longest_retention_ms(retentions) == expected


def test_topics_that_the_settings_topic_has_lost_count_for_the_longest_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = FakeTopic()
    kept = SettingsMemory(tmp_path)
    reader = SettingsReader(KafkaClientConfig("nowhere:1"), consumer_factory=topic.consumer, memory=kept)
    topic.append(AGENTS.key(1), AGENTS.encode(AgentRegistration(1, 5, "", "1", 0)))
    topic.append(TOPICS.key("orders"), TOPICS.encode(TopicSettings(enable=True)))
    reader.start()
    assert reader.wait_until_ready(60.0)
    kept.save()
    reader.close()
    topic.elect(1)
    monkeypatch.setattr(cluster_observer, "read_settings", partial(read_settings, consumer_factory=topic.consumer))
    monkeypatch.setattr(ClusterObserver, "log_retentions_ms", lambda _, names: dict.fromkeys(names, 7))
    assert longest_enabled_retention_ms(KafkaClientConfig("nowhere:1"), 1, tmp_path) == 7
