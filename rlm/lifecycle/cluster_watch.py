"""Asks the cluster from time to time, and passes on its answers. Without an answer, the last one stays valid."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from functools import cache
from typing import Protocol

import structlog

from kafka_cluster.errors import KafkaClusterError
from kafka_log.topic_partition import TopicId
from metadata_topic.settings.topic_settings import AgentRegistration, TopicSettings, settings_of
from metadata_topic.settings.wal_retention import KeptFor, WalRetention, age_limit_ms
from rlm.lifecycle.cluster_observer import ClusterObserver, ClusterUnknownError, Observation
from rlm.lifecycle.release import NEVER, ClusterView

log = structlog.get_logger(__name__)


class KnownSettings(Protocol):
    """The part of `metadata_topic.settings.settings_topic.SettingsReader` used here."""

    @property
    def topics(self) -> Mapping[str, TopicSettings]: ...

    @property
    def agents(self) -> Mapping[int, AgentRegistration]: ...

    @property
    def ready(self) -> bool: ...


def with_wal_retention(
    observation: Observation, topics: Mapping[str, TopicSettings], retention: WalRetention
) -> Observation:
    """Return the observation with the WAL retention in its view; `topics` are the known settings by name.

    Entries that are kept as long as the log are released by the log's start only, never by age: timestamps may be in
    the future.
    """
    view = observation.view

    def kept_for(topic_id: TopicId, local_ms: int) -> KeptFor:
        settings = settings_of(topics, observation.names.get(topic_id, ""), topic_id)
        return retention.of(settings, _factor(observation, topic_id), local_ms)

    local = view.retention_ms.items()
    kept = {
        topic_id: kept_for(topic_id, age_limit_ms(local_ms, tiered=topic_id in observation.tiered))
        for topic_id, local_ms in local
    }
    return replace(
        observation,
        kept_ms={topic_id: kept_for(topic_id, local_ms).lagging_ms for topic_id, local_ms in local},
        view=replace(
            view,
            retention_ms={topic_id: one.retention_ms for topic_id, one in kept.items()},
            lagging={topic_id: one.lagging for topic_id, one in observation.replication.items() if one.lagging},
            lagging_retention_ms={topic_id: one.lagging_ms for topic_id, one in kept.items()},
        ),
    )


def _factor(observation: Observation, topic_id: TopicId) -> int:
    known = observation.replication.get(topic_id)
    return 0 if known is None else known.factor


def held_partitions(view: ClusterView) -> int:
    """Count the partitions whose entries are kept longer because a replica is not in sync."""
    return sum(
        len(numbers)
        for topic_id, numbers in view.lagging.items()
        if view.lagging_retention(topic_id) != view.retention_ms.get(topic_id, NEVER)
    )


class ClusterWatch:
    """Use it in the event loop; questions block, on `threads`."""

    def __init__(
        self,
        make_observer: Callable[[], ClusterObserver],
        wanted: Callable[[], set[TopicId]],
        settings: KnownSettings,
        retention: WalRetention,
        on_observation: Callable[[Observation, int], None],
        wall_ms: Callable[[], int],
        threads: Executor,
    ) -> None:
        """`make_observer` is called for the first question; `wanted` returns the topics that have objects.

        `on_observation` is called in the event loop, with a time in milliseconds at which the cluster had answered.
        """
        self._observer = cache(make_observer)
        self._wanted = wanted
        self._settings = settings
        self._retention = retention
        self._on_observation = on_observation
        self._wall_ms = wall_ms
        self._threads = threads
        self._names: Mapping[TopicId, str] = {}

    async def run_once(self) -> bool:
        """Ask the whole cluster once. False when it did not answer."""
        wanted = self._wanted()
        known = self._settings.topics
        # Enabled topics without objects count, too: their retention matters for the metadata topic.
        wanted |= {topic_id for topic_id, name in self._names.items() if name in known and known[name].enable}
        try:
            observation = await self._observe(wanted, tuple(known))
        except (ClusterUnknownError, KafkaClusterError) as error:
            log.warning("cluster_not_observed", error=str(error), consequence="the last known state stays")
            return False
        self._names = observation.names
        # Settings that are only partly read may be older ones, which could release something that must be kept.
        known = self._settings.topics if self._settings.ready else {}
        self._on_observation(with_wal_retention(observation, known, self._retention), self._wall_ms())
        return True

    async def _observe(self, wanted: Collection[TopicId], heard_of: Collection[str]) -> Observation:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._observer().observe, wanted, heard_of, self._wall_ms)
