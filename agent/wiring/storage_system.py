"""The agent without relaying: what `remote.log.wal.storage.system.enable` turns on.

Its parts depend on each other's knowledge, so they restart as one, and as if the process had been restarted: with
another incarnation, whose sequences begin anew. Until then no partition is led, and all bytes go inline. Kept are the
records that wait for publication, which nothing else has, and the storage manager.

Imported once relaying has begun, because its import takes far longer. Create and use it in the event loop.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from agent.configuration import Configuration
from agent.defects import STARTING, Supervisor, root_cause
from agent.identity import AgentIdentity, AgentLock
from agent.metrics.agent_metrics import ImbalanceCollector, StateCollector, object_summary
from agent.metrics.alarms import UPLOAD_LAG_ALARM_MS, Alarms, upload_lag
from agent.metrics.loop_times import WITHOUT_STORE, Loop
from agent.metrics.topic_metrics import TopicCollector
from agent.metrics.usage import UsageReport
from agent.storage_loading import StorageLoading
from agent.wiring.agent_resources import AgentResources, StorageMetrics
from agent.wiring.kafka_following import KafkaFollowing
from agent.wiring.lifecycle import Lifecycle, build_archiving
from agent.wiring.relaying import Relaying
from agent.wiring.write_path import WritePath
from metadata_topic.settings.settings_table import CLUSTER, SettingsTable
from metadata_topic.settings.topic_settings import why_not_durable
from metadata_topic.store.store import StoreFile
from metadata_topic.topic.followed_metadata import FollowedMetadata
from metadata_topic.topic.publication_watch import PublicationWatch
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from plugin.archive_storage import ArchiveStorage
from plugin.wall_clock import Clocks, lasting_s
from rlm.lifecycle.gap_declarations import LedGaps
from rlm.lifecycle.incarnation_watch import IncarnationTakenError
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
        self.around = around
        self._usage = usage
        relaying = around.relaying
        self.kafka = kafka = KafkaFollowing(around, metadata, self.settings_read, self.assigned)
        self.write_path = write_path = WritePath(around, kafka)
        self.led_gaps = LedGaps(metadata.store, metadata.archive, write_path.manager.status, kafka.archived.chain_of)
        self._lifecycle = Lifecycle(around, kafka, write_path)
        self._archiving = build_archiving(around, kafka, self._lifecycle)
        puts, gets = relaying.storage.puts, relaying.storage.gets
        self.alarms = Alarms(
            {
                "upload_lag": lambda: upload_lag(write_path.manager.status().values(), UPLOAD_LAG_ALARM_MS),
                "store_puts": lambda: puts.alarm if puts else None,
                "store_gets": lambda: gets.alarm if gets else None,
            }
        )
        traffic = relaying.metrics.traffic
        self.collectors: Sequence[Collector] = (
            StateCollector(around, kafka, write_path, self.led_gaps),
            TopicCollector(write_path.manager.status, lambda: traffic.by_partition, write_path.held_back_s),
            ImbalanceCollector(lambda: kafka.topic_settings.table.balancer.get(CLUSTER), around.clocks.wall_ms),
        )
        if relaying.gateway is not None:
            relaying.gateway.kafka_is_followed(kafka.metadata, relaying.storage, kafka.lease)

    async def run(self) -> None:
        """Run until cancelled, and then upload what was read before. Raises the error that ended a part."""
        runs = [self.kafka.run, self.write_path.run, self.alarms.run]
        if self.around.settings.has_store:
            runs += [self._lifecycle.run, self._usage.run]
        if self._archiving is not None:
            runs.append(self._archiving.run)
        try:
            async with asyncio.TaskGroup() as group:
                for run in runs:
                    group.create_task(run())
        finally:
            self.write_path.gaps.close()
            if self._archiving is not None:
                self._archiving.close()
            await asyncio.to_thread(self.write_path.answers.close)

    def settings_read(self, table: SettingsTable) -> None:
        relaying = self.around.relaying
        relaying.pauses.recorded(table.pauses)
        self._learn_pack_rules()
        self.write_path.topics_read()
        if relaying.shadow is None:
            relaying.found_peers.registered(table.agents)
            self.write_path.tails.requested(table.tail_requests)

    def _learn_pack_rules(self) -> None:
        self.around.relaying.pack_rules.learned(self.kafka.topic_settings.table, self.kafka.replicas.topic_names)

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        self._learn_pack_rules()
        is_new = assignments is not self.write_path.assignments
        self.write_path.assign(assignments)
        if is_new:
            self._lifecycle.set_led(assignments)
        # Unread records of the topic would look like a hole in the log.
        if self._archiving is not None and self.kafka.metadata.consumer.ready:
            self._archiving.assign(assignments)

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
        return object_summary(self.kafka.metadata.store, self.around.clocks.wall_ms())

    @property
    def archive_storage(self) -> ArchiveStorage | None:
        """The archive's store; None until it is loaded."""
        return self._archiving.storage if self._archiving is not None else None


