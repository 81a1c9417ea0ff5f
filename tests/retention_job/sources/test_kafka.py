from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.responses import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    ClusterListing,
    DescribedPartition,
    DescribedTopic,
)
from kafka_log.topic_partition import TopicId
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.topic.topic import METADATA_TOPIC, SETTINGS_TOPIC
from retention_job.errors import SourceError
from retention_job.settings import KafkaSource
from retention_job.sources import kafka
from retention_job.sources.kafka import Cluster, Kafka, Offsets, _ask, offsets_by_topic
from retention_job.sources.release_facts import FOREVER
from retention_job.tables.history import _release_facts

NAMES = (METADATA_TOPIC, SETTINGS_TOPIC, "solo", "moved")
DURABLE = TopicSettings(enable=True, durable=True)


def id_of(name: str) -> TopicId:
    return TopicId(name.encode()[-16:].ljust(16))


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
    can_ask_by_id = True
    maybe_there: Any = KafkaCluster.maybe_there

    def __init__(self, *leaderless: tuple[str, int], names: Sequence[str] = NAMES) -> None:
        self._leaderless = {("solo", 1), *leaderless}
        self._names = names
        self.by_id: dict[TopicId, int] = {}

    def listing(self) -> ClusterListing:
        def described(name: str) -> DescribedTopic:
            partitions = (
                DescribedPartition(one, -1 if (name, one) in self._leaderless else 1, (1,), (1,)) for one in (0, 1)
            )
            return DescribedTopic(name, 0, id_of(name), tuple(partitions))

        return ClusterListing("id", {1: "a"}, {name: described(name) for name in self._names})

    def topics(self, names: Sequence[str]) -> list[DescribedTopic]:
        return [self.listing().topics[name] for name in names]

    def topics_by_id(self, topic_ids: Sequence[TopicId]) -> list[DescribedTopic]:
        return [DescribedTopic("", self.by_id.get(one, UNKNOWN_TOPIC_ID), one) for one in topic_ids]

    def topic_configurations(self, names: Iterable[str]) -> SimpleNamespace:
        return SimpleNamespace(get_all=lambda _missing: {name: {} for name in names})

    def offsets(self, partitions: Iterable[tuple[str, int]], at: int) -> SimpleNamespace:
        asked = list(partitions)
        assert not self._leaderless & set(asked), "librdkafka would wait for a leader"
        gone = KafkaClusterError("ask", "moved", "no leader", code=5)
        return SimpleNamespace(each=lambda: ((one, gone if one == ("moved", 0) else 7) for one in asked))


def ask(
    monkeypatch: pytest.MonkeyPatch, played: PlayedCluster | None = None, settings: SettingsTable | None = None
) -> Cluster:
    monkeypatch.setattr(kafka, "read_settings", lambda _client: settings or SettingsTable())
    return _ask(cast(KafkaCluster, played or PlayedCluster()))


def test_a_partition_without_a_leader_is_named_and_all_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ask(monkeypatch)
    assert found.unanswered == {("solo", 1), ("moved", 0)}
    assert found.offsets["solo"] == Offsets({0: 7}, {0: 7})
    assert found.offsets["moved"] == Offsets({1: 7}, {1: 7})


def test_an_epoch_is_not_told_that_ended_while_the_offsets_were_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Moving(PlayedCluster):
        asked = 0

        def topics(self, names: Sequence[str]) -> list[DescribedTopic]:
            self.asked += 1
            found = super().topics(names)
            return [
                replace(
                    one, partitions=tuple(replace(p, leader_epoch=4 + p.partition * self.asked) for p in one.partitions)
                )
                for one in found
            ]

    assert ask(monkeypatch, Moving()).metadata_epochs == {0: 4}


def test_without_the_metadata_or_the_settings_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="it has no leader"):
        ask(monkeypatch, PlayedCluster((METADATA_TOPIC, 0)))
    with pytest.raises(SourceError, match=SETTINGS_TOPIC):
        ask(monkeypatch, PlayedCluster(names=[METADATA_TOPIC, "solo"]))


@pytest.mark.parametrize(
    ("settings", "is_durable"),
    [
        (SettingsTable({"solo": replace(DURABLE, topic_id=id_of("solo"))}), True),
        (SettingsTable({"solo": replace(DURABLE, topic_id=id_of("deleted"))}), False),
        (SettingsTable(patterns={"s.*": DURABLE}), True),
    ],
    ids=["its own", "a deleted topic's", "a pattern's"],
)
def test_a_topic_is_judged_by_the_settings_that_count_for_it(
    monkeypatch: pytest.MonkeyPatch, settings: SettingsTable, is_durable: bool
) -> None:
    topics = {one.name: one.settings for one in ask(monkeypatch, settings=settings).topics}
    assert topics["solo"].is_durable == is_durable


@pytest.mark.parametrize(
    ("answer", "witness", "can_ask_by_id", "kept_ms"),
    [
        (TOPIC_AUTHORIZATION_FAILED, 0, True, FOREVER),
        (UNKNOWN_TOPIC_ID, 0, True, 0),
        (UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_ID, True, FOREVER),
        (UNKNOWN_TOPIC_ID, 0, False, FOREVER),
    ],
    ids=["hidden", "deleted", "a broker that knows nothing", "no answer by id"],
)
@pytest.mark.parametrize("has_settings", [True, False])
def test_only_entries_of_a_topic_that_is_known_to_be_deleted_may_go(
    monkeypatch: pytest.MonkeyPatch, has_settings: bool, answer: int, witness: int, can_ask_by_id: bool, kept_ms: int
) -> None:
    played, orders = PlayedCluster(), id_of("orders")
    played.by_id, played.can_ask_by_id = {id_of(METADATA_TOPIC): witness, orders: answer}, can_ask_by_id
    found = ask(
        monkeypatch, played, SettingsTable({"orders": replace(DURABLE, topic_id=orders)} if has_settings else {})
    )
    monkeypatch.setattr(kafka, "KafkaCluster", lambda *_: played)
    found = Kafka(KafkaSource("nowhere:1", {})).with_hidden(found, [orders, id_of("solo")])
    zero = np.zeros(1, np.int64)
    assert _release_facts(found, {}).retention_of([orders], zero, zero, zero).tolist() == [kept_ms]
    assert found.retentions == ({orders.hex(): None} if kept_ms else {})
