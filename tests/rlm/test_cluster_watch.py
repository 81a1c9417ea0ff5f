"""The cluster is judged by the topics' settings as they are known then."""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.settings_topic import SettingsReader
from metadata_topic.settings.topic_settings import TopicSettings
from metadata_topic.settings.wal_retention import WalRetention
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from rlm.lifecycle.cluster_observer import ClusterObserver, ClusterWatch, Observation, Replication, held_partitions
from rlm.lifecycle.release import NEVER, ClusterView, Release, Tiers, release_of

ORDERS, CLICKS = TopicId(b"orders".ljust(16)), TopicId(b"clicks".ljust(16))
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
ON = TopicSettings(enable=True)


@dataclass
class Settings:
    topics: dict[str, TopicSettings] = field(default_factory=lambda: {"orders": ON})
    ready: bool = True

    @property
    def table(self) -> SettingsTable:
        return SettingsTable(self.topics)


@dataclass
class Observer:
    """A cluster with a topic that is kept for a week."""

    factor: int = 3
    lagging: frozenset[int] = frozenset()
    local_ms: dict[TopicId, int] = field(default_factory=lambda: {ORDERS: 7 * DAY_MS})
    tier_ms: dict[TopicId, int] = field(default_factory=dict)

    def observe(
        self, _wanted: Collection[TopicId], _names: Collection[str], _wall_ms: Callable[[], int]
    ) -> Observation:
        return Observation(
            ClusterView(frozenset({ORDERS}), retention_ms=self.local_ms),
            frozenset({1}),
            {ORDERS: "orders", CLICKS: "clicks"},
            replication={ORDERS: Replication(self.factor, self.lagging)},
            tier_ms=self.tier_ms,
        )


@dataclass
class TierOf:
    entries: list[RemoteLogSegmentMetadataEntry]

    def holds(self, entry: RemoteLogSegmentMetadataEntry, /) -> bool:
        return entry in self.entries

    def waits_for(self, _topic_id: TopicId, /) -> bool:
        return False


def view_of(observer: Observer, settings: Settings) -> ClusterView:
    return seen_by(observer, settings).view


def seen_by(observer: Observer, settings: Settings) -> Observation:
    seen: list[Observation] = []
    with ThreadPoolExecutor(1) as threads:
        watch = ClusterWatch(
            lambda: cast(ClusterObserver, observer), lambda: {ORDERS}, cast(SettingsReader, settings),
            WalRetention(HOUR_MS, DAY_MS),
            lambda observation, _now_ms: seen.append(observation), lambda: 0, threads,
        )  # fmt: skip
        asyncio.run(watch.run_once())
    return seen[0]


def released(view: ClusterView, age_ms: int, partition: int = 0) -> bool:
    entry = RemoteLogSegmentMetadataEntry(TopicIdPartition(ORDERS, partition), 0, 0, 9, 0, 10, 0)
    return release_of(entry, age_ms, view, Tiers()) is Release.EXPIRED


def test_what_followers_in_sync_have_read_goes_after_the_wals_own_retention() -> None:
    view = view_of(Observer(), Settings())
    assert (released(view, HOUR_MS - 1), released(view, HOUR_MS)) == (False, True)
    assert held_partitions(view) == 0


def test_what_is_kept_as_long_as_the_log_goes_with_its_start_and_by_no_age() -> None:
    """Brokers go by timestamps, which may be in the future, and by whole segments."""
    settings = Settings({"orders": TopicSettings(enable=True, wal_retention_ms=-2)})
    view = view_of(Observer(), settings)
    assert not released(view, 100 * DAY_MS)
    entry = RemoteLogSegmentMetadataEntry(TopicIdPartition(ORDERS, 0), 0, 0, 9, 0, 10, 0)
    for log_start, expected in ((9, None), (10, Release.BELOW_LOG_START)):
        view = replace(view, log_start={TopicIdPartition(ORDERS, 0): log_start})
        assert release_of(entry, 0, view, Tiers()) is expected


