"""The tasks for objects after their upload, from the settings: `rlm.lifecycle` and `rlm.archive`.

None of them is on the path of replication, and all wait until the metadata topic was read to its end. While the cluster
or the store does not answer, everything stays as it is.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import structlog

from agent.settings.agent_settings import AgentSettings
from agent.settings.memory_shares import ARCHIVE_OBJECT_MAX_BYTES
from agent.settings.setting_types import milliseconds
from agent.wiring.agent_resources import AgentResources
from agent.wiring.kafka_following import KafkaFollowing
from agent.wiring.write_path import WritePath
from kafka_log.broker_files.cluster_metadata import read_leaders
from kafka_log.topic_partition import TopicId
from plugin.archive_storage import load_archive_storage
from plugin.hot_path.deadline import wait_at_most
from rlm.archive.archive_plan import ArchiveLimits
from rlm.archive.archive_task import ArchiveSources, ArchiveTaskLimits
from rlm.archive.archiving import Archiving, ArchivingLimits
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
from rlm.lifecycle.failover import FailoverPlanner, FailoverTask
from rlm.lifecycle.log_starts import LogStarts
from rlm.lifecycle.object_ownership import Caretaking, ObjectOwnership
from rlm.lifecycle.orphans import ORPHANS_S, OrphanTask, pause_s
from rlm.lifecycle.release import TOPIC_GONE_MS, TopicWatch
from rlm.write_path.assignment import Assignment
from rlm.write_path.runtime import Runtime

log = structlog.get_logger(__name__)

FAILOVER_S = 10.0
"""How often entries of older leaders are looked for that the logs do not have; also at each change of leadership."""
CLUSTER_S = 30.0
"""How often topics, their retention and log start offsets are asked for."""
EXPIRATION_S = 5.0
"""How often objects are looked for that may be deleted."""
_METADATA_WAIT_S = 5.0
_UNPUBLISHED_MAX_S = 10.0
"""Nothing is deleted while metadata waits longer than this for publication. It may include the end of an upload, so
this is far below the time-to-live of uploads with an unknown end."""


class Lifecycle:
    """Runs the tasks for combined segments after their upload. Create and use it in the event loop."""

    def __init__(self, around: AgentResources, kafka: KafkaFollowing, write_path: WritePath) -> None:
        settings, publisher, storage = around.settings.lifecycle, around.publisher, around.relaying.storage
        identity, wall_ms, lease = around.identity, around.clocks.wall_ms, kafka.lease
        self._kafka, self._metadata, self._write_path = kafka, kafka.metadata, write_path
        self._metrics, self._succeeded = around.metrics.lifecycle, around.metrics.loops.succeeded
        self._threads = threads = ThreadPoolExecutor(3, thread_name_prefix="lifecycle")
        store, ttl_ms = kafka.metadata.store, milliseconds(settings.uncommitted_ttl_s)
        self._log_starts, is_under_way = LogStarts(store), write_path.combine.is_under_way

        ownership = ObjectOwnership(
            identity.broker_id, identity.incarnation, store, lambda: set(kafka.topic_settings.agents)
        )
        unpublished_max_s = min(_UNPUBLISHED_MAX_S, settings.uncommitted_ttl_s / 4)
        self._caretaking = Caretaking(
            ownership, publisher, unpublished_max_s, lambda: lease.may_delete and lease.clock_is_off is None
        )
        self.brokers_to_care_for = brokers = self._caretaking.brokers
        """Returns the brokers whose objects this agent may delete now; any thread may ask."""

        limits = ExpirationLimits(around.configuration.delete_grace_ms, ttl_ms)
        self._planner = planner = ExpirationPlanner(store, kafka.tiers, limits, random.Random())  # noqa: S311 - spreads retries
        on_started = around.relaying.leader.segment_deletion_started
        responsibility = Responsibility(brokers, is_under_way, on_started, self._metadata.is_whole)
        self._expiration = RLMWalExpirationTask(
            storage, publisher, planner, responsibility, around.clocks, self._metrics
        )
        observer = partial(ClusterObserver, around.configuration.client, identity.broker_id, TopicWatch(TOPIC_GONE_MS))
        self._cluster = ClusterWatch(
            observer, self._wanted, kafka.topic_settings, settings.wal_retention, self._observed, wall_ms, threads
        )
        loop = asyncio.get_running_loop()
        leaders = partial(read_leaders, around.configuration.broker.metadata_log_dir)
        failover = FailoverPlanner(
            identity.broker_id,
            store,
            lambda loss: loop.call_soon_threadsafe(write_path.gaps.declare_loss, loss),
            self._metadata.archive,
        )
        self._failover = FailoverTask(failover, publisher, wall_ms, self._metrics, threads, leaders)
        read, doubt, is_deleted = self._metadata.read_to_end, self._metadata.doubt, planner.is_being_deleted
        orphans = OrphanTask(storage, store, read, ttl_ms, wall_ms, is_deleted, is_under_way, topic_doubt=doubt)
        self._search_orphans = partial(orphans.run_round, publisher, brokers, self._metrics.orphan_search, threads)
        self._metrics.host_clock_ahead.set_function(lambda: lease.host_is_ahead_ms / 1000)
        self._metrics.metadata_topic_problems.set_function(lambda: len(kafka.topics.problems))

    def _wanted(self) -> set[TopicId]:
        """Return the topics that have objects."""
        stores = self._metadata.store, self._metadata.archive
        return topics_of([one for store in stores for one in store.topic_id_partitions()]) | self._planner.topics_asked

    def _observed(self, observation: Observation, now_ms: int) -> None:
        """Declare where logs begin, and draw conclusions from the starts by which objects may go."""
        self._metrics.hidden_topics.set(len(observation.hidden))
        seen = observation.view.log_start
        self._write_path.gaps.declare(self._log_starts.to_declare(seen, self._write_path.assignments))
        observation = replace(observation, view=replace(observation.view, log_start=self._log_starts.told(seen)))
        self._kafka.archived.cluster_seen(observation)
        self._planner.cluster_seen(observation.view)
        self._metrics.held_partitions.set(held_partitions(observation.view))
        self._kafka.topics.retention_seen(longest_retention_ms(observation.kept_ms.values()))
        self._caretaking.seen(observation.brokers, now_ms)

    def set_led(self, assignments: Sequence[Assignment]) -> None:
        """Set the partitions that are led here from now on."""
        self._kafka.archived.set_led(assignments)
        self._failover.set_led(assignments)

    async def run(self) -> None:
        """Run the tasks until cancelled; what is half done then is continued by the next run of the agent."""
        loop, changed = asyncio.get_running_loop(), self._failover.led_changed
        was_read = self._metadata.consumer.wait_until_ready
        try:
            while not await loop.run_in_executor(self._threads, was_read, _METADATA_WAIT_S):
                log.info("lifecycle_waits", reason="the metadata topic is not read yet")
            async with asyncio.TaskGroup() as group:
                group.create_task(self._repeat("failover", self._failover.run_once, FAILOVER_S, changed))
                group.create_task(self._repeat("cluster", self._cluster.run_once, CLUSTER_S))
                group.create_task(self._repeat("expiration", self._expiration.run_once, EXPIRATION_S))
                group.create_task(self._look_for_orphans())
        finally:
            self._expiration.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _look_for_orphans(self) -> None:
        await self._caretaking.cluster_seen.wait()
        while True:
            searched = await self._search_orphans()
            if searched:
                self._succeeded("orphans")
            await asyncio.sleep(pause_s(searched, ORPHANS_S))

    async def _repeat(
        self, task: str, step: Callable[[], Awaitable[bool]], interval_s: float, sooner: asyncio.Event | None = None
    ) -> None:
        sooner = sooner or asyncio.Event()
        while True:
            sooner.clear()
            if await step():
                self._succeeded(task)
            await wait_at_most(sooner, interval_s)


def archiving_limits(settings: AgentSettings) -> ArchivingLimits:
    """Return the limits of the archive's task and of deletions, by the settings."""
    archive = settings.archive
    plan = ArchiveLimits(ARCHIVE_OBJECT_MAX_BYTES, milliseconds(archive.object_max_age_s))
    return ArchivingLimits(ArchiveTaskLimits(plan, archive.bytes_per_second, settings.link.takes_digests))


def build_archiving(around: AgentResources, kafka: KafkaFollowing, lifecycle: Lifecycle) -> Archiving | None:
    """Build the archive; None if it is off."""
    spec = around.settings.archive_spec(around.configuration.broker)
    if spec is None:
        return None
    metadata = kafka.metadata
    sources = ArchiveSources(
        around.identity.cluster_id,
        around.relaying.storage,
        metadata.store,
        metadata.archive,
        around.publisher,
        metadata.read_to_end,
        metadata.doubt,
    )
    return Archiving(
        partial(load_archive_storage, spec, around.storage_context),
        around.writer_id,
        sources,
        archiving_limits(around.settings),
        lambda: kafka.archived.duties(lifecycle.brokers_to_care_for()),
        around.metrics.archive,
        Runtime(around.clocks),
    )
