"""The cluster is judged by the topics' settings as they are known then."""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import cast

from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings
from metadata_topic.settings.wal_retention import WalRetention
from plugin.segment_metadata import RemoteLogSegmentMetadataEntry
from rlm.lifecycle.cluster_observer import ClusterObserver, Observation, Replication
from rlm.lifecycle.cluster_watch import ClusterWatch, held_partitions
from rlm.lifecycle.release import NEVER, ClusterView, Release, Tiers, release_of

ORDERS, CLICKS = TopicId(b"orders".ljust(16)), TopicId(b"clicks".ljust(16))
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
ON = TopicSettings(enable=True)


@dataclass
class Settings:
    topics: dict[str, TopicSettings] = field(default_factory=lambda: {"orders": ON})
    agents: dict[int, AgentRegistration] = field(default_factory=dict)
    ready: bool = True


@dataclass
class Observer:
    """A cluster with a topic that is kept for a week."""

    factor: int = 3
    lagging: frozenset[int] = frozenset()
    local_ms: dict[TopicId, int] = field(default_factory=lambda: {ORDERS: 7 * DAY_MS})

    def observe(
        self, _wanted: Collection[TopicId], _names: Collection[str], _wall_ms: Callable[[], int]
    ) -> Observation:
        return Observation(
            ClusterView(frozenset({ORDERS}), retention_ms=self.local_ms),
            frozenset({1}),
            {ORDERS: "orders", CLICKS: "clicks"},
            replication={ORDERS: Replication(self.factor, self.lagging)},
        )


def view_of(observer: Observer, settings: Settings) -> ClusterView:
    seen: list[Observation] = []
    with ThreadPoolExecutor(1) as threads:
        watch = ClusterWatch(
            lambda: cast(ClusterObserver, observer), lambda: {ORDERS}, settings, WalRetention(HOUR_MS, DAY_MS),
            lambda observation, _now_ms: seen.append(observation), lambda: 0, threads,
        )  # fmt: skip
        asyncio.run(watch.run_once())
    return seen[0].view


def released(view: ClusterView, age_ms: int, partition: int = 0) -> bool:
    entry = RemoteLogSegmentMetadataEntry(TopicIdPartition(ORDERS, partition), 0, 0, 9, 0, 10, 0)
    return release_of(entry, age_ms, view, Tiers()) is Release.EXPIRED


def test_what_followers_in_sync_have_read_goes_after_the_wals_own_retention() -> None:
    view = view_of(Observer(), Settings())
    assert (released(view, HOUR_MS - 1), released(view, HOUR_MS)) == (False, True)
    assert held_partitions(view) == 0


def test_a_topic_may_keep_its_objects_for_as_long_as_kafka_keeps_its_log() -> None:
    view = view_of(Observer(), Settings({"orders": TopicSettings(enable=True, wal_retention_ms=-2)}))
    assert (released(view, 7 * DAY_MS - 1), released(view, 7 * DAY_MS)) == (False, True)


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
    assert (released(view, 7 * DAY_MS - 1), released(view, 7 * DAY_MS)) == (False, True)


def test_a_topic_that_is_switched_off_keeps_its_objects_for_as_long_as_kafka_its_log() -> None:
    view = view_of(Observer(), Settings({}))
    assert (released(view, 7 * DAY_MS - 1), released(view, 7 * DAY_MS)) == (False, True)


def test_replicas_that_are_not_known_release_nothing_sooner_than_kafka_does() -> None:
    view = view_of(Observer(factor=0), Settings())
    assert (released(view, 7 * DAY_MS - 1), released(view, 7 * DAY_MS)) == (False, True)


def test_a_local_retention_that_is_not_known_releases_nothing() -> None:
    view = view_of(Observer(local_ms={}), Settings())
    assert not released(view, 100 * DAY_MS)
    assert view.lagging_retention(ORDERS) == NEVER