class StorageSystem(Collector):
    """Runs the storage system and restarts it after defects; holds what outlives a run."""

    def __init__(
        self,
        configuration: Configuration,
        identity: AgentIdentity,
        relaying: Relaying,
        supervisor: Supervisor,
        clocks: Clocks,
        lock: AgentLock,
    ) -> None:
        settings = configuration.settings
        self._supervisor = supervisor
        self._lock = lock
        publisher = RemoteWalMetadataPublisher(configuration.client, identity.broker_id, lasting_s)
        metrics = StorageMetrics(relaying, clocks, Loop if settings.has_store else WITHOUT_STORE)
        well = partial(metrics.loops.succeeded, Loop.PUBLICATION)
        publication = PublicationWatch(publisher.stall_reason, relaying.metrics.fault, well)
        self.around = AgentResources(configuration, identity, relaying, clocks, metrics, publisher, publication)
        """With the incarnation under which the agent uploads now."""
        spec = settings.store_spec(configuration.broker)
        self.loading = StorageLoading(spec, self.around.storage_context, relaying.storage)
        self._usage = UsageReport(self.around, lambda: self.current.archive_storage if self.current else None)
        self._is_restart = False
        self.current: StorageRun | None = None
        """None while it is being restarted."""
        relaying.metrics.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the present run. The registry calls it on the HTTP endpoint's threads."""
        run = self.current
        for one in run.collectors if run is not None else ():
            yield from one.collect()

    def start(self) -> None:
        """Start the storage system, retrying while Kafka or the store are away."""
        if self.around.settings.has_store:
            self._supervisor.start(STORAGE_LOADING, self.loading.run)
        self._supervisor.start(PUBLICATION, self._publish)
        self._supervisor.start(STORAGE, self._run)

    async def stop(self) -> None:
        """Upload and publish what is left, within the shutdown time, and release everything.

        Relaying must continue meanwhile, because the metadata topic itself is replicated through it.
        """
        await self._supervisor.stop(STORAGE)
        await asyncio.to_thread(self.around.publisher.flush, self.around.settings.process.shutdown_timeout_s)
        await self._supervisor.stop(PUBLICATION)
        if lost := await asyncio.to_thread(self.around.publisher.close, 0.0):
            log.warning("metadata_unpublished", records=lost)
        await self._supervisor.stop(STORAGE_LOADING)

    @property
    def missing(self) -> list[str]:
        """What is missing for the agent to do all of its work, except parts that are down, as texts for people."""
        reasons = self.current.missing if self.current is not None else [STARTING]
        if (stalled := self.around.publication.stalled_because) is not None:
            reasons = [*reasons, f"metadata is not published, so all goes inline: {stalled}"]
        storage = self.loading.missing if self.around.settings.has_store else None
        return reasons if storage is None else [*reasons, f"object storage: {storage}"]

    async def _publish(self) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        self.around.publisher.start(lambda defect: loop.call_soon_threadsafe(ended.set_exception, defect))
        watch = asyncio.create_task(self.around.publication.run())
        try:
            await ended
        finally:
            watch.cancel()

    async def _run(self) -> None:
        above = -1
        while True:
            if self._is_restart:
                incarnation = self._lock.next_incarnation(self.around.clocks.wall_ms, above)
                identity = replace(self.around.identity, incarnation=incarnation)
                self.around = replace(self.around, identity=identity)
                log.warning("incarnation_taken", incarnation=identity.incarnation, above=above)
            self._is_restart = True
            above = await self._run_once()

    async def _run_once(self) -> int:
        """Run until a defect. Returns the incarnation above which another one must be taken."""
        around, above = self.around, -1
        metadata = await asyncio.to_thread(open_metadata, around)
        try:
            self.current = run = StorageRun(around, self._usage, metadata)
            await run.run()
        except* IncarnationTakenError as taken:
            above = getattr(root_cause(taken), "above", above)
        finally:
            self.current = None
            await asyncio.to_thread(metadata.store.close)
        return above