def test_what_is_kept_as_long_as_a_tiered_log_goes_once_it_is_on_the_tier_and_by_no_age() -> None:
    """Brokers delete nothing locally that is not on the tier, and copy closed segments only."""
    settings = Settings({"orders": TopicSettings(enable=True, wal_retention_ms=-2)})
    view = view_of(Observer(local_ms={ORDERS: HOUR_MS}, tier_ms={ORDERS: 7 * DAY_MS}), settings)
    entry = RemoteLogSegmentMetadataEntry(TopicIdPartition(ORDERS, 0), 0, 0, 9, 0, 10, 0)
    for is_on_tier, expected in ((False, None), (True, Release.TIERED)):
        tiers = Tiers([TierOf([entry] if is_on_tier else [])])
        assert release_of(entry, 100 * DAY_MS, view, tiers) is expected


def test_a_time_of_its_own_is_not_cut_short_by_a_retention_that_goes_by_timestamps() -> None:
    view = view_of(Observer(local_ms={ORDERS: 1000}), Settings())
    assert (released(view, HOUR_MS - 1), released(view, HOUR_MS)) == (False, True)


def test_the_metadata_outlives_what_is_kept_by_the_local_retention() -> None:
    assert seen_by(Observer(), Settings({"orders": TopicSettings(enable=True, wal_retention_ms=-2)})).kept_ms == {
        ORDERS: 7 * DAY_MS
    }


@pytest.mark.parametrize("tier_ms", [7 * DAY_MS, NEVER])
def test_the_metadata_outlives_what_is_kept_until_the_tier_has_it(tier_ms: int) -> None:
    observer = Observer(local_ms={ORDERS: HOUR_MS}, tier_ms={ORDERS: tier_ms}, lagging=frozenset({0}))
    for settings, expected in (
        (TopicSettings(enable=True, wal_retention_ms=-2), tier_ms),
        (ON, DAY_MS),
        (TopicSettings(), HOUR_MS),
    ):
        assert seen_by(observer, Settings({"orders": settings})).kept_ms == {ORDERS: expected}


def test_a_replica_that_is_behind_is_waited_for_up_to_the_bound() -> None:
    view = view_of(Observer(lagging=frozenset({1, 2})), Settings())
    assert (released(view, HOUR_MS, 0), released(view, HOUR_MS, 1)) == (True, False)
    assert (released(view, DAY_MS - 1, 1), released(view, DAY_MS, 1)) == (False, True)
    assert held_partitions(view) == 2


def test_nobody_is_waited_for_where_objects_stay_for_as_long_anyway() -> None:
    settings = Settings({"orders": TopicSettings(enable=True, wal_retention_ms=-2)})
    assert held_partitions(view_of(Observer(lagging=frozenset({1})), settings)) == 0


def test_settings_that_are_read_in_part_release_nothing_sooner_than_kafka_does() -> None:
    view = view_of(Observer(), Settings(ready=False))
    assert not released(view, 100 * DAY_MS)


def test_a_topic_that_is_switched_off_keeps_its_objects_for_as_long_as_kafka_its_log() -> None:
    view = view_of(Observer(), Settings({}))
    assert not released(view, 100 * DAY_MS)


@pytest.mark.parametrize("topics", [{}, {"orders": TopicSettings()}])
def test_a_tiered_topic_that_is_switched_off_keeps_its_objects_for_the_local_retention(
    topics: dict[str, TopicSettings],
) -> None:
    """Its log begins where the tier does, maybe for ever."""
    observer = Observer(local_ms={ORDERS: HOUR_MS}, tier_ms={ORDERS: NEVER})
    view = view_of(observer, Settings(topics))
    assert (released(view, HOUR_MS - 1), released(view, HOUR_MS)) == (False, True)


def test_a_tiered_topic_that_may_want_all_of_its_log_loses_nothing_by_age() -> None:
    observer = Observer(local_ms={ORDERS: HOUR_MS}, tier_ms={ORDERS: NEVER})
    assert not released(view_of(observer, Settings(ready=False)), 100 * DAY_MS)
    observer.factor = 0
    assert not released(view_of(observer, Settings()), 100 * DAY_MS)


def test_replicas_that_are_not_known_release_nothing_sooner_than_kafka_does() -> None:
    view = view_of(Observer(factor=0), Settings())
    assert not released(view, 100 * DAY_MS)


def test_a_local_retention_that_is_not_known_releases_nothing() -> None:
    view = view_of(Observer(local_ms={}), Settings())
    assert not released(view, 100 * DAY_MS)
    assert view.lagging_retention(ORDERS) == NEVER
