"""The agent without relaying: what `remote.log.wal.storage.system.enable` turns on.

Its parts depend on each other's knowledge, so they restart as one, and as if the process had been restarted: with
another incarnation, whose sequences begin anew. Until then no partition is led, and all bytes go inline. Kept are the
records that wait for publication, which nothing else has, and the storage manager.

Imported once relaying has begun, because its import takes far longer. Create and use it in the event loop.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import structlog

from agent.configuration import Configuration
from agent.defects import STARTING, Supervisor, root_cause
from agent.identity import AgentIdentity
from agent.metrics.agent_metrics import ImbalanceCollector, StateCollector, object_summary
from agent.metrics.alarms import UPLOAD_LAG_ALARM_MS, Alarms, upload_lag
from agent.metrics.loop_times import WITHOUT_STORE, Loop
from agent.metrics.topic_metrics import TopicCollector
from agent.metrics.usage import UsageReport, store_counts
from agent.storage_loading import StorageLoading
from agent.wiring.agent_resources import AgentResources, StorageMetrics
from agent.wiring.kafka_following import KafkaFollowing
from agent.wiring.lifecycle import Lifecycle, build_archiving
from agent.wiring.relaying import Relaying
from agent.wiring.write_path import WritePath
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.settings.settings_table import CLUSTER, SettingsTable
from metadata_topic.settings.topic_settings import why_not_durable
from metadata_topic.store.store import StoreFile
from metadata_topic.topic.followed_metadata import FollowedMetadata
from metadata_topic.topic.publication_watch import PublicationWatch
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from plugin.archive_storage import ArchiveStorage
from plugin.wall_clock import Clocks, lasting_s
from rlm.archive.archive_care import CareDuties
from rlm.archive.archived_topics import ArchivedTopics, ArchiveTier
from rlm.lifecycle.cluster_observer import Observation
from rlm.lifecycle.gap_declarations import GapDeclarations, LedGaps
from rlm.lifecycle.incarnation_watch import IncarnationTakenError
from rlm.lifecycle.log_starts import LogStarts
from rlm.lifecycle.release import Tiers
from rlm.write_path.assignment import Assignment

log = structlog.get_logger(__name__)

STORAGE, STORAGE_LOADING, PUBLICATION = "storage", "object storage", "metadata publication"


def open_metadata(around: AgentResources) -> FollowedMetadata:
    """Open the stores of what the agent knows from the metadata topic. Blocks."""
    file = StoreFile(around.settings.process.state_directory, around.identity.cluster_id)
    client, rack, storage = around.configuration.client, around.identity.rack, around.relaying.storage
    return FollowedMetadata(file, client, rack, around.writer_id, storage, around.clocks.wall_ms)


class StorageRun:
    """One run of the storage system's parts. Create and use it in the event loop."""

    def __init__(self, around: AgentResources, usage: UsageReport, metadata: FollowedMetadata) -> None:
        self._around = around
        self._usage = usage
        settings, relaying = around.settings, around.relaying
        self.kafka = kafka = KafkaFollowing(around, metadata, self.register, self.settings_read, self.assigned)
        store, archive = metadata.store, metadata.archive
        archives = settings.archive.enable
        self._archived = ArchivedTopics(around.writer_id, store, archive, kafka.topic_settings, archives, lasting_s)
        archive_tier = ArchiveTier(archive, self._archived.is_archived, self._archived.chain_of)
        tiers = Tiers([kafka.tiered_storage, archive_tier])
        self._gaps = GapDeclarations(
            around.writer_id, around.publisher, store.declares, tiers, around.metrics.write, around.clocks.wall_ms
        )
        self._log_starts = LogStarts(store)
        self.write_path = write_path = WritePath(around, kafka, self._gaps)
        self.led_gaps = LedGaps(store, write_path.status, self._archived.chain_of)
        is_under_way, seen, declare_loss = write_path.combine.is_under_way, self._cluster_seen, self._gaps.declare_loss
        self._lifecycle = Lifecycle(around, kafka, tiers, is_under_way, seen, declare_loss)
        self._archiving = build_archiving(around, kafka, self._duties)
        puts, gets = relaying.storage.puts, relaying.storage.gets
        self.alarms = Alarms(
            {
                "upload_lag": lambda: upload_lag(write_path.status().values(), UPLOAD_LAG_ALARM_MS),
                "store_puts": lambda: puts.alarm if puts else None,
                "store_gets": lambda: gets.alarm if gets else None,
            }
        )
        if relaying.gateway is not None:
            relaying.gateway.kafka_is_followed(kafka.metadata, relaying.storage, kafka.lease)

    async def run(self) -> None:
        """Run until cancelled, and then upload what was read before. Raises the error that ended a part."""
        runs = [self.kafka.run, self.write_path.run, self.alarms.run]
        if self._around.settings.has_store:
            runs += [self._lifecycle.run, self._usage.run]
        if self._archiving is not None:
            runs.append(self._archiving.run)
        try:
            async with asyncio.TaskGroup() as group:
                for run in runs:
                    group.create_task(run())
        finally:
            self._gaps.close()
            if self._archiving is not None:
                self._archiving.close()
            await asyncio.to_thread(self.write_path.close)

    def register(self) -> None:
        identity, now_ms = self._around.identity, self._around.clocks.wall_ms()
        registration = RemoteWalNodeRegistration(identity.broker_id, identity.incarnation, identity.broker_id, now_ms)
        self._around.publisher.publish(registration)

    def settings_read(self, table: SettingsTable) -> None:
        relaying = self._around.relaying
        relaying.pauses.recorded(table.pauses)
        self._learn_pack_rules()
        self.write_path.topics_read()
        if relaying.shadow is None:
            relaying.found_peers.registered(table.agents)
            self.write_path.tails.requested(table.tail_requests)

    def _learn_pack_rules(self) -> None:
        self._around.relaying.pack_rules.learned(self.kafka.topic_settings.table, self.kafka.replicas.topic_names)

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        self._learn_pack_rules()
        is_new = assignments is not self.write_path.assignments
        self.write_path.assign(assignments)
        if is_new:
            self._archived.set_led(assignments)
            self._lifecycle.set_led(assignments)
        # Unread records of the topic would look like a hole in the log.
        if self._archiving is not None and self.kafka.metadata.is_read:
            self._archiving.assign(assignments)

    def _cluster_seen(self, observation: Observation) -> Observation:
        """Declare where logs begin. Returns the observation with the starts by which objects may go."""
        seen = observation.view.log_start
        self._gaps.declare(self._log_starts.to_declare(seen, self.write_path.assignments))
        observation = replace(observation, view=replace(observation.view, log_start=self._log_starts.told(seen)))
        self._archived.cluster_seen(observation)
        return observation

    def _duties(self) -> CareDuties:
        return self._archived.duties(self._lifecycle.brokers_to_care_for())

    # For people; on other threads.

    @property
    def missing(self) -> list[str]:
        """What is not read from Kafka yet, or in doubt, as texts for people."""
        reasons = [f"{name} not known yet" for name in sorted(self.kafka.missing)]
        if fenced := self.kafka.incarnation.fenced_because:
            reasons.append(f"nothing is uploaded: {fenced}")
        if lost := self.kafka.lease.lost_because:
            reasons.append(f"nothing is uploaded or deleted: {lost}")
        if put_off := dict(self.write_path.manager.put_off):
            partition, reason = next(iter(put_off.items()))
            reasons.append(f"{len(put_off)} partitions put off, not known from where to upload: {partition}: {reason}")
        return reasons + self.alarms.reasons

    @property
    def degraded(self) -> list[str]:
        """Problems that wait for an operator while replication works, as texts for people."""
        doubt = self.kafka.metadata.doubt()
        told = [f"{doubt}: no orphan is healed before `remote-wal metadata rebuild`"] if doubt else []
        if self.kafka.leadership.is_known and (away := self.kafka.leadership.unknown_because):
            told.append(f"Kafka does not say who leads what, so what it said last counts: {away}")
        told += [why for why in (self.kafka.lease.clock_is_off, self.kafka.lease.contested) if why]
        if unread := self.kafka.topic_settings.memory.unread:
            keys = ", ".join(unread[:3]) + (", ..." if unread[3:] else "")
            told.append(f"{len(unread)} records of the settings topic cannot be read, set them again: {keys}")
        settings = self.kafka.topic_settings.table
        if settings.is_any_durable and (why := why_not_durable(settings.agents)):
            told.append(f"topics are durable, and {why}")
        if self.kafka.topic_settings.memory.is_lost:
            told.append("the settings topic was lost: what it held last counts, and agents write it again")
        told += [
            f"{held['topic']}-{held['partition']} lost records that object storage holds (offsets "
            f"{held['from_offset']} to {held['to_offset'] - 1}): `{held['restore']}`, or `{held['give_up']}`"
            for held in self.led_gaps.describe_held()
        ]
        return told + [str(problem) for problem in self.kafka.topics.problems]

    def objects(self) -> dict[str, Any]:
        """Return a summary of the combined segments that exist."""
        return object_summary(self.kafka.metadata.store, self._around.clocks.wall_ms())

    @property
    def archive_storage(self) -> ArchiveStorage | None:
        """The archive's store; None until it is loaded."""
        return self._archiving.storage if self._archiving is not None else None


