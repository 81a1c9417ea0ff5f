"""Puts the life of combined segments together: `rlm.lifecycle`, from the settings."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from agent.settings.lifecycle_settings import LifecycleSettings
from agent.settings.setting_types import milliseconds
from agent.wiring.agent_resources import AgentResources
from agent.wiring.kafka_following import KafkaFollowing, wal_retention
from kafka_log.broker_files.cluster_metadata import read_leaders
from kafka_log.topic_partition import TopicId
from metadata_topic.records.declared_gaps import DeclaredGap
from plugin.segment_metadata import CombinedSegmentId
from rlm.lifecycle.cluster_observer import (
    ClusterObserver,
    ClusterWatch,
    Observation,
    held_partitions,
    longest_retention_ms,
    topics_of,
)
from rlm.lifecycle.expiration import (
    DeletionPolicy,
    ExpirationLimits,
    ExpirationPlanner,
    Responsibility,
    RLMWalExpirationTask,
)
from rlm.lifecycle.failover import FailoverTask
from rlm.lifecycle.lifecycle import Lifecycle, LifecycleIntervals, LifecycleTasks
from rlm.lifecycle.object_ownership import Caretaking, ObjectOwnership, StoreRegistrations
from rlm.lifecycle.orphans import OrphanRounds, OrphanTask, OwnWork
from rlm.lifecycle.release import TOPIC_GONE_MS, LongTermTier, TopicWatch

_UNPUBLISHED_MAX_S = 10.0
"""Nothing is deleted while metadata waits longer than this for publication. It may include the end of an upload, so
this is far below the time-to-live of uploads with an unknown end."""
_DELETE_THREADS = 4
_DELETES_PER_S = 200
"""More than an agent uploads."""


def build_lifecycle(
    around: AgentResources,
    kafka: KafkaFollowing,
    tier: LongTermTier,
    is_under_way: Callable[[CombinedSegmentId], bool],
    on_observation: Callable[[Observation], Observation],
    declare_loss: Callable[[DeclaredGap], None],
) -> Lifecycle:
    """Build it. `is_under_way` reports uploads; `on_observation` returns what conclusions are drawn from.

    `declare_loss` is called with what a led log lost without an election.
    """
    settings, metadata, metrics = around.settings.lifecycle, kafka.metadata, around.metrics.lifecycle
    store, wall_ms, broker_id = metadata.store, around.clocks.wall_ms, around.identity.broker_id
    threads = ThreadPoolExecutor(3, thread_name_prefix="lifecycle")
    caretaking = _build_caretaking(around, kafka)
    planner = _build_planner(settings, kafka, tier)

    def observed(observation: Observation, now_ms: int) -> None:
        metrics.hidden_topics.set(len(observation.hidden))
        observation = on_observation(observation)
        planner.cluster_seen(observation.view)
        metrics.held_partitions.set(held_partitions(observation.view))
        kafka.topics.retention_seen(longest_retention_ms(observation.kept_ms.values()))
        caretaking.seen(observation.brokers, now_ms)

    def wanted() -> set[TopicId]:
        stored = (*store.topic_id_partitions(), *metadata.archive.topic_id_partitions())
        return topics_of(stored) | planner.topics_asked

    metrics.host_clock_ahead.set_function(lambda: kafka.lease.host_is_ahead_ms / 1000)
    metrics.metadata_topic_problems.set_function(lambda: len(kafka.topics.problems))
    watch = TopicWatch(TOPIC_GONE_MS)
    leaders = partial(read_leaders, around.configuration.broker.metadata_log_dir)
    observer = partial(ClusterObserver, around.configuration.client, broker_id, watch)
    orphans = _build_orphan_task(around, kafka, OwnWork(planner.is_being_deleted, is_under_way))
    tasks = LifecycleTasks(
        FailoverTask(broker_id, store, around.publisher, wall_ms, metrics, threads, declare_loss, leaders),
        ClusterWatch(observer, wanted, kafka.topic_settings, wal_retention(settings), observed, wall_ms, threads),
        caretaking,
        _build_expiration(around, kafka, planner, caretaking, is_under_way),
        OrphanRounds(orphans, around.publisher, caretaking.brokers, metrics.orphan_search, threads),
    )
    return Lifecycle(tasks, LifecycleIntervals(), metadata.was_read, threads, around.metrics.loops.succeeded)


def _build_expiration(
    around: AgentResources,
    kafka: KafkaFollowing,
    planner: ExpirationPlanner,
    caretaking: Caretaking,
    is_under_way: Callable[[CombinedSegmentId], bool],
) -> RLMWalExpirationTask:
    metadata, relaying = kafka.metadata, around.relaying
    on_started = relaying.leader.segment_deletion_started
    responsibility = Responsibility(caretaking.brokers, is_under_way, on_started, metadata.is_whole)
    store = metadata.store
    policy = DeletionPolicy(
        _DELETES_PER_S, _DELETE_THREADS, store.published_segment, around.metrics.lifecycle, store.find_adopters
    )
    return RLMWalExpirationTask(relaying.storage, around.publisher, planner, responsibility, around.clocks, policy)


def _build_orphan_task(around: AgentResources, kafka: KafkaFollowing, own: OwnWork) -> OrphanTask:
    settings, metadata = around.settings.lifecycle, kafka.metadata
    return OrphanTask(
        around.relaying.storage,
        metadata.store,
        metadata.read_to_end,
        milliseconds(settings.uncommitted_ttl_s),
        around.clocks.wall_ms,
        own,
        topic_doubt=metadata.doubt,
    )


def _build_caretaking(around: AgentResources, kafka: KafkaFollowing) -> Caretaking:
    settings, identity = around.settings.lifecycle, around.identity
    agents = kafka.topic_settings
    registrations = StoreRegistrations(kafka.metadata.store, lambda: frozenset(agents.agents) | {identity.broker_id})
    takeover_ms = milliseconds(settings.node_takeover_s)
    care = ObjectOwnership(identity.broker_id, identity.incarnation, registrations, takeover_ms)
    unpublished_max_s = min(_UNPUBLISHED_MAX_S, settings.uncommitted_ttl_s / 4)
    lease = kafka.lease
    return Caretaking(
        care,
        around.publisher,
        unpublished_max_s,
        lambda: lease.may_delete and lease.clock_is_off is None,
    )


def _build_planner(settings: LifecycleSettings, kafka: KafkaFollowing, tier: LongTermTier) -> ExpirationPlanner:
    limits = ExpirationLimits(
        milliseconds(settings.expiration_delete_grace_s), milliseconds(settings.uncommitted_ttl_s)
    )
    spread = random.Random()  # noqa: S311 - it spreads retries and guards nothing
    return ExpirationPlanner(kafka.metadata.store, tier, limits, spread)
