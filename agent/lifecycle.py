"""Puts the life of combined segments together: `rlm.lifecycle`, from the settings."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from agent.kafka_following import KafkaFollowing
from agent.lifecycle_settings import LifecycleSettings
from agent.setting_types import milliseconds
from agent.surroundings import Kept, Surroundings
from kafka_log.topic_partition import TopicId
from plugin.segment_metadata import CombinedSegmentId
from rlm.lifecycle.caretaking import Caretaking, StoreRegistrations
from rlm.lifecycle.cluster_observer import ClusterObserver, Observation, longest_retention_ms, topics_of
from rlm.lifecycle.cluster_watch import ClusterWatch
from rlm.lifecycle.expiration import ExpirationLimits, ExpirationPlanner
from rlm.lifecycle.expiration_task import DeletionPolicy, Responsibility, RLMWalExpirationTask
from rlm.lifecycle.failover_task import FailoverTask
from rlm.lifecycle.lifecycle import Lifecycle, LifecycleIntervals, LifecycleTasks
from rlm.lifecycle.node_care import NodeCare
from rlm.lifecycle.orphan_rounds import OrphanRounds
from rlm.lifecycle.orphan_task import OrphanTask, OwnWork
from rlm.lifecycle.orphans import HealingLimits
from rlm.lifecycle.release import LongTermTier, TopicWatch

_UNPUBLISHED_MAX_S = 10.0
"""Metadata that waits for longer: nothing is deleted meanwhile. Its end of an upload may be among it, so this is far
below the time-to-live of uploads whose end is not known."""
_DELETE_THREADS = 4


def healing_limits(settings: LifecycleSettings) -> HealingLimits:
    """What of orphans may be healed without a word from somebody."""
    return HealingLimits(settings.orphans_heal_max_percent, settings.orphans_heal_min_objects)


def build_lifecycle(
    around: Surroundings,
    kept: Kept,
    kafka: KafkaFollowing,
    tier: LongTermTier,
    is_under_way: Callable[[CombinedSegmentId], bool],
    on_observation: Callable[[Observation], None],
) -> Lifecycle:
    """`is_under_way` tells of uploads; `on_observation` is called before anything is concluded from it."""
    settings, metadata, metrics = around.settings.lifecycle, kafka.metadata, kept.metrics.lifecycle
    store, storage, publisher, clocks = metadata.store, around.relaying.storage, kept.publisher, around.clocks
    threads = ThreadPoolExecutor(3, thread_name_prefix="lifecycle")
    caretaking = _build_caretaking(around, kept, kafka)
    planner = _build_planner(settings, kafka, tier)
    expiration = RLMWalExpirationTask(
        storage,
        publisher,
        planner,
        Responsibility(
            caretaking.brokers, is_under_way, around.relaying.leader.segment_deletion_started, metadata.is_whole
        ),
        clocks,
        DeletionPolicy(settings.expiration_deletes_per_second, _DELETE_THREADS, store.published_segment, metrics),
    )
    orphans = OrphanTask(
        storage,
        store,
        metadata.read_to_end,
        milliseconds(settings.uncommitted_ttl_s),
        clocks.wall_ms,
        OwnWork(planner.is_being_deleted, is_under_way),
        healing_limits(settings),
        metadata.doubt,
    )

    def observed(observation: Observation, now_ms: int) -> None:
        metrics.hidden_topics.set(len(observation.hidden))
        on_observation(observation)
        planner.cluster_seen(observation.view)
        kafka.topics.local_retention_seen(longest_retention_ms(observation.view.retention_ms.values()))
        caretaking.seen(observation.brokers, now_ms)

    def wanted() -> set[TopicId]:
        stored = (*store.topic_id_partitions(), *metadata.archive.topic_id_partitions())
        return topics_of(stored) | planner.topics_asked

    metrics.metadata_topic_problems.set_function(lambda: len(kafka.topics.problems))
    watch = TopicWatch(milliseconds(settings.expiration_topic_gone_s))
    broker_id = around.identity.broker_id
    make_observer = partial(ClusterObserver, around.configuration.client, broker_id, watch)
    return Lifecycle(
        LifecycleTasks(
            FailoverTask(broker_id, store, publisher, clocks.wall_ms, metrics, threads),
            ClusterWatch(
                make_observer,
                wanted,
                kafka.topic_settings,
                observed,
                clocks.wall_ms,
                threads,
            ),
            caretaking,
            expiration,
            OrphanRounds(orphans, publisher, caretaking.brokers, settings.orphans_heal_enable, metrics, threads),
        ),
        LifecycleIntervals(
            settings.failover_check_interval_s,
            settings.expiration_cluster_interval_s,
            settings.expiration_task_interval_s,
            settings.orphans_interval_s,
        ),
        metadata.was_read,
        threads,
    )


def _build_caretaking(around: Surroundings, kept: Kept, kafka: KafkaFollowing) -> Caretaking:
    settings, identity = around.settings.lifecycle, around.identity
    agents = kafka.topic_settings
    registrations = StoreRegistrations(kafka.metadata.store, lambda: frozenset(agents.agents) | {identity.broker_id})
    takeover_ms = milliseconds(settings.node_takeover_s)
    care = NodeCare(identity.broker_id, identity.incarnation, registrations, takeover_ms)
    unpublished_max_s = min(_UNPUBLISHED_MAX_S, settings.uncommitted_ttl_s / 4)
    return Caretaking(care, kept.publisher, around.clocks, unpublished_max_s)


def _build_planner(settings: LifecycleSettings, kafka: KafkaFollowing, tier: LongTermTier) -> ExpirationPlanner:
    limits = ExpirationLimits(
        milliseconds(settings.expiration_delete_grace_s), milliseconds(settings.uncommitted_ttl_s)
    )
    spread = random.Random()  # noqa: S311 - it spreads retries, it guards nothing
    return ExpirationPlanner(kafka.metadata.store, tier, limits, spread)
