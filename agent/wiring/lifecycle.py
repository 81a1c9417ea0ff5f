"""Puts the life of combined segments together: `rlm.lifecycle`, from the settings."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

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
    ExpirationLimits,
    ExpirationPlanner,
    Responsibility,
    RLMWalExpirationTask,
)
from rlm.lifecycle.failover import FailoverTask
from rlm.lifecycle.lifecycle import Lifecycle
from rlm.lifecycle.object_ownership import Caretaking, ObjectOwnership, StoreRegistrations
from rlm.lifecycle.orphans import OrphanRounds, OrphanTask
from rlm.lifecycle.release import TOPIC_GONE_MS, LongTermTier, TopicWatch

_UNPUBLISHED_MAX_S = 10.0
"""Nothing is deleted while metadata waits longer than this for publication. It may include the end of an upload, so
this is far below the time-to-live of uploads with an unknown end."""


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
    store, lease, publisher = metadata.store, kafka.lease, around.publisher
    wall_ms, identity, storage = around.clocks.wall_ms, around.identity, around.relaying.storage
    threads = ThreadPoolExecutor(3, thread_name_prefix="lifecycle")
    ttl_ms = milliseconds(settings.uncommitted_ttl_s)

    registrations = StoreRegistrations(store, lambda: frozenset(kafka.topic_settings.agents) | {identity.broker_id})
    ownership = ObjectOwnership(identity.broker_id, identity.incarnation, registrations)
    unpublished_max_s = min(_UNPUBLISHED_MAX_S, settings.uncommitted_ttl_s / 4)
    caretaking = Caretaking(
        ownership, publisher, unpublished_max_s, lambda: lease.may_delete and lease.clock_is_off is None
    )

    limits = ExpirationLimits(around.configuration.delete_grace_ms, ttl_ms)
    planner = ExpirationPlanner(store, tier, limits, random.Random())  # noqa: S311 - it spreads retries
    on_started = around.relaying.leader.segment_deletion_started
    responsibility = Responsibility(caretaking.brokers, is_under_way, on_started, metadata.is_whole)
    expiration = RLMWalExpirationTask(storage, publisher, planner, responsibility, around.clocks, store, metrics)

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

    observer = partial(ClusterObserver, around.configuration.client, identity.broker_id, TopicWatch(TOPIC_GONE_MS))
    retention = wal_retention(settings)
    watch = ClusterWatch(observer, wanted, kafka.topic_settings, retention, observed, wall_ms, threads)
    leaders = partial(read_leaders, around.configuration.broker.metadata_log_dir)
    orphans = OrphanTask(
        storage,
        store,
        metadata.read_to_end,
        ttl_ms,
        wall_ms,
        planner.is_being_deleted,
        is_under_way,
        topic_doubt=metadata.doubt,
    )
    metrics.host_clock_ahead.set_function(lambda: lease.host_is_ahead_ms / 1000)
    metrics.metadata_topic_problems.set_function(lambda: len(kafka.topics.problems))
    return Lifecycle(
        FailoverTask(identity.broker_id, store, publisher, wall_ms, metrics, threads, declare_loss, leaders),
        watch,
        caretaking,
        expiration,
        OrphanRounds(orphans, publisher, caretaking.brokers, metrics.orphan_search, threads),
        metadata.was_read,
        threads,
        around.metrics.loops.succeeded,
    )
