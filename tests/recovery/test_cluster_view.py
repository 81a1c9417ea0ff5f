"""What a living cluster tells of its topics, and what it does not tell to this client."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import EARLIEST, LATEST, KafkaCluster
from kafka_cluster.responses import (
    NO_LEADER_TO_ASK,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    ClusterListing,
    DescribedPartition,
    DescribedTopic,
    Responses,
)
from kafka_log.topic_partition import TopicId
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.topic.topic import METADATA_TOPIC
from recovery import cluster_view
from recovery.broker_recovery import LostBroker, Selection, plan_broker
from recovery.cluster_view import ReplicaSet, TopicView, ask_cluster, is_empty, with_hidden
from recovery.metadata.inventory import Inventory
from recovery.verification import FindingKind, check_inventory

CLIENT = KafkaClientConfig("nowhere:1")
DENIED = TOPIC_AUTHORIZATION_FAILED


def _id(name: str) -> TopicId:
    return TopicId(name.encode()[-16:].ljust(16))


@dataclass
class PlayedCluster(KafkaCluster):
    """Each request about a topic is refused with the code that is given for it."""

    describes: dict[str, int]
    configures: dict[str, int]
    starts: dict[str, int]

    def listing(self, topic: str | None = None) -> ClusterListing:
        described = {name: DescribedTopic(name, 0) for name in ("secret", *self.describes)}
        return ClusterListing("cluster-1", {1: "a"}, {name: one for name, one in described.items() if name != "secret"})

    def topics(self, names: Sequence[str]) -> list[DescribedTopic]:
        partitions = (DescribedPartition(0, 1, (1, 2), (1,)),)
        codes = {"secret": DENIED, "gone": UNKNOWN_TOPIC_OR_PARTITION, "made anew": DENIED, **self.describes}
        return [DescribedTopic(name, codes[name], _id(name), partitions) for name in names]

    def topics_by_id(self, topic_ids: Sequence[TopicId]) -> list[DescribedTopic]:
        codes = {_id("secret"): DENIED, _id("made anew"): UNKNOWN_TOPIC_ID}
        return [DescribedTopic("", codes.get(one, 0), one) for one in topic_ids]

    @property
    def can_ask_by_id(self) -> bool:
        return True

    def topic_configurations(self, names: Iterable[str]) -> Responses[str, dict[str, str]]:
        return _answers({name: (self.configures[name], {"retention.ms": "5"}) for name in names}, dict)

    def offsets(
        self, partitions: Iterable[tuple[str, int]], at: int, *, is_stable: bool = False
    ) -> Responses[tuple[str, int], int]:
        return _answers({where: (self.starts[where[0]], 7) for where in partitions}, int)


def _answers(told: dict[Any, tuple[int, Any]], read: Callable[[Any], Any]) -> Responses[Any, Any]:
    futures = dict[Any, Future[Any]]()
    for key, (code, answer) in told.items():
        futures[key] = Future()
        if code:
            futures[key].set_exception(KafkaException(KafkaError(code)))
        else:
            futures[key].set_result(answer)
    return Responses("ask", "nowhere:1", futures, read, 1.0)


def _play(monkeypatch: pytest.MonkeyPatch, **codes: tuple[int, int, int]) -> None:
    told = {METADATA_TOPIC: (0, 0, 0), "orders": (0, 0, 0), **codes}
    each = ({name: one[place] for name, one in told.items()} for place in range(3))
    played = PlayedCluster(*each)
    monkeypatch.setattr(cluster_view, "KafkaCluster", lambda *_: played)


@pytest.mark.parametrize("codes", [(DENIED, 0, 0), (0, DENIED, 0), (0, 0, DENIED)], ids=["it", "settings", "offsets"])
def test_a_topic_that_this_client_may_not_ask_about_is_named_and_the_others_are_planned(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[int, int, int]
) -> None:
    _play(monkeypatch, denied=codes)
    _, view = ask_cluster(CLIENT)
    assert list(view.left_out) == ["denied"]
    planned = plan_broker(LostBroker(1, "cluster-1", (), ()), view, Inventory(), Selection(), 0)
    assert [log.name for log in planned] == [f"{METADATA_TOPIC}-0", "orders-0"]
    [found] = check_inventory(Inventory(), planned, view.left_out.items())
    assert (found.kind, found.subject, found.kind.is_error) == (FindingKind.UNKNOWN_TOPIC, "denied", True)


def test_a_topic_that_is_deleted_while_it_is_asked_about_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = UNKNOWN_TOPIC_OR_PARTITION
    _play(monkeypatch, one=(gone, 0, 0), two=(0, gone, 0), three=(0, 0, gone))
    _, view = ask_cluster(CLIENT)
    assert not view.left_out
    assert next(one.config for one in view.topics.values() if one.name == "orders") == {"retention.ms": "5"}


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH])
def test_a_topic_whose_new_leader_does_not_know_yet_that_it_leads_is_not_left_out(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    _play(monkeypatch, elected=(0, 0, code))
    _, view = ask_cluster(CLIENT)
    assert not view.left_out
    assert _id("elected") in view.topics


def test_a_topic_that_kafka_hides_is_named_if_the_agents_settings_tell_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka lists no topic that a client may not describe."""
    _play(monkeypatch)
    _, view = ask_cluster(CLIENT)
    names = ("orders", "secret", "gone", "made anew")
    known = {name: TopicSettings(enable=True, topic_id=_id(name)) for name in names}
    known["made anew"] = TopicSettings(enable=True, topic_id=_id("made anew"))
    assert list(with_hidden(view, CLIENT, known).left_out) == ["secret"]


@pytest.mark.parametrize("second", [(0, 9, 9), (0, 7, 9), *((code, 0, 0) for code in (*NO_LEADER_TO_ASK, DENIED))])
def test_a_topic_is_empty_only_if_each_partitions_leader_says_so(
    monkeypatch: pytest.MonkeyPatch, second: tuple[int, int, int]
) -> None:
    told = {0: (0, 7, 7), 1: second}

    def offsets(_: object, partitions: Iterable[tuple[str, int]], at: int) -> Responses[tuple[str, int], int]:
        place = {EARLIEST: 1, LATEST: 2}[at]
        return _answers({where: (told[where[1]][0], told[where[1]][place]) for where in partitions}, int)

    monkeypatch.setattr(PlayedCluster, "offsets", offsets)
    _play(monkeypatch)
    view = TopicView("orders", _id("orders"), {}, dict.fromkeys(told, ReplicaSet((1,), (1,), 1)))
    assert is_empty(CLIENT, view) is (second == (0, 9, 9))
