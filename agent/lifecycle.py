"""The life of combined segments after their upload: registrations, failover, expiration, orphans.

None of it is on the path of replication, and all of it waits until the metadata topic was read to its end. While the
cluster or the store does not answer, everything stays as it is.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from agent.identity import AgentIdentity
from agent.kafka_side import KafkaSide
from agent.setting_types import milliseconds
from agent.settings import AgentSettings
from agent.transfer_limits import healing_limits
from kafka_log.errors import MalformedFileError
from kafka_log.leader_epoch_checkpoint import read_leader_epochs
from kafka_log.topic_partition import TopicId
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.topic.client_config import KafkaClientConfig
from metadata_topic.topic.cluster_descriptions import DescriptionError
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from plugin.errors import RemoteStorageError
from plugin.remote_wal_storage_manager import RemoteWalStorageManager
from plugin.segment_metadata import CombinedSegmentId
from rlm.lifecycle.cluster_observer import (
    ClusterObserver,
    ClusterUnknownError,
    Observation,
    longest_retention_ms,
    topics_of,
)
from rlm.lifecycle.expiration import ExpirationLimits, ExpirationPlanner
from rlm.lifecycle.expiration_task import DeletionPolicy, Responsibility, RLMWalExpirationTask
from rlm.lifecycle.failover import FailoverPlanner
from rlm.lifecycle.node_care import NodeCare
from rlm.lifecycle.node_registrations import StoreRegistrations, publish_registration
from rlm.lifecycle.orphan_task import OrphanTask, OwnWork
from rlm.lifecycle.orphans import Comparison, Kind, MetadataBehindError, skipped_because
from rlm.lifecycle.release import LongTermTier, TopicWatch
from rlm.write_path.assignment import Assignment
from rlm.write_path.combine_task import Clocks
from rlm.write_path.metrics import LifecycleMetrics

T = TypeVar("T")

log = structlog.get_logger(__name__)

_UNPUBLISHED_MAX_S = 10.0
"""Metadata that waits for longer: nothing is deleted meanwhile. Its end of an upload may be among it, so this is far
below the time-to-live of uploads whose end is not known."""
_DELETE_THREADS = 4
_PARTITIONS_AT_ONCE = 100
_METADATA_WAIT_S = 5.0
_ORPHANS_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class LifecycleParts:
    """What the rest of the agent has made."""

    storage: RemoteWalStorageManager
    publisher: RemoteWalMetadataPublisher
    kafka: KafkaSide
    is_under_way: Callable[[CombinedSegmentId], bool]
    on_deletion_started: Callable[[CombinedSegmentId], None]
    tier: LongTermTier
    on_observation: Callable[[Observation], None]
    """In the event loop, before anything is concluded from it."""
    metrics: LifecycleMetrics
    clocks: Clocks


class Lifecycle:
    """Runs the tasks. Create and use it in the event loop."""

    def __init__(
        self, settings: AgentSettings, identity: AgentIdentity, client: KafkaClientConfig, parts: LifecycleParts
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._client = client
        self._parts = parts
        store = parts.kafka.store
        registrations = StoreRegistrations(store, self._agents)
        self._care = NodeCare(
            identity.broker_id, identity.incarnation, registrations, milliseconds(settings.lifecycle.node_takeover_s)
        )
        self._failover = FailoverPlanner(identity.broker_id, store)
        limits = ExpirationLimits(
            milliseconds(settings.lifecycle.expiration_delete_grace_s),
            milliseconds(settings.lifecycle.uncommitted_ttl_s),
        )
        self._planner = ExpirationPlanner(
            store,
            parts.tier,
            limits,
            random.Random(),  # noqa: S311 - it spreads retries, it guards nothing
        )
        self._expiration = RLMWalExpirationTask(
            parts.storage,
            parts.publisher,
            self._planner,
            Responsibility(
                self.brokers_to_care_for,
                parts.is_under_way,
                parts.on_deletion_started,
                parts.kafka.metadata_is_whole,
            ),
            parts.clocks,
            DeletionPolicy(
                settings.lifecycle.expiration_deletes_per_second,
                _DELETE_THREADS,
                store.published_segment,
                parts.metrics,
            ),
        )
        self._orphans = OrphanTask(
            parts.storage,
            store,
            parts.kafka.metadata_read_to_end,
            milliseconds(settings.lifecycle.uncommitted_ttl_s),
            parts.clocks.wall_ms,
            OwnWork(self._planner.is_being_deleted, parts.is_under_way),
            healing_limits(settings),
            parts.kafka.topic_doubt,
        )
        self._unpublished_max_s = min(_UNPUBLISHED_MAX_S, settings.lifecycle.uncommitted_ttl_s / 4)
        parts.metrics.metadata_topic_problems.set_function(lambda: len(parts.kafka.topics.problems))
        self._names: Mapping[TopicId, str] = {}
        self._led: Sequence[Assignment] = ()
        self._led_changed = asyncio.Event()
        self._cluster_seen = asyncio.Event()
        self._pool = ThreadPoolExecutor(3, thread_name_prefix="lifecycle")

    def register(self) -> None:
        """Announce this incarnation. Before anything is uploaded: the publisher keeps the order."""
        publish_registration(self._parts.publisher, self._care.first_registration(), self._parts.clocks.wall_ms())

    async def run(self) -> None:
        """Run the tasks until cancelled; what is half done goes on at the next run, which is another object's."""
        try:
            await self._run()
        finally:
            self._expiration.close()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def led(self, assignments: Sequence[Assignment]) -> None:
        """These partitions are led here from now on."""
        if [a.topic_id_partition for a in assignments] != [a.topic_id_partition for a in self._led]:
            self._led_changed.set()
        self._led = tuple(assignments)

    async def _run(self) -> None:
        settings = self._settings
        while not await self._in_thread(self._parts.kafka.metadata_was_read, _METADATA_WAIT_S):
            log.info("lifecycle_waits", reason="the metadata topic is not read yet")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                self._repeat(self._declare_dead, settings.lifecycle.failover_check_interval_s, self._led_changed)
            )
            tasks.create_task(self._watch_cluster())
            tasks.create_task(self._repeat(self._expiration.run_once, settings.lifecycle.expiration_task_interval_s))
            tasks.create_task(self._look_for_orphans())

    async def _repeat(
        self, step: Callable[[], Awaitable[None]], interval_s: float, sooner: asyncio.Event | None = None
    ) -> None:
        never = asyncio.Event()
        while True:
            (sooner or never).clear()
            await step()
            try:
                async with asyncio.timeout(interval_s):
                    await (sooner or never).wait()
            except TimeoutError:
                continue

    # Failover.

    async def _declare_dead(self) -> None:
        led = self._led
        self._failover.keep_only(assignment.topic_id_partition for assignment in led)
        stored = frozenset(await self._in_thread(self._parts.kafka.store.topic_id_partitions))
        wanted = [assignment for assignment in led if assignment.topic_id_partition in stored]
        for start in range(0, len(wanted), _PARTITIONS_AT_ONCE):
            await self._in_thread(self._declare_dead_of_all, wanted[start : start + _PARTITIONS_AT_ONCE])

    def _declare_dead_of_all(self, assignments: Sequence[Assignment]) -> None:
        for assignment in assignments:
            self._declare_dead_of(assignment)

    def _declare_dead_of(self, assignment: Assignment) -> None:
        partition = assignment.topic_id_partition
        try:
            epochs = read_leader_epochs(assignment.directory)
        except (OSError, MalformedFileError) as error:
            log.warning("leader_epochs_not_read", partition=str(partition), error=str(error))
            return
        for update in self._failover.plan(partition, epochs, self._parts.clocks.wall_ms()):
            try:
                self._parts.publisher.publish(update)
            except PublicationBacklogFullError:
                self._failover.untold(update)
                continue
            self._parts.metrics.dead_entries.inc(len(update.entries))
            log.info(
                "dead_entries_published",
                partition=str(partition),
                segment=str(update.combined_segment_id),
                leader_epoch=update.leader_epoch,
                from_offset=min(entry.first_offset for entry in update.entries),
                to_offset=max(entry.last_offset for entry in update.entries) + 1,
            )

    # Topics and brokers.

    async def _watch_cluster(self) -> None:
        settings = self._settings
        watch = TopicWatch(milliseconds(settings.lifecycle.expiration_topic_gone_s))
        observer = ClusterObserver(self._client, self._identity.broker_id, watch)
        await self._repeat(lambda: self._observe(observer), settings.lifecycle.expiration_cluster_interval_s)

    async def _observe(self, observer: ClusterObserver) -> None:
        from confluent_kafka import KafkaException

        kafka = self._parts.kafka
        wanted = topics_of((*kafka.store.topic_id_partitions(), *kafka.archive.topic_id_partitions()))
        wanted |= self._planner.topics_asked
        now_ms = self._parts.clocks.wall_ms()
        try:
            known = kafka.topic_settings.topics
            # Enabled ones that have no objects yet: how long they are kept counts for the metadata topic, too.
            wanted |= {topic_id for topic_id, name in self._names.items() if name in known and known[name].enable}
            observation = await self._in_thread(observer.observe, wanted, tuple(known), now_ms)
            self._names = observation.names
        except (KafkaException, ClusterUnknownError, DescriptionError) as error:
            log.warning("cluster_not_observed", error=str(error), consequence="the last known state stays")
            return
        self._parts.metrics.hidden_topics.set(len(observation.hidden))
        self._parts.on_observation(observation)
        self._planner.cluster_seen(observation.view)
        self._cluster_seen.set()
        kafka.topics.local_retention_seen(longest_retention_ms(observation.view.retention_ms.values()))
        for registration in self._care.registrations_due(observation.brokers, now_ms):
            try:
                publish_registration(self._parts.publisher, registration, now_ms)
            except PublicationBacklogFullError:
                continue  # it is due until it is seen
            log.warning("node_registered", **registration._asdict())

    def _agents(self) -> frozenset[int]:
        return frozenset(self._parts.kafka.topic_settings.agents) | {self._identity.broker_id}

    def brokers_to_care_for(self) -> frozenset[int]:
        """Whose objects may be deleted from here now; any thread may ask."""
        publisher, clocks = self._parts.publisher, self._parts.clocks
        if (
            not self._cluster_seen.is_set()
            or self._care.is_fenced()
            or publisher.oldest_pending_age_s(clocks.monotonic_s()) > self._unpublished_max_s
        ):
            return frozenset()
        return self._care.brokers_in_care()

    # Orphans.

    async def _look_for_orphans(self) -> None:
        interval_s = self._settings.lifecycle.orphans_interval_s
        await self._cluster_seen.wait()
        while True:
            searched = await self._search_orphans()
            await asyncio.sleep(interval_s if searched else min(interval_s, _ORPHANS_RETRY_S))

    async def _search_orphans(self) -> bool:
        brokers = self.brokers_to_care_for()
        try:
            comparisons = await self._in_thread(self._orphans.compare, brokers)
            still = self.brokers_to_care_for()  # a listing takes its time
            for comparison in (comparisons[broker_id] for broker_id in comparisons if broker_id in still):
                if self._settings.lifecycle.orphans_heal_enable and comparison.disagreements:
                    await self._in_thread(self._orphans.heal, comparison, self._parts.publisher)
        except (RemoteStorageError, PublicationBacklogFullError, MetadataBehindError) as error:
            self._parts.metrics.orphan_rounds_skipped.labels(skipped_because(error)).inc()
            log.warning("orphans_not_searched", error=str(error))
            return False
        self._tell(list(comparisons.values()))
        return bool(brokers)

    def _tell(self, comparisons: list[Comparison]) -> None:
        metrics = self._parts.metrics
        for kind in Kind:
            count = sum(comparison.count(kind) for comparison in comparisons)
            waiting = sum(found.kind is kind for comparison in comparisons for found in comparison.waiting)
            metrics.orphans_waiting.labels(kind.value).set(waiting)
            metrics.orphans.labels(kind.value).set(count)
            if kind is Kind.LOST and count:
                metrics.lost_segments.inc(count)
                log.error("segments_lost", segments=count, reason="metadata knows them, the store does not have them")

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)
