"""Asks the cluster about topics and brokers, at long intervals. Blocks; for a thread of its own.

A hidden topic is not a deleted topic, but the list of all topics lacks both. When Kafka is asked for a topic by its id,
it tells them apart: UNKNOWN_TOPIC_ID if it does not exist, TOPIC_AUTHORIZATION_FAILED if it exists and is hidden. So
each topic with objects that the client does not see is asked for by its id, and counts as gone only if the cluster says
so, whatever its name was.

librdkafka cannot ask by id, so with a login that only it supports, topics are told apart by name. Kafka then says
UNKNOWN_TOPIC_OR_PARTITION for a missing topic, but TOPIC_AUTHORIZATION_FAILED for a hidden name whether or not it
exists. Every name is asked for that this agent has seen or heard of. Hidden topics keep their state, and while any
exists, so do topics without a known name, because any of them may be the hidden one. Only a hidden topic whose name is
not known at all looks deleted.

Any other error in an answer makes all of it worthless. So does a cluster that does not show the agents' own metadata
topic: it is not the whole cluster.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeVar

import structlog

from kafka_cluster.client_config import KafkaClientConfig
from kafka_cluster.cluster import EARLIEST, KafkaCluster
from kafka_cluster.errors import KafkaClusterError
from kafka_cluster.responses import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    DescribedTopic,
)
from kafka_log.topic_partition import TopicId, TopicIdPartition, topic_id_to_text
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.settings_topic import SettingsReader, read_settings
from metadata_topic.settings.wal_retention import (
    NO_LIMIT,
    KeptFor,
    WalRetention,
    ends_by_local_retention,
    is_tiered,
    local_retention_ms,
    log_retention_ms,
)
from metadata_topic.topic.topic import METADATA_TOPIC
from rlm.lifecycle.release import NEVER, ClusterView, HiddenTopics, TopicWatch

log = structlog.get_logger(__name__)

K = TypeVar("K")

_SETTINGS_TIMEOUT_S = 30.0


class ClusterUnknownError(Exception):
    """The cluster's response was incomplete."""


@dataclass(frozen=True, slots=True)
class Replication:
    """How many replicas a topic has, and which partitions have one out of sync."""

    factor: int
    """Replicas of the partition that has the fewest; 0 when none is known."""
    lagging: frozenset[int]
    """Partitions that have a replica which is not in sync."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the cluster's brokers said of topics, retention and replicas at one time."""

    view: ClusterView
    """With the topics' local retention."""
    brokers: frozenset[int]
    names: Mapping[TopicId, str] = field(default_factory=dict)
    """Names of the living topics."""
    hidden: frozenset[str] = frozenset()
    """Topics that this client may not describe, by name, or by id if the name is unknown."""
    replication: Mapping[TopicId, Replication] = field(default_factory=dict)
    """Replicas of the wanted topics that exist."""
    tier_ms: Mapping[TopicId, int] = field(default_factory=dict)
    """How long brokers and the tier keep the logs of topics that KIP-405 copies; NEVER."""
    kept_ms: Mapping[TopicId, int] = field(default_factory=dict)
    """How long entries are kept at most, by the retention of their log; NEVER."""


def longest_retention_ms(retentions_ms: Iterable[int]) -> int | None:
    """Return the longest of these; NEVER if one is; None if there are none."""
    known = list(retentions_ms)
    return NEVER if NEVER in known else max(known, default=None)


@dataclass(frozen=True, slots=True)
class _ResponsesById:
    """Topics that were asked for by id, sorted by the answer."""

    described: dict[TopicId, DescribedTopic]
    """Topics that may be described after all."""
    hidden: frozenset[TopicId]
    absent: frozenset[TopicId]


