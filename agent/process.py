"""The agent process: puts the rooms together, in an order in which replication is relayed first and ends last."""

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from agent.archive_knowledge import ArchiveKnowledge
from agent.archive_side import ArchiveParts, ArchiveSide, archive_links
from agent.http_endpoint import HttpEndpoint
from agent.identity import AgentLock
from agent.kafka_client import client_config
from agent.kafka_side import AgentIdentity, KafkaSide
from agent.late_storage import LateStorageManager
from agent.lifecycle import Lifecycle, LifecycleParts
from agent.metrics import StateCollector
from agent.object_summary import object_summary
from agent.peering import broker_listener, own_hello, peer_addresses, peer_tls, replica_listeners
from agent.settings import AgentSettings
from agent.tail_uploads import TailAnswers, TailUploads
from agent.transfer_limits import catch_up_read_limits, leader_limits, log_manager_limits
from agent.usage import UsageReport, store_counts
from kafka_log.log_directory import LogDirectory
from kafka_log.meta_properties import read_meta_properties
from kafka_log.server_properties import BrokerProperties
from metadata_topic.publisher import RemoteWalMetadataPublisher
from plugin.errors import RemoteStorageConfigError, RemoteStorageError
from plugin.loading import load_storage_manager, settings_under_prefix
from plugin.prices import DEFAULT_PRICES_FILE, Prices
from plugin.remote_wal_storage_manager import StorageContext
from plugin.segment_metadata import CombinedSegmentId
from replication.catch_up import CatchUp, CatchUpLimits
from replication.catch_up_reads import CatchUpReads
from replication.follower_proxy import FollowerContext, FollowerLimits, FollowerProxy
from replication.hydration import HydrationCache, HydrationLimits
from replication.leader_proxy import LeaderProxy
from replication.leader_relay import LeaderContext
from replication.measures import ReplicationMeasures
from replication.peer_protocol import Hello
from rlm.archive_tier import ArchiveTier
from rlm.combine_task import Clocks, RLMWalCombineTask
from rlm.led_partition import Assignment
from rlm.link_policy import CostLimits, LinkDecider
from rlm.measures import ArchiveMeasures, LifecycleMeasures, StageTimes, WriteMeasures
from rlm.release import Tiers
from rlm.remote_wal_log_manager import RemoteWalLogManager
from rlm.stored_runs import LedLogs

log = structlog.get_logger(__name__)

_STORAGE_RETRY_S = 2.0
_STORAGE_REFUSED_RETRY_S = 30.0
"""A setting, or what the store lacks, changes by a person's hand."""
_GC_THRESHOLDS = (20_000, 20, 50)
"""The hot path makes many objects and few cycles, so it need not be looked through as often as by default."""
_SWITCH_INTERVAL_S = 0.0005
"""How long a thread may hold the interpreter while another waits: the event loop must not wait the default 5 ms."""


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


_CLOCKS = Clocks(time.monotonic, wall_ms)


