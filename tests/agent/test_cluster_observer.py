"""What is concluded from the cluster's answers about topics: only what they say."""

import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from agent.cluster_observer import ClusterObserver, ClusterUnknownError, local_retention_ms
from kafka_log.topic_partition import TopicId
from metadata_topic.client_config import KafkaClientConfig
from metadata_topic.cluster_descriptions import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    DescribedTopic,
)
from metadata_topic.topic import METADATA_TOPIC
from rlm.release import NEVER, TopicWatch

GRACE_MS = 300


def id_of(name: str) -> TopicId:
    return TopicId(uuid.uuid5(uuid.NAMESPACE_OID, name).bytes)


@dataclass
class FakeAdmin:
    """A cluster as a client sees it. The list leaves out what is hidden, and what `listed` leaves out."""

    there: set[str] = field(default_factory=lambda: {METADATA_TOPIC, "orders"})
    hidden: set[str] = field(default_factory=set)
    faults: dict[str, int] = field(default_factory=dict)

    def list_topics(self, timeout: float) -> SimpleNamespace:
        topics = {name: SimpleNamespace(partitions={0: None}) for name in self.there - self.hidden}
        return SimpleNamespace(topics=topics, brokers={1: None})

    def topics(self, names: Sequence[str]) -> list[DescribedTopic]:
        return [DescribedTopic(name, self._error_code(name), id_of(name)) for name in names]

    def describe_configs(self, resources: Iterable[Any], request_timeout: float) -> dict[Any, "Future[Any]"]:
        return {resource: _future({"retention.ms": SimpleNamespace(value="1000")}) for resource in resources}

    def list_offsets(self, wanted: Iterable[Any], request_timeout: float) -> dict[Any, "Future[Any]"]:
        return {partition: _future(SimpleNamespace(offset=7)) for partition in wanted}

    def _error_code(self, name: str) -> int:
        if name in self.hidden:
            return TOPIC_AUTHORIZATION_FAILED
        return self.faults.get(name, 0) if name in self.there else UNKNOWN_TOPIC_OR_PARTITION


def _future(result: object) -> "Future[Any]":
    future: Future[Any] = Future()
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
    return future


class Rig:
    def __init__(self) -> None:
        self.admin = FakeAdmin()
        self.observer = ClusterObserver(KafkaClientConfig("127.0.0.1:1"), 1, TopicWatch(GRACE_MS))
        self.observer._admin = self.observer._descriptions = self.admin

    def is_gone(self, name: str, now_ms: int, heard_of: Iterable[str] = ()) -> bool:
        wanted = [id_of(name)]
        return self.observer.observe(wanted, tuple(heard_of), now_ms).view.is_gone(id_of(name))


def test_what_is_known_of_a_topic_that_is_there() -> None:
    rig = Rig()
    seen = rig.observer.observe([id_of("orders")], ("orders",), 0)
    assert seen.names[id_of("orders")] == "orders"
    assert seen.view.retention_ms == {id_of("orders"): 1000}
    assert list(seen.view.log_start.values()) == [7]
    assert seen.hidden == frozenset()


def test_a_topic_that_was_deleted_is_gone_after_the_grace_time() -> None:
    rig = Rig()
    assert not rig.is_gone("orders", 0)
    rig.admin.there.remove("orders")
    assert not rig.is_gone("orders", 299)
    assert rig.is_gone("orders", 300)


def test_a_topic_that_the_client_may_no_longer_describe_is_not_gone() -> None:
    rig = Rig()
    assert not rig.is_gone("orders", 0)
    rig.admin.hidden.add("orders")
    assert not rig.is_gone("orders", 1000)
    assert not rig.is_gone("orders", 9000)
    assert rig.observer.observe([id_of("orders")], (), 9001).hidden == {"orders"}


def test_a_topic_that_is_wanted_only_after_it_was_hidden_is_not_gone() -> None:
    rig = Rig()
    rig.observer.observe([], (), 0)
    rig.admin.hidden.add("orders")
    for now_ms in (1, 1000):
        rig.observer.observe([], (), now_ms)
    assert not rig.is_gone("orders", 9000)


def test_a_hidden_topic_is_asked_for_by_the_name_in_its_settings_when_this_agent_never_saw_it() -> None:
    rig = Rig()
    rig.admin.hidden.add("orders")
    for now_ms in (0, 1000, 9000):
        assert not rig.is_gone("orders", now_ms, heard_of=["orders"])


def test_a_topic_that_is_deleted_while_it_is_hidden_is_gone_once_that_may_be_known() -> None:
    rig = Rig()
    assert not rig.is_gone("orders", 0)
    rig.admin.hidden.add("orders")
    rig.admin.there.remove("orders")
    assert not rig.is_gone("orders", 9000)
    rig.admin.hidden.clear()
    assert not rig.is_gone("orders", 9299)
    assert rig.is_gone("orders", 9300)


def test_an_answer_with_any_other_fault_in_it_is_no_answer() -> None:
    rig = Rig()
    assert not rig.is_gone("orders", 0)
    rig.admin.there.remove("orders")
    rig.admin.faults[METADATA_TOPIC] = KafkaError.LEADER_NOT_AVAILABLE
    with pytest.raises(ClusterUnknownError):
        rig.is_gone("orders", 9000)


def test_a_cluster_that_does_not_show_the_metadata_topic_is_no_answer() -> None:
    rig = Rig()
    rig.admin.hidden.add(METADATA_TOPIC)
    with pytest.raises(ClusterUnknownError):
        rig.is_gone("orders", 9000)


def test_names_of_topics_that_are_gone_and_not_wanted_are_not_asked_for_for_ever() -> None:
    rig = Rig()
    rig.is_gone("orders", 0)
    rig.admin.there.remove("orders")
    rig.observer.observe([], (), 1)
    assert set(rig.observer._seen.values()) == {METADATA_TOPIC}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"local.retention.ms": "1000", "retention.ms": "9000"}, 1000),
        ({"local.retention.ms": "-2", "retention.ms": "9000"}, 9000),
        ({"retention.ms": "9000"}, 9000),
        ({"local.retention.ms": "-2", "retention.ms": "-1"}, NEVER),
        ({"local.retention.ms": "-1", "retention.ms": "9000"}, NEVER),
        ({"local.retention.ms": "-2"}, None),
        ({}, None),
        ({"retention.ms": None}, None),
        ({"retention.ms": "soon"}, None),
    ],
)
def test_local_retention(config: dict[str, str | None], expected: int | None) -> None:
    assert local_retention_ms(config) == expected