class ClusterObserver:
    """Asks Kafka about brokers, topics, retention and log starts. Blocks; one caller at a time."""

    def __init__(self, client: KafkaClientConfig, broker_id: int, watch: TopicWatch, timeout_s: float = 10.0) -> None:
        self._cluster = KafkaCluster(client, f"remote-wal-agent-{broker_id}-lifecycle", timeout_s)
        self._asks_by_id = self._cluster.can_ask_by_id
        self._watch = watch
        self._seen: dict[TopicId, str] = {}
        """The names of living topics, and of former ones as long as they are wanted or hidden."""

    def observe(
        self, wanted: Collection[TopicId], heard_of: Collection[str], wall_ms: Callable[[], int]
    ) -> Observation:
        """Return the brokers, the topics that exist, and retention and log start offsets of the wanted ones.

        `heard_of` are names of topics that may be among the wanted ones. `wall_ms` is called before the first request:
        that is the view's time. It is called again once topics are known: a grace time must not begin earlier, however
        long responses took. Raises ClusterUnknownError, KafkaClusterError.
        """
        asked_ms = wall_ms()
        listing = self._cluster.listing()
        if METADATA_TOPIC not in listing.topics:
            raise ClusterUnknownError(f"the cluster does not show {METADATA_TOPIC}; may this client describe topics?")
        described, hidden = self._describe(sorted({*listing.topics, *self._seen.values(), *heard_of}))
        names = {topic_id: topic.name for topic_id, topic in described.items()}
        hidden_ids: frozenset[TopicId] = frozenset()
        if self._asks_by_id:
            by_id = self._ask_by_id({*wanted, *self._seen} - set(names), names)
            described, hidden_ids = described | by_id.described, by_id.hidden
            names = {topic_id: topic.name for topic_id, topic in described.items()}
            view = self._watch.seen_by_id(frozenset(names) | hidden_ids, by_id.absent, wall_ms())
        else:
            view = self._watch.seen(frozenset(names), wall_ms(), self._hidden_of(names, hidden))
        kept = {*wanted, *hidden_ids}
        self._seen = {known: name for known, name in self._seen.items() if known in kept or name in hidden} | names
        hidden |= {self._seen.get(topic_id) or topic_id_to_text(topic_id) for topic_id in hidden_ids}
        if hidden:
            log.warning("topics_hidden", topics=sorted(hidden), hint="allow the agents' principal to describe them",
                        consequence="neither their retention nor their log start releases any object")  # fmt: skip
        asked = {topic_id: name for topic_id, name in names.items() if topic_id in wanted}
        configs = self._configs(asked)
        partitions = {
            (name, one.partition): TopicIdPartition(topic_id, one.partition)
            for topic_id, name in asked.items()
            if name in listing.topics
            for one in listing.topics[name].partitions
        }
        log_start = self._log_start(partitions)
        return Observation(
            replace(view, retention_ms=_local_retentions(configs), log_start=log_start, as_of_ms=asked_ms),
            frozenset(listing.brokers),
            names,
            hidden,
            {topic_id: _replication(described[topic_id]) for topic_id in asked},
            _tier_retentions(configs),
        )

    def _ask_by_id(self, unseen: Collection[TopicId], names: Mapping[TopicId, str]) -> _ResponsesById:
        """Ask by id about topics that the cluster did not show."""
        if not unseen:
            return _ResponsesById({}, frozenset(), frozenset())
        witness = next((topic_id for topic_id, name in names.items() if name == METADATA_TOPIC), None)
        if witness is None:
            raise ClusterUnknownError(f"the cluster does not describe {METADATA_TOPIC}")
        found: dict[TopicId, DescribedTopic] = {}
        hidden: set[TopicId] = set()
        absent: set[TopicId] = set()
        for topic in self._cluster.topics_by_id(sorted({*unseen, witness})):
            if not topic.error_code:
                found[topic.topic_id] = topic
            elif topic.error_code == TOPIC_AUTHORIZATION_FAILED:
                hidden.add(topic.topic_id)
            elif topic.error_code == UNKNOWN_TOPIC_ID:
                absent.add(topic.topic_id)
            else:
                which = topic_id_to_text(topic.topic_id)
                raise ClusterUnknownError(f"describing topic {which} failed with Kafka's error {topic.error_code}")
        if witness not in found:
            raise ClusterUnknownError(f"a broker does not know {METADATA_TOPIC}: it does not know the whole cluster")
        return _ResponsesById(found, frozenset(hidden), frozenset(absent))

    def _hidden_of(self, names: Mapping[TopicId, str], hidden: frozenset[str]) -> HiddenTopics:
        known = {topic_id for topic_id, name in self._seen.items() if name in hidden}
        return HiddenTopics(frozenset(known - set(names)), others=bool(hidden))

    def log_retentions_ms(self, names: Iterable[str]) -> dict[str, int]:
        """Return how long brokers, and the tier, keep the topics' logs where it is known. Raises KafkaClusterError."""
        configs = self._configs({name: name for name in names})
        return _local_retentions(configs) | _tier_retentions(configs)

    def _describe(self, names: list[str]) -> tuple[dict[TopicId, DescribedTopic], frozenset[str]]:
        """Return the existing topics, and the names of hidden ones."""
        found: dict[TopicId, DescribedTopic] = {}
        hidden: set[str] = set()
        for topic in self._cluster.topics(names):
            if topic.error_code == TOPIC_AUTHORIZATION_FAILED:
                hidden.add(topic.name)
            elif not topic.error_code:
                found[topic.topic_id] = topic
            elif topic.error_code != UNKNOWN_TOPIC_OR_PARTITION:
                raise ClusterUnknownError(f"describing topic {topic.name} failed with Kafka's error {topic.error_code}")
        return found, frozenset(hidden)

    def _configs(self, asked: Mapping[K, str]) -> dict[K, Mapping[str, str | None]]:
        """Return the configurations of those topics that give theirs."""
        ids = {name: topic_id for topic_id, name in asked.items()}
        found: dict[K, Mapping[str, str | None]] = {}
        for name, config in self._cluster.topic_configurations(ids).each():
            if isinstance(config, KafkaClusterError):
                log.info("topic_retention_unknown", topic=name, error=str(config))
            else:
                found[ids[name]] = config
        return found

    def _log_start(self, partitions: Mapping[tuple[str, int], TopicIdPartition]) -> dict[TopicIdPartition, int]:
        found: dict[TopicIdPartition, int] = {}
        for where, start in self._cluster.offsets(partitions, EARLIEST).each():
            if isinstance(start, KafkaClusterError):
                log.info("log_start_unknown", topic=where[0], partition=where[1], error=str(start))
            else:
                found[partitions[where]] = start
        return found


