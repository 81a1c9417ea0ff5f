"""The agent's own use of Kafka: its topics, its metadata, its settings, and leadership. All of it off the data path.

Everything here waits for brokers that are not up yet, and none of it is needed to relay replication: until it is ready,
no partition is led as far as the agent knows, and all bytes go inline.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import structlog

from agent.identity import AgentIdentity
from agent.leadership import LeadershipReader, LedByTopic, assignments
from agent.metadata_topics import MetadataTopics, Place
from agent.partition_directories import partition_directories
from agent.setting_types import milliseconds
from agent.settings import AgentSettings
from kafka_log.log_directory import LogDirectory, PartitionDirectory
from kafka_log.meta_properties import directory_ids
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.kip405.tier_follower import TierFollower
from metadata_topic.kip405.tiered_offsets import TieredOffsets
from metadata_topic.records.errors import MetadataTopicError
from metadata_topic.settings.settings_topic import SettingsReader, SettingsWriter
from metadata_topic.settings.topic_settings import AgentRegistration
from metadata_topic.store.archive_store import ArchiveStore
from metadata_topic.store.snapshot_keeper import SnapshotKeeper
from metadata_topic.store.store import RemoteWalMetadataStore
from metadata_topic.store.store_snapshots import StoreSnapshots
from metadata_topic.store.topic_memory import TopicMemory
from metadata_topic.topic.client_config import KafkaClientConfig
from metadata_topic.topic.consumer import RemoteWalMetadataConsumer
from plugin.guarded_storage import GuardedStorageManager
from plugin.wall_clock import wall_ms
from rlm.lifecycle.incarnation_watch import IncarnationWatch
from rlm.lifecycle.tiered_storage import LogEpochs, TieredStorageTier
from rlm.write_path.assignment import Assignment
from rlm.write_path.resume_point import ResumePoint, resume_point

T = TypeVar("T")

log = structlog.get_logger(__name__)

_RETRY_S = 1.0
_MIN_LEADERSHIP_INTERVAL_S = 0.2
_METADATA_READY_TIMEOUT_S = 30.0
_READ_TO_END_TIMEOUT_S = 60.0


class KafkaSide:
    """Keeps the assignments up to date. Create and use it in the event loop; blocking calls run in its own threads."""

    def __init__(
        self,
        settings: AgentSettings,
        identity: AgentIdentity,
        client: KafkaClientConfig,
        log_directories: Sequence[LogDirectory],
        on_assignments: Callable[[list[Assignment]], None],
        storage: GuardedStorageManager,
        register: Callable[[], None],
    ) -> None:
        """`on_assignments` is called in the event loop, whenever they may have changed; `register` publishes this
        incarnation's registration to the metadata topic.
        """
        self._settings = settings
        self._identity = identity
        self._client = client
        self._log_directories = log_directories
        self._on_assignments = on_assignments
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="kafka-side")
        self.topics = MetadataTopics(client, settings, Place(identity.broker_id, identity.rack), self._pool)
        self.store = RemoteWalMetadataStore()
        self.archive = ArchiveStore()
        keeper = SnapshotKeeper(storage, identity.cluster_id, identity.broker_id, identity.incarnation)
        memory = TopicMemory(settings.process.state_directory)
        self._snapshots = StoreSnapshots(self.store, self.archive, keeper, storage, wall_ms, memory)
        self._consumer = RemoteWalMetadataConsumer(
            client, self.store, rack=identity.rack, load_snapshot=self._snapshots.load, archive=self.archive
        )
        self.incarnation = IncarnationWatch(
            identity.broker_id,
            identity.incarnation,
            self.store,
            register,
            lambda: self._in_thread(self.metadata_read_to_end),
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
        self._readers = (self._consumer, self.topic_settings, self._tier_follower)
        self.missing: set[str] = {"metadata topics", "topic settings", "metadata", "leadership"}
        """What the agent does not know yet; empty when ready."""

    async def run(self) -> None:
        """Follow Kafka until cancelled, whether or not it is up. Raises what ended one of its readers for good."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._run())
                tasks.create_task(self._watch_readers())
        finally:
            for reader in self._readers:
                await self._loop.run_in_executor(None, reader.close)
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _watch_readers(self) -> None:
        """They are threads of their own, which end by defects alone."""
        while True:
            for reader in self._readers:
                if reader.failure is not None:
                    raise reader.failure
            await asyncio.sleep(_RETRY_S)

    def metadata_was_read(self, timeout_s: float) -> bool:
        """Blocks until the store holds all that was in the metadata topic at the start; False when time ran out."""
        return self._consumer.wait_until_ready(timeout_s)

    def metadata_read_to_end(self) -> bool:
        """Blocks until the stores hold all that is in the metadata topic now; False when that could not be had."""
        return self._consumer.read_to_end(_READ_TO_END_TIMEOUT_S)

    def metadata_is_whole(self) -> bool:
        """The same; False too while the topic is in doubt, so that what it does not tell may have been told once."""
        return self.metadata_read_to_end() and not self.store.topic.doubts

    def topic_doubt(self) -> str:
        """What speaks against the metadata topic, for people; empty when nothing does."""
        return "; ".join(f"metadata topic {doubt}: {found}" for doubt, found in self.store.topic.doubts.items())

    @property
    def metadata_counters(self) -> Mapping[str, int]:
        """Of reading the metadata topic: the follower's counters, the store's, the snapshots' as `snapshots_x`, and
        `doubt_x` for each of its doubts; `fenced_out` is 1 while this incarnation does not count.
        """
        snapshots = {f"snapshots_{name}": count for name, count in self._snapshots.counters.items()}
        doubts = {f"doubt_{doubt}": 1 for doubt in self.store.topic.doubts}
        fenced = {"fenced_out": int(self.incarnation.fenced_because is not None)}
        return Counter({**self._consumer.counters, **self.store.counters, **snapshots, **doubts, **fenced})

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
        await self.topics.make()
        self.missing.discard("metadata topics")
        self._consumer.start()
        self.topic_settings.start()
        self._tier_follower.start()
        await self._until_read("topic settings", self.topic_settings.wait_until_ready)
        # What is in no object is known only then: taken on before, a log would be uploaded anew, or left out in part.
        await self._until_read("metadata", self._consumer.wait_until_ready)
        if self.incarnation.look():
            await self._register()
        self._leadership = LeadershipReader(self._client, self._identity.broker_id)
        snapshot_interval_s = self._settings.metadata.snapshot_interval_s
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_leadership(self._leadership))
            tasks.create_task(self._watch_incarnation())
            tasks.create_task(self.topics.watch())
            # A store that is not read to its end yet would take the place of a better snapshot.
            tasks.create_task(self._snapshots.run(snapshot_interval_s, lambda: self._consumer.ready))

    async def _until_read(self, what: str, wait: Callable[[float], bool]) -> None:
        """Wait until what was in the topic at the start is read, however long that takes."""
        while not await self._in_thread(wait, _METADATA_READY_TIMEOUT_S):
            log.warning("metadata_not_read", topic=what, consequence="no partition is taken on: all goes inline")
            await asyncio.sleep(_RETRY_S)
        self.missing.discard(what)

    async def _watch_incarnation(self) -> None:
        if not self._consumer.ready:
            while not await self._in_thread(self._consumer.wait_until_ready, _METADATA_READY_TIMEOUT_S):
                log.info("incarnation_waits", reason="the metadata topic is not read yet")
            if self.incarnation.look():
                await self._register()
        await self.incarnation.run()

    async def _register(self) -> None:
        registration = AgentRegistration(
            self._identity.broker_id,
            self._identity.incarnation,
            str(self._settings.http.listener),
            str(self._settings.peers.peer_listener),
            version("remote-wal"),
            self._identity.started_ms,
            self._settings.archive.enable,
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

        interval_s = self._settings.process.leadership_interval_s
        while True:
            self._changed.clear()
            try:
                led = await self._in_thread(leadership.led_partitions)
                if self.incarnation.fenced_because is not None:
                    led = {}  # what was uploaded would be refused by every reader
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
            milliseconds(self._settings.link.latency_bound_s),
        )

    def _partition_directories(self) -> list[PartitionDirectory]:
        found = partition_directories(self._log_directories)
        self._paths = {directory.topic_id_partition: directory.path for directory in found}
        return found

    def directory_of(self, partition: TopicIdPartition) -> Path | None:
        """Where its replica is, as of the last look at leadership; None when there is none here. Any thread may ask."""
        return self._paths.get(partition)

    def resume_point(self, assignment: Assignment) -> ResumePoint:
        """What of this log is to be uploaded, as the metadata topic tells, which was read before anything is led.

        Raises ResumeUnknownError.
        """
        return resume_point(self.store, self.archive, assignment)

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await self._loop.run_in_executor(self._pool, function, *args)
