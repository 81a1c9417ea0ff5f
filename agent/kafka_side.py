"""The agent's own use of Kafka: its topics, its metadata, its settings, and leadership. All of it off the data path.

Everything here waits for brokers that are not up yet, and none of it is needed to relay replication: until it is ready,
no partition is led as far as the agent knows, and all bytes go inline.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import structlog

from agent.cluster_observer import ClusterObserver, ClusterUnknownError
from agent.late_storage import LateStorageManager
from agent.leadership import LeadershipReader, LedByTopic, assignments, resume_offset
from agent.settings import AgentSettings
from agent.store_snapshots import StoreSnapshots
from agent.tiered_storage import LogEpochs, TieredStorageTier
from agent.topic_retention import longest_retention_ms
from kafka_log.errors import LogDirectoryError
from kafka_log.log_directory import LogDirectory, PartitionDirectory
from kafka_log.meta_properties import directory_ids
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.archive_store import ArchiveStore
from metadata_topic.client_config import KafkaClientConfig
from metadata_topic.cluster_descriptions import DescriptionError
from metadata_topic.consumer import RemoteWalMetadataConsumer
from metadata_topic.errors import MetadataTopicError
from metadata_topic.settings_topic import SettingsReader, SettingsWriter
from metadata_topic.snapshot_keeper import SnapshotKeeper
from metadata_topic.store import RemoteWalMetadataStore
from metadata_topic.tier_follower import TierFollower
from metadata_topic.tiered_offsets import TieredOffsets
from metadata_topic.topic import (
    METADATA_TOPIC,
    SETTINGS_TOPIC,
    MetadataTopicSettings,
    confluent_admin,
    ensure_topics,
)
from metadata_topic.topic_settings import AgentRegistration
from rlm.led_partition import Assignment
from rlm.release import TopicWatch

T = TypeVar("T")

log = structlog.get_logger(__name__)

_RETRY_S = 1.0
_MIN_LEADERSHIP_INTERVAL_S = 0.2
_METADATA_READY_TIMEOUT_S = 30.0
_ADMIN_TIMEOUT_S = 10.0
_READ_TO_END_TIMEOUT_S = 60.0


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """Which agent this is."""

    cluster_id: str
    broker_id: int
    incarnation: int
    rack: str | None
    started_ms: int


class KafkaSide:
    """Keeps the assignments up to date. Create and use it in the event loop; blocking calls run in its own threads."""

    def __init__(
        self,
        settings: AgentSettings,
        identity: AgentIdentity,
        client: KafkaClientConfig,
        log_directories: Sequence[LogDirectory],
        on_assignments: Callable[[list[Assignment]], None],
        storage: LateStorageManager,
    ) -> None:
        """`on_assignments` is called in the event loop, whenever they may have changed."""
        self._settings = settings
        self._identity = identity
        self._client = client
        self._log_directories = log_directories
        self._on_assignments = on_assignments
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="kafka-side")
        self.store = RemoteWalMetadataStore()
        self.archive = ArchiveStore()
        keeper = SnapshotKeeper(storage, identity.cluster_id, identity.broker_id, identity.incarnation)
        self._snapshots = StoreSnapshots(self.store, self.archive, keeper, storage, _wall_ms)
        self._consumer = RemoteWalMetadataConsumer(
            client, self.store, rack=identity.rack, load_snapshot=self._snapshots.load, archive=self.archive
        )
        self.topic_settings = SettingsReader(client, self._settings_changed, rack=identity.rack)
        tiered = TieredOffsets()
        self._tier_follower = TierFollower(client, tiered, rack=identity.rack)
        self._paths: dict[TopicIdPartition, Path] = {}
        self.tiered_storage = TieredStorageTier(
            tiered, self._tier_follower, LogEpochs(self.directory_of, time.monotonic)
        )
        self._leadership: LeadershipReader | None = None
        self._changed = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self.missing: set[str] = {"metadata topics", "topic settings", "leadership"}
        """What the agent does not know yet; empty when ready."""

    def start(self) -> "asyncio.Task[None]":
        """Begin, whether or not Kafka is up. The task never ends by itself, unless by a defect."""
        self._main = self._loop.create_task(self._run(), name="kafka-side")
        return self._main

    async def stop(self) -> None:
        """Let go of Kafka."""
        if self._main is not None:
            self._main.cancel()
            await asyncio.gather(self._main, return_exceptions=True)
        await self._loop.run_in_executor(None, self._consumer.close)
        await self._loop.run_in_executor(None, self.topic_settings.close)
        await self._loop.run_in_executor(None, self._tier_follower.close)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def metadata_was_read(self, timeout_s: float) -> bool:
        """Blocks until the store holds all that was in the metadata topic at the start; False when time ran out."""
        return self._consumer.wait_until_ready(timeout_s)

    def metadata_read_to_end(self) -> bool:
        """Blocks until the stores hold all that is in the metadata topic now; False when that could not be had."""
        return self._consumer.read_to_end(_READ_TO_END_TIMEOUT_S)

    @property
    def metadata_counters(self) -> Mapping[str, int]:
        """Of reading the metadata topic: the follower's counters, the store's, and the snapshots' as `snapshots_x`."""
        snapshots = {f"snapshots_{name}": count for name, count in self._snapshots.counters.items()}
        return Counter({**self._consumer.counters, **self.store.counters, **snapshots})

    @property
    def metadata_is_read(self) -> bool:
        """Whether the stores hold all that was in the metadata topic at the start."""
        return self._consumer.ready

    @property
    def enabled_topics(self) -> list[str]:
        """The topics that have the feature on, as far as the agent has read, sorted; any thread may ask."""
        return sorted(name for name, topic in self.topic_settings.topics.items() if topic.enable)

    def look_again(self) -> None:
        """Leadership may have changed. May be called often."""
        self._changed.set()

    def _settings_changed(self, _topics: object) -> None:
        """On the settings reader's thread."""
        self._loop.call_soon_threadsafe(self._changed.set)

    async def _run(self) -> None:
        await self._make_topics()
        self._consumer.start()
        self.topic_settings.start()
        self._tier_follower.start()
        await self._in_thread(self.topic_settings.wait_until_ready, _METADATA_READY_TIMEOUT_S)
        self.missing.discard("topic settings")
        if not await self._in_thread(self._consumer.wait_until_ready, _METADATA_READY_TIMEOUT_S):
            log.warning("metadata_not_read", consequence="active segments are uploaded from their beginning")
        await self._register()
        self._leadership = LeadershipReader(self._client, self._identity.broker_id)
        snapshot_interval_s = self._settings.remote_wal_log_metadata_snapshot_interval_ms / 1000
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_leadership(self._leadership))
            # A store that is not read to its end yet would take the place of a better snapshot.
            tasks.create_task(self._snapshots.run(snapshot_interval_s, lambda: self._consumer.ready))

    async def _make_topics(self) -> None:
        configured = MetadataTopicSettings(
            self._settings.remote_wal_log_metadata_topic_num_partitions,
            self._settings.remote_wal_log_metadata_topic_replication_factor,
            self._settings.remote_wal_log_metadata_topic_retention_ms,
        )
        while True:
            try:
                settings = await self._in_thread(self._covering, configured)
                ensured = await self._in_thread(ensure_topics, self._client, settings)
            except MetadataTopicError as error:
                log.info("metadata_topics_wait", reason=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            for deviation in ensured.deviations:
                log.warning("metadata_topic_deviates", deviation=deviation)
            self.missing.discard("metadata topics")
            return

    def _covering(self, configured: MetadataTopicSettings) -> MetadataTopicSettings:
        """With the retention that the topics which have the feature on need; they are known when only the metadata
        topic was lost. Where both topics are new, none has it on yet. Raises MetadataTopicError.
        """
        from confluent_kafka import KafkaException

        there = confluent_admin(self._client, _ADMIN_TIMEOUT_S).partition_counts()
        if METADATA_TOPIC in there or SETTINGS_TOPIC not in there:
            return configured
        reader = SettingsReader(self._client, rack=self._identity.rack)
        reader.start()
        try:
            reader.wait_until_ready(_METADATA_READY_TIMEOUT_S)
            enabled = [name for name, topic in reader.topics.items() if topic.enable and name in there]
            observer = ClusterObserver(self._client, self._identity.broker_id, TopicWatch(0))
            longest_ms = longest_retention_ms(observer.local_retentions_ms(enabled).values())
        except (KafkaException, ClusterUnknownError, DescriptionError) as error:
            log.warning("local_retention_unknown", error=str(error), consequence="the configured retention is taken")
            return configured
        finally:
            reader.close()
        grace_ms = self._settings.remote_wal_expiration_delete_grace_ms
        return configured if longest_ms is None else configured.covering(longest_ms, grace_ms)

    async def _register(self) -> None:
        registration = AgentRegistration(
            self._identity.broker_id,
            self._identity.incarnation,
            str(self._settings.remote_wal_agent_http_listener),
            str(self._settings.remote_wal_agent_peer_listener),
            version("remote-wal"),
            self._identity.started_ms,
            self._settings.remote_wal_archive_enable,
            directory_ids({directory.path for directory in self._log_directories}),
        )
        writer = SettingsWriter(self._client)
        try:
            await self._in_thread(writer.register_agent, registration)
        except MetadataTopicError as error:
            log.warning("registration_failed", reason=str(error), consequence="describe does not find this agent")
        finally:
            await self._in_thread(writer.close)

    async def _follow_leadership(self, leadership: LeadershipReader) -> None:
        from confluent_kafka import KafkaException

        interval_s = self._settings.remote_wal_agent_leadership_interval_ms / 1000
        while True:
            self._changed.clear()
            try:
                led = await self._in_thread(leadership.led_partitions)
                self._on_assignments(await self._in_thread(self._assignments, led))
                self.missing.discard("leadership")
            except KafkaException as error:
                log.warning("leadership_unknown", error=str(error))
            await asyncio.sleep(_MIN_LEADERSHIP_INTERVAL_S)
            try:
                async with asyncio.timeout(interval_s):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _assignments(self, led: LedByTopic) -> list[Assignment]:
        return assignments(
            led,
            self.topic_settings.topics,
            self._partition_directories(),
            self._settings.remote_wal_link_latency_bound_ms,
        )

    def _partition_directories(self) -> list[PartitionDirectory]:
        """Of all log directories that can be read; one that fails does not take the others with it."""
        found: list[PartitionDirectory] = []
        for directory in self._log_directories:
            try:
                scan = directory.scan()
            except LogDirectoryError as error:
                log.error("log_directory_failed", error=str(error))
                continue
            for fault in scan.faults:
                log.warning("partition_directory_malformed", error=str(fault))
            found += directory.partitions.values()
        self._paths = {directory.topic_id_partition: directory.path for directory in found}
        return found

    def directory_of(self, partition: TopicIdPartition) -> Path | None:
        """Where its replica is, as of the last look at leadership; None when there is none here. Any thread may ask."""
        return self._paths.get(partition)

    def resume_offset(self, partition: TopicIdPartition, directory: Path) -> int | None:
        """Where the upload of this log goes on, as far as the metadata topic has been read."""
        return resume_offset(self.store, self.archive, partition, directory)

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await self._loop.run_in_executor(self._pool, function, *args)
