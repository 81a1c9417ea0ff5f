"""Settings that contradict each other are told with the command that mends them; sound ones are not told."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import AgentsRetention, KeptFor, WalRetention
from metadata_topic.topic.topic import METADATA_TOPIC
from retention_job.findings.find import topic_findings
from retention_job.findings.kinds import Kind
from retention_job.settings import LifeTimes
from retention_job.sources.kafka import Cluster, Topic

WEEK = "604800000"


def cluster(config: Mapping[str, str], settings: TopicSettings, metadata_retention_ms: str = "691200000") -> Cluster:
    metadata = {"retention.ms": metadata_retention_ms, "retention.bytes": "-1"}
    topics = (
        Topic(b"a" * 16, "orders", (0,), 3, settings, config),
        Topic(b"m" * 16, METADATA_TOPIC, (0,), 3, TopicSettings(), metadata),
    )
    return Cluster(frozenset({1}), topics, {})


def kinds(found: Cluster) -> list[tuple[Kind, str | None]]:
    return [(one.kind, one.topic) for one in topic_findings(found, LifeTimes())]


ON = TopicSettings(enable=True)


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({"retention.ms": WEEK, "local.retention.ms": "-2"}, ON),
        ({"retention.ms": WEEK, "local.retention.ms": "3600000", "remote.storage.enable": "true"}, ON),
        (
            {"retention.ms": "-1", "local.retention.ms": "3600000", "remote.storage.enable": "true"},
            TopicSettings(enable=True, wal_retention_ms=3_600_000),
        ),
        ({"retention.ms": WEEK, "local.retention.ms": "3600000"}, ON),
        ({"retention.ms": WEEK}, TopicSettings(enable=True, archive=True)),
    ],
)
def test_sound_settings_are_no_finding(config: Mapping[str, str], settings: TopicSettings) -> None:
    assert kinds(cluster(config, settings)) == []


@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ({"retention.ms": "3600000", "local.retention.ms": WEEK, "remote.storage.enable": "true"}, ON),
        ({"retention.ms": WEEK}, TopicSettings(enable=False, archive=True)),
    ],
)
def test_contradictions_are_found(config: Mapping[str, str], settings: TopicSettings) -> None:
    assert kinds(cluster(config, settings)) == [(Kind.CONTRADICTION, "orders")]


@pytest.mark.parametrize(
    ("topic_ms", "metadata_ms", "is_short"),
    [(WEEK, WEEK, True), (WEEK, "604860000", False), ("-1", WEEK, True), ("-1", "-1", False)],
)
def test_the_metadata_must_outlive_the_objects(topic_ms: str, metadata_ms: str, is_short: bool) -> None:
    found = topic_findings(cluster({"retention.ms": topic_ms}, ON, metadata_ms), LifeTimes())
    assert [one.kind for one in found] == ([Kind.METADATA_RETENTION] if is_short else [])
    assert all("kafka-configs.sh" in one.heal for one in found)


HOUR_MS, DAY_MS = 3_600_000, 86_400_000
AGENTS = AgentsRetention((WalRetention(HOUR_MS, DAY_MS), WalRetention(2 * HOUR_MS, 3 * HOUR_MS)))


def orders(settings: TopicSettings = ON, *, is_lagging: bool = False, retention_ms: str = WEEK) -> Topic:
    return Topic(b"a" * 16, "orders", (0,), 3, settings, {"retention.ms": retention_ms}, AGENTS, is_lagging)


def test_where_agents_differ_the_longest_and_the_shortest_are_known() -> None:
    assert orders().kept_longest == KeptFor(2 * HOUR_MS, DAY_MS)
    assert orders().kept_shortest == KeptFor(HOUR_MS, 3 * HOUR_MS)
    assert (orders().kept_ms, orders(TopicSettings(enable=True, archive=True)).kept_ms) == (2 * HOUR_MS, None)
    assert orders(TopicSettings(enable=True, wal_retention_ms=-2), retention_ms="-5").kept_ms == -1
    assert orders(retention_ms="soon").kept_longest is orders(retention_ms="soon").kept_shortest is None


def tiered(settings: TopicSettings = ON, **changes: Any) -> Topic:
    """A topic that leaves the brokers' disks after an hour, and the tier after a week."""
    config = {"remote.storage.enable": "true", "local.retention.ms": str(HOUR_MS), "retention.ms": WEEK}
    return replace(orders(settings), config=config, **changes)


AS_LOG = TopicSettings(enable=True, wal_retention_ms=-2)


def test_the_tier_releases_objects_and_not_the_local_retention() -> None:
    assert (tiered().kept_longest, tiered().kept_shortest) == (orders().kept_longest, orders().kept_shortest)
    assert tiered(AS_LOG).kept_longest == tiered(AS_LOG).kept_shortest == KeptFor(int(WEEK), int(WEEK))
    assert tiered(AS_LOG).kept_ms == -1


def test_what_a_tiered_topic_without_the_feature_has_left_goes_by_its_local_retention() -> None:
    off = tiered(TopicSettings())
    assert off.kept_longest == off.kept_shortest == KeptFor(HOUR_MS, HOUR_MS)
    assert off.kept_ms == HOUR_MS
    assert orders(TopicSettings()).kept_ms == -1


@pytest.mark.parametrize(
    ("topic", "held_ms"),
    [
        (orders(), 0),
        (orders(is_lagging=True), DAY_MS),
        (orders(TopicSettings(), is_lagging=True), 0),
        pytest.param(orders(is_lagging=True, retention_ms="1000"), DAY_MS, id="the log's start decides, and no age"),
        pytest.param(tiered(has_lagging_replica=True), DAY_MS, id="the tier decides, and no age"),
        pytest.param(orders(AS_LOG, is_lagging=True), 0, id="no age releases it anyway"),
    ],
)
def test_agents_keep_more_while_a_replica_of_an_enabled_topic_is_out_of_sync(topic: Topic, held_ms: int) -> None:
    assert Cluster(frozenset({1}), (topic,), {}).held_ms == held_ms


@pytest.mark.parametrize(("metadata_ms", "is_short"), [(DAY_MS, True), (DAY_MS + 60_000, False)])
def test_the_metadata_must_outlive_objects_that_wait_for_a_replica(metadata_ms: int, is_short: bool) -> None:
    config = {"retention.ms": str(metadata_ms)}
    metadata = Topic(b"m" * 16, METADATA_TOPIC, (0,), 3, TopicSettings(), config)
    found = kinds(Cluster(frozenset({1}), (orders(), metadata), {}))
    assert found == ([(Kind.METADATA_RETENTION, METADATA_TOPIC)] if is_short else [])