def _local_retentions(configs: Mapping[K, Mapping[str, str | None]]) -> dict[K, int]:
    """Return the local retention where the configuration has one."""
    return {key: kept_ms for key, config in configs.items() if (kept_ms := local_retention_ms(config)) is not None}


def _tier_retentions(configs: Mapping[K, Mapping[str, str | None]]) -> dict[K, int]:
    """Return the retention of tiered logs; NEVER if it is unknown, so that nothing counts as shorter than it is."""
    tiered = {key: log_retention_ms(config) for key, config in configs.items() if is_tiered(config)}
    return {key: NEVER if kept_ms is None else kept_ms for key, kept_ms in tiered.items()}


def _replication(topic: DescribedTopic) -> Replication:
    return Replication(topic.replication_factor, frozenset(one.partition for one in topic.partitions if one.is_lagging))


def topics_of(partitions: Iterable[TopicIdPartition]) -> set[TopicId]:
    return {partition.topic_id for partition in partitions}


def longest_enabled_retention_ms(client: KafkaClientConfig, broker_id: int, state_directory: Path) -> int | None:
    """Return the longest retention of the enabled topics' logs now; None if unknown. Blocks.

    What the agent remembers in its state directory of a lost settings topic counts, too. Raises MetadataTopicError.
    """
    try:
        known = read_settings(client, _SETTINGS_TIMEOUT_S, memory=SettingsMemory(state_directory))
        enabled = [name for name, topic in known.topics.items() if topic.enable]
        observer = ClusterObserver(client, broker_id, TopicWatch(0))
        return longest_retention_ms(observer.log_retentions_ms(enabled).values())
    except (ClusterUnknownError, KafkaClusterError) as error:
        log.warning("local_retention_unknown", error=str(error), consequence="the configured retention is taken")
        return None


def with_wal_retention(observation: Observation, table: SettingsTable | None, retention: WalRetention) -> Observation:
    """Return the observation with the WAL retention in its view; `table` has the topics' settings, None if unknown.

    Entries that are kept as long as the log are released by the log's start or the tier, never by age: timestamps may
    be in the future, and brokers keep what the tier does not have. Unknown settings may ask for that.
    """
    view = observation.view

    def kept_for(topic_id: TopicId, log_ms: int) -> KeptFor:
        settings = (table or SettingsTable()).of(observation.names.get(topic_id, ""), topic_id)
        if table is not None and ends_by_local_retention(settings, tiered=topic_id in observation.tier_ms):
            log_ms = view.retention_ms[topic_id]
        return retention.of(settings, _factor(observation, topic_id), log_ms)

    log_retention = {topic_id: observation.tier_ms.get(topic_id, ms) for topic_id, ms in view.retention_ms.items()}
    kept = {topic_id: kept_for(topic_id, NO_LIMIT) for topic_id in view.retention_ms}
    return replace(
        observation,
        kept_ms={topic_id: kept_for(topic_id, log_ms).lagging_ms for topic_id, log_ms in log_retention.items()},
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
    """Asks the cluster from time to time. For the event loop; requests block, on `threads`."""

    def __init__(
        self,
        make_observer: Callable[[], ClusterObserver],
        wanted: Callable[[], set[TopicId]],
        settings: SettingsReader,
        retention: WalRetention,
        on_observation: Callable[[Observation, int], None],
        wall_ms: Callable[[], int],
        threads: Executor,
    ) -> None:
        """`make_observer` is called before the first request; `wanted` returns the topics that have objects, in a
        thread.

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
        """Ask for the whole cluster once. Returns False when it did not respond."""
        wanted = await asyncio.get_running_loop().run_in_executor(self._threads, self._wanted)
        known = self._settings.table.topics
        # Enabled topics without objects count, too: their retention matters for the metadata topic.
        wanted |= {topic_id for topic_id, name in self._names.items() if name in known and known[name].enable}
        try:
            observation = await self._observe(wanted, tuple(known))
        except (ClusterUnknownError, KafkaClusterError) as error:
            log.warning("cluster_not_observed", error=str(error), consequence="the last known state stays")
            return False
        self._names = observation.names
        # Settings that are only partly read may be older ones, which could release something that must be kept.
        read = self._settings.table if self._settings.ready else None
        self._on_observation(with_wal_retention(observation, read, self._retention), self._wall_ms())
        return True

    async def _observe(self, wanted: Collection[TopicId], heard_of: Collection[str]) -> Observation:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._observer().observe, wanted, heard_of, self._wall_ms)