class Agent:
    """One broker's agent. Create it in the event loop."""

    def __init__(self, broker: BrokerProperties, settings: AgentSettings, lock: AgentLock) -> None:
        """Raises AgentSettingsError, MalformedFileError or OSError when the broker's files do not tell enough."""
        self._broker = broker
        self._settings = settings
        self._identity = AgentIdentity(
            read_meta_properties(broker.log_dirs[0]).cluster_id,
            broker.node_id,
            lock.next_incarnation(wall_ms),
            broker.rack,
            wall_ms(),
        )
        self._registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        self._stage_times = StageTimes(self._registry)
        self._measures = ReplicationMeasures(self._registry)
        self._storage = LateStorageManager()
        self._client = client_config(broker, settings)
        self._publisher = RemoteWalMetadataPublisher(
            self._client,
            broker.node_id,
            settings.remote_wal_log_metadata_topic_num_partitions,
            time.monotonic,
        )
        prices = Prices.load(settings.remote_wal_prices_file or DEFAULT_PRICES_FILE)
        self._store_prices = prices.of_storage_manager(settings.remote_log_wal_storage_manager_class_name)
        followers = settings.remote_wal_link_remote_followers
        self._break_even_bytes = prices.break_even_bytes(followers, self._store_prices)
        self._manager = self._log_manager()
        self._kafka = KafkaSide(
            settings,
            self._identity,
            self._client,
            [LogDirectory(path) for path in broker.log_dirs],
            self._assigned,
            self._storage,
        )
        hello = own_hello(self._identity, settings)
        self._leader = LeaderProxy(self._leader_context(hello, prices))
        self._hydration = HydrationCache(
            self._storage,
            HydrationLimits(settings.remote_wal_hydration_thread_pool_size, settings.remote_wal_hydration_cache_bytes),
            self._stage_times,
            self._measures,
            archive=lambda: self._archive.storage if self._archive is not None else None,
        )
        self._catch_up_reads = CatchUpReads(self._hydration, catch_up_read_limits(settings), self._measures)
        self._follower = FollowerProxy(self._follower_context(hello), peer_addresses(broker, settings))
        self._archive_knowledge = ArchiveKnowledge(
            self._identity,
            self._kafka.store,
            self._kafka.archive,
            self._kafka.topic_settings,
            settings.remote_wal_archive_enable,
            time.monotonic,
        )
        self._archive = self._archive_side() if settings.remote_wal_archive_enable else None
        self._tail_answers = TailAnswers(self._client)
        self._tails = TailUploads(broker.node_id, self._manager, self._tail_answers, wall_ms)
        self._lifecycle = Lifecycle(settings, self._identity, self._client, self._lifecycle_parts())
        self._usage = UsageReport(
            self._identity,
            lambda: store_counts(settings, self._storage, self._archive),
            self._measures,
            self._publisher,
            wall_ms,
            settings.remote_wal_usage_interval_ms,
        )
        self._http = HttpEndpoint(self._registry, self.describe, self.not_ready, self.objects)
        self._storage_missing = "no answer yet"
        self._tasks: list[asyncio.Task[None]] = []
        self._wire()

    def _wire(self) -> None:
        """Tell parts of others that are made after them."""
        self._manager.add_listener(self._leader)
        self._manager.replication_is_pending = lambda: self._leader.replication_is_pending
        self._manager.add_listener(self._tails)
        self._manager.on_hurried_settled = self._tails.settled
        loop = asyncio.get_running_loop()
        self._kafka.topic_settings.on_tail_requests = lambda requests: loop.call_soon_threadsafe(
            self._tails.requested, requests
        )
        self._manager.resume_offset = self._kafka.resume_offset
        self._manager.on_unknown_partition = self._kafka.look_again
        self._registry.register(
            StateCollector(
                self._storage,
                self._manager,
                self._publisher,
                (self._kafka.store, self._kafka.archive),
                lambda: self._kafka.metadata_counters,
            )
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set; then finish what is under way, within the shutdown time.

        Raises what ended a part for good, which only a defect does, after the same stop.
        """
        settings = self._settings
        tls = peer_tls(self._settings)
        await self._leader.start(settings.remote_wal_agent_peer_listener, tls.server_context() if tls else None)
        await self._follower.start(replica_listeners(self._broker, self._settings))
        self._http.start(settings.remote_wal_agent_http_listener)
        if settings.remote_log_wal_storage_system_enable:
            self._lifecycle.register()
            self._publisher.start()
            self._tasks += [
                self._manager.start(),
                self._kafka.start(),
                self._lifecycle.start(),
                self._usage.start(),
                asyncio.create_task(self._await_storage(), name="await-storage"),
            ]
            if self._archive is not None:
                self._tasks.append(self._archive.start())
        for task in self._tasks:
            task.add_done_callback(lambda task: stop.set() if _failed(task) else None)
        log.info("agent_started", broker=self._identity.broker_id, incarnation=self._identity.incarnation)
        await stop.wait()
        failures = [task for task in self._tasks if _failed(task)]
        await self._shut_down()
        for task in failures:
            await task

    async def _shut_down(self) -> None:
        timeout_s = self._settings.remote_wal_agent_shutdown_timeout_ms / 1000
        log.info("agent_stopping", broker=self._identity.broker_id)
        await self._lifecycle.stop()
        await self._manager.stop(timeout_s)
        if self._archive is not None:
            await self._archive.stop_archiving()
        await self._usage.stop()
        # The metadata topic itself is replicated through our connections, so it is written to while they stand.
        await asyncio.to_thread(self._publisher.flush, timeout_s)
        await self._leader.stop()
        await self._follower.stop()
        if self._archive is not None:  # the follower's side reads from its store
            await self._archive.stop()
        await self._kafka.stop()
        await asyncio.to_thread(self._tail_answers.close)
        if lost := await asyncio.to_thread(self._publisher.close, 0.0):
            log.warning("metadata_unpublished", records=lost)
        self._hydration.close()
        self._catch_up_reads.close()
        self._http.close()
        self._storage.close()
        log.info("agent_stopped", broker=self._identity.broker_id)

    async def _await_storage(self) -> None:
        """Configure the storage manager, however long the store is away, or refuses what it is told.

        Neither may take replication with it: until then all bytes go inline, and /readyz says why.
        """
        settings, raw = self._settings, self._broker.raw
        prefix = settings.remote_log_wal_storage_manager_impl_prefix
        context = StorageContext(self._identity.cluster_id, self._identity.broker_id)
        while True:
            try:
                manager = await asyncio.to_thread(
                    load_storage_manager,
                    settings.remote_log_wal_storage_manager_class_name,
                    settings.remote_log_wal_storage_manager_class_path,
                    settings_under_prefix(raw, prefix),
                    context,
                    prefix,
                )
            except RemoteStorageError as error:
                refused = isinstance(error, RemoteStorageConfigError)
                tell = log.error if refused else log.warning
                tell("storage_refused" if refused else "storage_not_there", error=str(error), consequence="inline")
                self._storage_missing = str(error)
                await asyncio.sleep(_STORAGE_REFUSED_RETRY_S if refused else _STORAGE_RETRY_S)
                continue
            self._storage.arrived(manager)
            log.info("storage_ready", manager=settings.remote_log_wal_storage_manager_class_name)
            return

    # What it tells of itself.

    def describe(self) -> dict[str, Any]:
        """The state as JSON; called on other threads, so it only reads snapshots."""
        traffic = dict(self._measures.traffic)
        partitions = []
        for partition, status in self._manager.status().items():
            moved = traffic.get(partition)
            partitions.append(
                asdict(status)
                | {
                    "linked_bytes": moved.linked_bytes if moved else 0,
                    "inline_bytes": moved.inline_bytes if moved else 0,
                }
            )
        return {
            "broker_id": self._identity.broker_id,
            "incarnation": self._identity.incarnation,
            "cluster_id": self._identity.cluster_id,
            "storage_ready": self._storage.is_there,
            "hydration_paused": self._hydration.breaker.is_open,
            "archive_reads_paused": self._hydration.archive_breaker.is_open,
            "requests": asdict(self._storage.request_counts),
            "metadata_pending": self._publisher.pending,
            "enabled_topics": self._kafka.enabled_topics,
            "partitions": partitions,
        }

    def objects(self) -> dict[str, Any]:
        """What `remote-wal describe --objects` shows."""
        return object_summary(self._kafka.store, wall_ms())

    def not_ready(self) -> list[str]:
        """What is missing for the agent to do all of its work."""
        if not self._settings.remote_log_wal_storage_system_enable:
            return []
        reasons = [f"{name} not known yet" for name in sorted(self._kafka.missing)]
        return reasons if self._storage.is_there else [*reasons, f"object storage: {self._storage_missing}"]

    # Parts.

    def _log_manager(self) -> RemoteWalLogManager:
        settings = self._settings
        measures = WriteMeasures(self._registry)
        self._combine = RLMWalCombineTask(
            self._storage,
            self._publisher,
            CombinedSegmentId(self._identity.broker_id, self._identity.incarnation, 0),
            settings.remote_wal_log_manager_combiner_thread_pool_size,
            measures,
            _CLOCKS,
        )
        interval_s = settings.remote_wal_log_manager_combiner_task_interval_ms / 1000
        decider = LinkDecider(CostLimits(self._break_even_bytes, interval_s))
        return RemoteWalLogManager(log_manager_limits(settings), self._combine, decider, self._stage_times, measures)

    def _lifecycle_parts(self) -> LifecycleParts:
        knowledge = self._archive_knowledge
        archive_tier = ArchiveTier(self._kafka.archive, knowledge.is_archived, knowledge.chain_of)
        return LifecycleParts(
            self._storage,
            self._publisher,
            self._kafka,
            self._combine.is_under_way,
            self._leader.segment_deletion_started,
            Tiers([self._kafka.tiered_storage, archive_tier]),
            knowledge.cluster_seen,
            LifecycleMeasures(self._registry),
            _CLOCKS,
        )

    def _archive_side(self) -> ArchiveSide:
        kafka = self._kafka
        return ArchiveSide(
            self._settings,
            self._broker.raw,
            StorageContext(self._identity.cluster_id, self._identity.broker_id),
            self._identity.incarnation,
            ArchiveParts(
                self._storage,
                kafka.store,
                kafka.archive,
                self._publisher,
                ArchiveMeasures(self._registry),
                _CLOCKS,
                kafka.metadata_read_to_end,
            ),
            lambda: self._archive_knowledge.duties(self._lifecycle.brokers_to_care_for()),
        )

    def _assigned(self, assignments: list[Assignment]) -> None:
        self._manager.assign(assignments)
        self._archive_knowledge.led(assignments)
        self._lifecycle.led(assignments)
        self._tails.assigned(assignments)
        # What is not read yet of the topic would look like a hole in the log.
        if self._archive is not None and self._kafka.metadata_is_read:
            self._archive.assign(assignments)

    def _leader_context(self, hello: Hello, prices: Prices) -> LeaderContext:
        settings = self._settings
        limits = leader_limits(self._broker, settings, self._break_even_bytes, self._store_prices)
        context = LeaderContext(
            hello, limits, broker_listener(self._broker), self._manager, self._stage_times, self._measures
        )
        min_entry_bytes = prices.get_break_even_bytes(self._store_prices)
        archive = archive_links(settings, self._kafka.archive, prices)
        logs = LedLogs(self._kafka.store, self._manager.stored_log, min_entry_bytes, archive)
        ahead = CatchUpLimits(settings.remote_wal_catch_up_read_ahead_bytes)
        return replace(context, catch_up=CatchUp(context.index, logs, ahead, self._measures))

    def _follower_context(self, hello: Hello) -> FollowerContext:
        tls = peer_tls(self._settings)
        return FollowerContext(
            hello,
            FollowerLimits(self._settings.remote_wal_hydration_timeout_ms / 1000),
            self._hydration,
            self._stage_times,
            self._measures,
            self._catch_up_reads,
            tls.client_context if tls else lambda: None,
        )


def _failed(task: "asyncio.Task[None]") -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def run_agent(broker: BrokerProperties, settings: AgentSettings) -> None:
    """Run until SIGTERM or SIGINT; blocks."""
    import uvloop

    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.freeze()  # the modules' own objects never become garbage
    gc.set_threshold(*_GC_THRESHOLDS)
    lock = AgentLock(Path(settings.remote_wal_agent_state_directory))
    try:
        uvloop.run(_run(lambda: Agent(broker, settings, lock)))
    finally:
        lock.release()


async def _run(make_agent: Callable[[], Agent]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await make_agent().run(stop)
