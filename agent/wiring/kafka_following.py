"""The agent's own use of Kafka: its topics, its metadata, its settings, and leadership. None is on the data path.

Everything here waits for brokers that are not up yet, and relaying needs none of it: until it is ready, no partition
counts as led, and all bytes go inline.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import structlog

from agent.found_peers import gateway_parts, own_address
from agent.identity import AgentIdentity
from agent.leadership import LeadershipReader, LeadershipWatch, LocalReplicas, TopicDefaults
from agent.lease_watch import LeasesInTopic, LeaseWatch, make_lease
from agent.metrics.loop_times import Loop
from agent.settings.agent_settings import AgentSettings
from agent.settings.setting_types import milliseconds
from agent.settings_keeping import SettingsKeeping
from agent.wiring.agent_resources import AgentResources
from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.broker_files.meta_properties import directory_ids
from kafka_log.broker_files.server_properties import BrokerProperties
from kafka_log.log_directory import LogDirectory
from metadata_topic.kip405.tiered_offsets import TieredOffsets, TierFollower
from metadata_topic.records.errors import PublicationBacklogFullError
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.settings.settings_memory import SettingsMemory
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.settings.settings_topic import SettingsReader, SettingsWriter
from metadata_topic.settings.topic_settings import AgentRegistration
from metadata_topic.topic.followed_metadata import FollowedMetadata
from metadata_topic.topic.metadata_topics import MetadataTopics
from metadata_topic.topic.topic import MetadataTopicSettings
from metadata_topic.topic.topic_follower import TopicFollower
from plugin.wall_clock import lasting_s, wall_ms
from rlm.archive.archived_topics import ArchivedTopics, ArchiveTier
from rlm.lifecycle.cluster_observer import longest_enabled_retention_ms
from rlm.lifecycle.incarnation_watch import IncarnationWatch
from rlm.lifecycle.release import Tiers
from rlm.lifecycle.tiered_storage import LogEpochs, TieredStorageTier
from rlm.write_path.assignment import Assignment

log = structlog.get_logger(__name__)

_LOOK_S = 2.0
_LEADERSHIP_LOOK_S = 5.0
"""How often leadership is asked for without any sign of a change."""
SNAPSHOT_INTERVAL_S = 600.0
"""How often a changed metadata store is saved to object storage (guessed)."""
RETRY_S = 1.0
_METADATA_READY_TIMEOUT_S = 30.0
RESTORED_WITHIN_S = 60.0
"""Agents notice a lost settings topic within 10 s, and take turns of 30 s at most to restore it."""

T = TypeVar("T")


class KafkaFollowing:
    """Runs the agent's readers of Kafka. For the event loop; blocking calls run in its own threads."""

    def __init__(
        self,
        around: AgentResources,
        metadata: FollowedMetadata,
        settings_read: Callable[[SettingsTable], None],
        assigned: Callable[[list[Assignment]], None],
    ) -> None:
        """`settings_read` takes the content of the settings topic: once it is read, once topics' ids are known, and at
        each change. `assigned` takes the partitions that are led here, each time that Kafka was asked who leads.
        """
        settings, identity, client = around.settings, around.identity, around.configuration.client
        broker_id, storage = identity.broker_id, around.relaying.storage
        log_directories = [LogDirectory(path) for path in around.configuration.broker.log_dirs]
        self._around = around
        self._has_store = settings.has_store
        self._settings_read, self._assigned = settings_read, assigned
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="kafka-side")
        made = MetadataTopicSettings(replication_factor=settings.lifecycle.topic_replication_factor)
        longest_ms = partial(longest_enabled_retention_ms, client, broker_id, settings.process.state_directory)
        grace_ms, hold = around.configuration.delete_grace_ms, around.publisher.hold
        self.topics = MetadataTopics(client, made, grace_ms, longest_ms, broker_id, self._pool, hold)
        self.replicas = LocalReplicas(log_directories)
        self.metadata = metadata
        memory = SettingsMemory(settings.process.state_directory)
        self.topic_settings = SettingsReader(
            client,
            lambda _table: self._loop.call_soon_threadsafe(self._look_at_settings),
            rack=identity.rack,
            memory=memory,
        )
        recorded = LeasesInTopic(client, self.topic_settings, broker_id)
        self.lease = LeaseWatch(make_lease(storage.blobs, recorded), wall_ms, settings.lifecycle.uncommitted_ttl_s)
        tiered = TieredOffsets()
        tier = TierFollower(client, tiered, rack=identity.rack)
        self.tiered_storage = TieredStorageTier(
            tiered, LogEpochs(self.replicas.directory_of, lasting_s), lambda: tier.ready
        )
        self.archived = ArchivedTopics(
            around.writer_id,
            metadata.store,
            metadata.archive,
            self.topic_settings,
            settings.archive.enable,
            lasting_s,
        )
        self.tiers = Tiers(
            [self.tiered_storage, ArchiveTier(metadata.archive, self.archived.is_archived, self.archived.chain_of)]
        )
        self._readers: Sequence[TopicFollower] = (self.topic_settings,)
        if self._has_store:
            self._readers = (self.metadata.consumer, self.topic_settings, tier)
        self.incarnation = IncarnationWatch(
            broker_id,
            identity.incarnation,
            metadata.store,
            self.register,
            lambda: self._in_thread(self.metadata.read_to_end),
        )
        self._keeping = SettingsKeeping(
            self.topic_settings,
            partial(_write_settings, client),
            partial(_registration, around.configuration.broker, settings, identity, log_directories),
            (broker_id, identity.incarnation),
            settings.storage,
            lambda: self.incarnation.fenced_because is not None,
            lasting_s,
        )
        self.leadership = LeadershipWatch(
            lambda: self.topic_settings.table,
            TopicDefaults(milliseconds(settings.link.latency_bound_s), settings.lifecycle.wal_retention),
            self.replicas,
            around.relaying.zones,
            lambda: self.incarnation.fenced_because is not None or self.lease.lost_because is not None,
            self._pool,
            around.relaying.leadership_asked,
        )
        self._settings_told = SettingsTable()
        self._are_settings_whole = False
        self._missing = {"metadata topics", "topic settings", "metadata"}

    @property
    def missing(self) -> set[str]:
        """What the agent has not read from Kafka yet, as texts; empty when ready."""
        return self._missing if self.leadership.is_known else self._missing | {"leadership"}

    async def run(self) -> None:
        """Follow Kafka until cancelled, retrying while it is down. Raises the error that ended one of its readers
        for good."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._run())
                tasks.create_task(self._watch_readers())
        finally:
            for reader in self._readers:
                await asyncio.to_thread(reader.close)
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _watch_readers(self) -> None:
        while True:
            for reader in self._readers:
                if reader.failure is not None:
                    raise reader.failure
            await asyncio.sleep(_LOOK_S)

    def register(self) -> None:
        """Publish this incarnation's registration. Raises PublicationBacklogFullError."""
        identity, now_ms = self._around.identity, self._around.clocks.wall_ms()
        registration = RemoteWalNodeRegistration(identity.broker_id, identity.incarnation, identity.broker_id, now_ms)
        self._around.publisher.publish(registration)

    async def _until_registered(self) -> None:
        while True:
            with suppress(PublicationBacklogFullError):  # the metadata topic takes no records, which is told
                return self.incarnation.register()
            await asyncio.sleep(RETRY_S)

    async def _run(self) -> None:
        await self.topics.make()
        self._missing.discard("metadata topics")
        for reader in self._readers:
            reader.start()
        await self._until_read("topic settings", self.topic_settings.wait_until_ready)
        self._are_settings_whole = self.topic_settings.memory.may_lack() is None
        self._look_at_settings()
        await self._in_thread(self.replicas.look)
        self._look_at_settings()
        if self._has_store:
            # Only then is it known what is in no object: before, a log would be uploaded again, or left out in part.
            await self._until_read("metadata", self.metadata.consumer.wait_until_ready)
        else:
            self._missing.discard("metadata")
        await self._until_restored()
        if self._has_store:
            # Before uploads, which begin as leadership is followed. Sooner, agents that start together would take a new
            # settings topic for a lost one.
            await self._until_registered()
        self.incarnation.look()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keeping.run())
            tasks.create_task(self._follow_leadership())
            tasks.create_task(self.topics.watch())
            if self._has_store:
                tasks.create_task(self.incarnation.run())
                tasks.create_task(self.lease.run())
                tasks.create_task(
                    self.metadata.save_snapshots(SNAPSHOT_INTERVAL_S, lambda: self.lease.lost_because is None)
                )

    async def _follow_leadership(self) -> None:
        reader = LeadershipReader(self._around.configuration.client, self._around.identity.broker_id)
        async for led in self.leadership.looks(reader, _LEADERSHIP_LOOK_S):
            self._keeping.set_led(led.first)
            self._assigned(led.assignments)
            self._around.metrics.loops.succeeded(Loop.LEADERSHIP)

    def _look_at_settings(self) -> None:
        if not self.topic_settings.ready or not self._are_settings_whole:
            return
        before, now = self._settings_told, self.topic_settings.table
        self._settings_told = now
        self._settings_read(now)
        if (before.topics, before.patterns) != (now.topics, now.patterns):
            self._around.relaying.leadership_asked.set()

    async def _until_read(self, what: str, wait: Callable[[float], bool]) -> None:
        """Wait until what was in the topic at the start is read, however long that takes."""
        while not await self._in_thread(wait, _METADATA_READY_TIMEOUT_S):
            log.warning("metadata_not_read", topic=what, consequence="no partition is taken on: all goes inline")
            await asyncio.sleep(RETRY_S)
        self._missing.discard(what)

    async def _until_restored(self) -> None:
        """Wait while others put back what a lost settings topic held and nobody remembers here, for a minute at most.

        A topic without any agent is a new one only if no agent has ever registered in the metadata topic.
        """
        memory, until_s = self.topic_settings.memory, self._loop.time() + RESTORED_WITHIN_S
        was_used = self._has_store and bool(self.metadata.store.newest_registrations())
        why = None
        while (was_used or self.topic_settings.agents) and (why := memory.may_lack()) and self._loop.time() < until_s:
            if "topic settings" not in self._missing:
                log.warning("settings_topic_lacks_values", reason=why, consequence="nothing is taken on: all inline")
            self._missing.add("topic settings")
            await asyncio.sleep(RETRY_S)
        if why is not None:
            log.error("settings_topic_not_restored", reason=why, hint="set again what topics and patterns had")
        self._missing.discard("topic settings")
        self._are_settings_whole = True
        self._look_at_settings()

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)


def _registration(
    broker: BrokerProperties,
    settings: AgentSettings,
    identity: AgentIdentity,
    log_directories: Sequence[LogDirectory],
) -> AgentRegistration:
    """Return the registration by which other agents and `describe` find this agent. Blocks."""
    retention, bypass = settings.lifecycle.wal_retention, settings.bypass.brokers.get(identity.broker_id)
    return AgentRegistration(
        identity.broker_id,
        identity.incarnation,
        settings.http.registered,
        version("remote-wal"),
        identity.started_ms,
        settings.archive.enable,
        directory_ids({directory.path for directory in log_directories}),
        retention.default_ms,
        None if settings.is_shadow else own_address(identity.broker_id, settings.peers),
        str(bypass) if bypass is not None else None,
        gateway_parts(broker, settings),
        zone=identity.rack,
        is_shadow=settings.is_shadow,
    )


def _write_settings(client: KafkaClientConfig, records: Mapping[bytes, bytes | None]) -> None:
    """Write records of the settings topic. Blocks. Raises KafkaClusterError."""
    with closing(SettingsWriter(client)) as writer:
        writer.write(records)