class StorageSystem:
    """Runs the storage system and restarts it after defects; holds what outlives a run."""

    def __init__(
        self,
        configuration: Configuration,
        identity: AgentIdentity,
        relaying: Relaying,
        supervisor: Supervisor,
        clocks: Clocks,
        next_incarnation: Callable[[int], int],
    ) -> None:
        """`next_incarnation` returns an incarnation above the given one and above all earlier ones of this broker."""
        settings, gateway = configuration.settings, relaying.gateway
        self._supervisor = supervisor
        self._next_incarnation = next_incarnation
        self.publisher = RemoteWalMetadataPublisher(configuration.client, identity.broker_id, lasting_s)
        metrics = StorageMetrics(relaying, clocks, Loop if settings.has_store else WITHOUT_STORE)
        well = partial(metrics.loops.succeeded, Loop.PUBLICATION)
        self.publication = PublicationWatch(self.publisher.stall_reason, relaying.metrics.fault, well)
        self._around = AgentResources(
            configuration, identity, relaying, clocks, metrics, self.publisher, self.publication
        )
        spec = settings.store_spec(configuration.broker)
        self.loading = StorageLoading(spec, self._around.storage_context, relaying.storage)
        self._usage = UsageReport(
            identity,
            lambda: store_counts(settings, relaying.storage, self.current.archive_storage if self.current else None),
            relaying.metrics,
            self.publisher,
            clocks.wall_ms,
            lambda partition: relaying.write_path.find(partition.topic_id, partition.partition) is not None,
            settings.storage.price_section,
            gateway.traffic if gateway is not None else None,
        )
        self._is_restart = False
        self.current: StorageRun | None = None
        """None while it is being restarted."""

    def start(self) -> None:
        """Start the storage system, retrying while Kafka or the store are away."""
        if self._around.settings.has_store:
            self._supervisor.start(STORAGE_LOADING, self.loading.run)
        self._supervisor.start(PUBLICATION, self._publish)
        self._supervisor.start(STORAGE, self._run)

    async def stop(self) -> None:
        """Upload and publish what is left, within the shutdown time, and release everything.

        Relaying must continue meanwhile, because the metadata topic itself is replicated through it.
        """
        await self._supervisor.stop(STORAGE)
        await asyncio.to_thread(self.publisher.flush, self._around.settings.process.shutdown_timeout_s)
        await self._supervisor.stop(PUBLICATION)
        if lost := await asyncio.to_thread(self.publisher.close, 0.0):
            log.warning("metadata_unpublished", records=lost)
        await self._supervisor.stop(STORAGE_LOADING)

    @property
    def incarnation(self) -> int:
        """The incarnation under which the agent uploads now."""
        return self._around.identity.incarnation

    @property
    def missing(self) -> list[str]:
        """What is missing for the agent to do all of its work, except parts that are down, as texts for people."""
        reasons = self.current.missing if self.current is not None else [STARTING]
        if (stalled := self.publication.stalled_because) is not None:
            reasons = [*reasons, f"metadata is not published, so all goes inline: {stalled}"]
        storage = self.loading.missing if self._around.settings.has_store else None
        return reasons if storage is None else [*reasons, f"object storage: {storage}"]

    async def _publish(self) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        self.publisher.start(lambda defect: loop.call_soon_threadsafe(ended.set_exception, defect))
        watch = asyncio.create_task(self.publication.run())
        try:
            await ended
        finally:
            watch.cancel()

    async def _run(self) -> None:
        above = -1
        while True:
            if self._is_restart:
                identity = replace(self._around.identity, incarnation=self._next_incarnation(above))
                self._around = replace(self._around, identity=identity)
                log.warning("incarnation_taken", incarnation=identity.incarnation, above=above)
            self._is_restart = True
            above = await self._run_once()

    async def _run_once(self) -> int:
        """Run until a defect. Returns the incarnation above which another one must be taken."""
        around, above = self._around, -1
        metadata = await asyncio.to_thread(open_metadata, around)
        try:
            self.current = run = StorageRun(around, self._usage, metadata)
            with self._shown(run):
                await run.run()
        except* IncarnationTakenError as taken:
            above = getattr(root_cause(taken), "above", above)
        finally:
            self.current = None
            await asyncio.to_thread(metadata.store.close)
        return above

    @contextmanager
    def _shown(self, run: StorageRun) -> Iterator[None]:
        """Show the run's metrics."""
        relaying, kafka = self._around.relaying, run.kafka
        traffic, registry = relaying.metrics.traffic, relaying.metrics.registry
        collectors = (
            StateCollector(relaying.storage, self.publisher, run),
            TopicCollector(run.write_path.status, lambda: traffic.by_partition, run.write_path.held_back_s),
            ImbalanceCollector(lambda: kafka.topic_settings.table.balancer.get(CLUSTER), self._around.clocks.wall_ms),
        )
        for one in collectors:
            registry.register(one)
        try:
            yield
        finally:
            for one in collectors:
                registry.unregister(one)
