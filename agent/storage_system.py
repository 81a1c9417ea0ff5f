"""All of the agent but relaying: what `remote.log.wal.storage.system.enable` turns on, in parts that begin anew.

Theory. What follows Kafka is what the others stand on: uploads go on where the metadata store says, objects go when it
says so. When it failed, what it knows is not to be trusted, and all that stands on it is made anew with it (`Rooms`);
until then nothing is led, and all bytes go inline. When another part failed, it alone is. Two things are kept, as
nothing else knows of them: records that wait to be published, and the sequence numbers that were used.

Imported once relaying has begun, as it takes far longer to import. Create and use it in the event loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from prometheus_client import CollectorRegistry

from agent.alarms import Alarms, upload_lag
from agent.archive_knowledge import ArchiveKnowledge
from agent.archive_side import ArchiveParts, ArchiveSide, archive_links
from agent.defects import Parts, Run
from agent.identity import AgentIdentity
from agent.kafka_side import KafkaSide
from agent.lifecycle import Lifecycle, LifecycleParts
from agent.metrics import StateCollector
from agent.object_summary import object_summary
from agent.relaying import Relaying
from agent.setting_types import milliseconds
from agent.settings import AgentSettings
from agent.storage_loading import StorageLoading
from agent.usage import UsageReport, store_counts
from agent.write_path import WritePath, WritePathParts
from kafka_log.log_directory import LogDirectory
from kafka_log.server_properties import BrokerProperties
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.topic.client_config import KafkaClientConfig
from metadata_topic.topic.publication_queue import PublisherSettings
from metadata_topic.topic.publication_watch import PublicationWatch
from metadata_topic.topic.publisher import RemoteWalMetadataPublisher
from plugin.archive_storage import ObjectArchiveStorage
from plugin.prices import Prices
from plugin.remote_wal_storage_manager import StorageContext
from plugin.segment_metadata import CombinedSegmentId
from replication.leader.found_batches import StoredLogs
from rlm.archive.archive_tier import ArchiveTier
from rlm.archive.stored_runs import LedLogs
from rlm.lifecycle.gap_declarations import GapDeclarations
from rlm.lifecycle.incarnation_watch import IncarnationTakenError
from rlm.lifecycle.led_gaps import LedGaps
from rlm.lifecycle.node_care import NodeRegistration
from rlm.lifecycle.node_registrations import publish_registration
from rlm.lifecycle.release import Tiers
from rlm.write_path.assignment import Assignment
from rlm.write_path.combine_task import Clocks
from rlm.write_path.led_views import StoredLog
from rlm.write_path.metrics import ArchiveMetrics, LifecycleMetrics, WriteMetrics
from rlm.write_path.tail_uploads import TailAnswers

log = structlog.get_logger(__name__)

KAFKA_SIDE, WRITE_PATH, LIFECYCLE, ARCHIVE, USAGE = "kafka side", "write path", "lifecycle", "archive", "usage"
STORAGE_LOADING, PUBLICATION, ALARMS = "object storage", "metadata publication", "alarms"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the storage system is made in."""

    broker: BrokerProperties
    settings: AgentSettings
    identity: AgentIdentity
    client: KafkaClientConfig
    prices: Prices
    registry: CollectorRegistry
    relaying: Relaying
    parts: Parts
    clocks: Clocks
    next_incarnation: Callable[[int], int]
    """One above the given one, and all that there were here."""

    @property
    def storage_context(self) -> StorageContext:
        return StorageContext(self.identity.cluster_id, self.identity.broker_id)


@dataclass(slots=True)
class _Kept:
    """What is made once, and what goes on over failures."""

    publisher: RemoteWalMetadataPublisher
    publication: PublicationWatch
    usage: UsageReport
    next_segment_id: CombinedSegmentId
    next_archive_writer_id: CombinedSegmentId
    next_gap_record: CombinedSegmentId
    write: WriteMetrics
    lifecycle: LifecycleMetrics
    archive: ArchiveMetrics


class StorageSystem:
    """See the module's theory."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        settings, relaying, registry = around.settings, around.relaying, around.registry
        self.loading = StorageLoading(settings, around.broker.raw, around.storage_context, relaying.storage)
        self.publisher = RemoteWalMetadataPublisher(
            around.client,
            around.identity.broker_id,
            around.clocks.monotonic_s,
            PublisherSettings(unpublished_max_ms=milliseconds(settings.metadata.unpublished_max_s)),
        )
        self.publication = PublicationWatch(self.publisher.stall_reason, relaying.metrics.fault)
        usage = UsageReport(
            around.identity,
            lambda: store_counts(settings, relaying.storage, self.rooms.archive if self.rooms else None),
            relaying.metrics,
            self.publisher,
            around.clocks.wall_ms,
            milliseconds(settings.metadata.usage_interval_s),
        )
        first_id = CombinedSegmentId(around.identity.broker_id, around.identity.incarnation, 0)
        self._kept = _Kept(
            self.publisher,
            self.publication,
            usage,
            first_id,
            first_id,
            first_id,
            WriteMetrics(registry),
            LifecycleMetrics(registry),
            ArchiveMetrics(registry),
        )
        self.rooms: Rooms | None = None
        """None while they are made anew."""
        self.alarms = Alarms(
            {
                "upload_lag": self._upload_lag,
                "store_puts": lambda: relaying.storage.puts.alarm if relaying.storage.puts else None,
                "store_gets": lambda: relaying.storage.gets.alarm if relaying.storage.gets else None,
            }
        )

    def _upload_lag(self) -> str | None:
        status = self.rooms.write_path.status() if self.rooms is not None else {}
        return upload_lag(status.values(), milliseconds(self._around.settings.alarms.upload_lag_alarm_s))

    def start(self) -> None:
        """Begin, whether or not Kafka and the store are there."""
        parts = self._around.parts
        parts.start(STORAGE_LOADING, self.loading.run)
        parts.start(PUBLICATION, self._publish)
        parts.start(KAFKA_SIDE, self._run_rooms)
        parts.start(ALARMS, self.alarms.run)

    async def stop(self) -> None:
        """Upload and publish what is left, as far as the shutdown's time allows, and let go of everything.

        Relaying must go on meanwhile: the metadata topic itself is replicated through it.
        """
        parts, timeout_s = self._around.parts, self._around.settings.process.shutdown_timeout_s
        await parts.stop(ALARMS)
        if self.rooms is not None:  # before Kafka's clients, whose end may take its time
            await self.rooms.stop()
        await parts.stop(KAFKA_SIDE)
        await asyncio.to_thread(self.publisher.flush, timeout_s)
        await parts.stop(PUBLICATION)
        if lost := await asyncio.to_thread(self.publisher.close, 0.0):
            log.warning("metadata_unpublished", records=lost)
        await parts.stop(STORAGE_LOADING)

    @property
    def incarnation(self) -> int:
        """The one that uploads."""
        return self._around.identity.incarnation

    @property
    def missing(self) -> list[str]:
        """What is missing for all of the agent's work, but for parts that are down."""
        reasons = [*(self.rooms.missing if self.rooms is not None else []), *self.alarms.reasons]
        if (stalled := self.publication.stalled_because) is not None:
            reasons = [*reasons, f"metadata is not published, so all goes inline: {stalled}"]
        storage = self.loading.missing
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

    async def _run_rooms(self) -> None:
        while True:
            above = await self._run_rooms_until_fenced()
            around = self._around
            identity = replace(around.identity, incarnation=around.next_incarnation(above))
            self._around = replace(around, identity=identity)
            self._kept.next_segment_id = CombinedSegmentId(identity.broker_id, identity.incarnation, 0)
            self._kept.next_archive_writer_id = self._kept.next_segment_id
            log.warning("incarnation_taken", incarnation=identity.incarnation, above=above)

    async def _run_rooms_until_fenced(self) -> int:
        """Returns the incarnation above which another one is to be taken."""
        around, above = self._around, -1
        rooms = Rooms(around, self._kept)
        collector = StateCollector(
            around.relaying.storage,
            rooms.write_path,
            self.publisher,
            (rooms.kafka.store, rooms.kafka.archive),
            lambda: rooms.kafka.metadata_counters,
            lambda: rooms.led_gaps.offsets,
        )
        around.registry.register(collector)
        self.rooms = rooms
        try:
            rooms.start()
            await rooms.kafka.run()
        except* IncarnationTakenError as taken:
            above = max(leaf.above for leaf in _leaves(taken))
        finally:
            await rooms.stop()
            self.rooms = None
            around.registry.unregister(collector)
        return above


def _leaves(group: ExceptionGroup[IncarnationTakenError]) -> list[IncarnationTakenError]:
    found: list[IncarnationTakenError] = []
    for one in group.exceptions:
        found += _leaves(one) if isinstance(one, ExceptionGroup) else [one]
    return found


class Rooms:
    """What follows Kafka, and all that stands on it."""

    def __init__(self, around: Surroundings, kept: _Kept) -> None:
        self._around = around
        self._kept = kept
        self._assignments: Sequence[Assignment] = ()
        settings, identity, client = around.settings, around.identity, around.client
        log_directories = [LogDirectory(path) for path in around.broker.log_dirs]
        self.kafka = KafkaSide(
            settings, identity, client, log_directories, self._assigned, around.relaying.storage, self._register
        )
        self.kafka.topics.hold_publication = kept.publisher.hold
        self._knowledge = ArchiveKnowledge(
            identity,
            self.kafka.store,
            self.kafka.archive,
            self.kafka.topic_settings,
            settings.archive.enable,
            around.clocks.monotonic_s,
        )
        self._tail_answers = TailAnswers(client)
        archive_tier = ArchiveTier(self.kafka.archive, self._knowledge.is_archived, self._knowledge.chain_of)
        self._tiers = Tiers([self.kafka.tiered_storage, archive_tier])
        self._gaps = GapDeclarations(
            kept.next_gap_record, kept.publisher, self.kafka.store.apply, self._tiers, kept.write, around.clocks.wall_ms
        )
        self.write_path = WritePath(settings, kept.next_segment_id, self._write_path_parts())
        self.led_gaps = LedGaps(self.kafka.store, self.write_path.status, self._knowledge.chain_of)
        self._lifecycle: Lifecycle | None = None
        self.archive: ArchiveSide | None = None
        loop = asyncio.get_running_loop()
        self.kafka.topic_settings.on_tail_requests = lambda requests: loop.call_soon_threadsafe(
            self.write_path.tails.requested, requests
        )

    def start(self) -> None:
        """Begin all but following Kafka, in this order: the registration goes before what is uploaded."""
        self._register()
        for part, run in self._runs():
            self._around.parts.start(part, run)

    def _register(self) -> None:
        identity = self._around.identity
        own = NodeRegistration(identity.broker_id, identity.incarnation, identity.broker_id)
        publish_registration(self._kept.publisher, own, self._around.clocks.wall_ms())

    async def stop(self) -> None:
        """End them in an order in which what is left is uploaded, and published last."""
        for part, _ in self._runs():
            await self._around.parts.stop(part)
        self._kept.next_segment_id = self.write_path.next_segment_id
        self._gaps.close()
        self._kept.next_gap_record = self._gaps.next_record
        await asyncio.to_thread(self._tail_answers.close)

    def _runs(self) -> list[tuple[str, Run]]:
        runs: list[tuple[str, Run]] = [(LIFECYCLE, self._run_lifecycle), (WRITE_PATH, self.write_path.run)]
        if self._around.settings.archive.enable:
            runs.append((ARCHIVE, self._run_archive))
        return [*runs, (USAGE, self._kept.usage.run)]

    @property
    def missing(self) -> list[str]:
        """What is not known of Kafka, or not to be trusted."""
        reasons = [f"{name} not known yet" for name in sorted(self.kafka.missing)]
        if fenced := self.kafka.incarnation.fenced_because:
            reasons.append(f"nothing is uploaded: {fenced}")
        if put_off := self.write_path.put_off():
            partition, reason = next(iter(put_off.items()))
            reasons.append(f"{len(put_off)} partitions put off, not known from where to upload: {partition}: {reason}")
        return reasons

    @property
    def degraded(self) -> list[str]:
        """What waits for a person, while all that replication needs is done."""
        doubt = self.kafka.topic_doubt()
        told = [f"{doubt}: no orphan is healed before `remote-wal metadata rebuild`"] if doubt else []
        return told + [str(problem) for problem in self.kafka.topics.problems]

    def objects(self) -> dict[str, Any]:
        """What combined segments there are; any thread may ask."""
        return object_summary(self.kafka.store, self._around.clocks.wall_ms())

    @property
    def archive_storage(self) -> ObjectArchiveStorage | None:
        """The archive's store; None until it has answered."""
        return self.archive.storage if self.archive is not None else None

    async def _run_lifecycle(self) -> None:
        lifecycle = Lifecycle(
            self._around.settings, self._around.identity, self._around.client, self._lifecycle_parts()
        )
        lifecycle.led(self._assignments)
        self._lifecycle = lifecycle
        try:
            await lifecycle.run()
        finally:
            self._lifecycle = None

    async def _run_archive(self) -> None:
        archive = self._make_archive()
        archive.assign(self._assignments if self.kafka.metadata_is_read else ())
        self.archive = archive
        try:
            await archive.run()
        finally:
            self._kept.next_archive_writer_id = archive.next_writer_id
            self.archive = None
            archive.close()

    def _assigned(self, assignments: list[Assignment]) -> None:
        self._assignments = assignments
        self.write_path.assign(assignments)
        self._knowledge.led(assignments)
        if self._lifecycle is not None:
            self._lifecycle.led(assignments)
        # What is not read yet of the topic would look like a hole in the log.
        if self.archive is not None and self.kafka.metadata_is_read:
            self.archive.assign(assignments)

    def _write_path_parts(self) -> WritePathParts:
        around = self._around
        relaying, settings = around.relaying, around.settings
        store = around.prices.of_storage_manager(settings.storage.manager_class_name)
        return WritePathParts(
            relaying.storage,
            self._kept.publisher,
            lambda: self._kept.publication.is_stalled,
            relaying.leader,
            relaying.write_path,
            self.kafka.resume_point,
            self._gaps,
            self.kafka.look_again,
            self._tail_answers,
            self._led_logs,
            around.prices.break_even_bytes(settings.link.remote_followers, store),
            relaying.stage_times,
            self._kept.write,
            around.clocks,
        )

    def _led_logs(self, stored_log: Callable[[TopicIdPartition], StoredLog | None]) -> StoredLogs:
        prices, settings = self._around.prices, self._around.settings
        store = prices.of_storage_manager(settings.storage.manager_class_name)
        archive = archive_links(settings, self.kafka.archive, prices)
        return LedLogs(self.kafka.store, stored_log, prices.get_break_even_bytes(store), archive)

    def _lifecycle_parts(self) -> LifecycleParts:
        around = self._around
        return LifecycleParts(
            around.relaying.storage,
            self._kept.publisher,
            self.kafka,
            self.write_path.is_under_way,
            around.relaying.leader.segment_deletion_started,
            self._tiers,
            self._knowledge.cluster_seen,
            self._kept.lifecycle,
            around.clocks,
        )

    def _make_archive(self) -> ArchiveSide:
        around, kafka = self._around, self.kafka
        return ArchiveSide(
            around.settings,
            around.broker.raw,
            around.storage_context,
            self._kept.next_archive_writer_id,
            ArchiveParts(
                around.relaying.storage,
                kafka.store,
                kafka.archive,
                self._kept.publisher,
                self._kept.archive,
                around.clocks,
                kafka.metadata_read_to_end,
                kafka.topic_doubt,
            ),
            lambda: self._knowledge.duties(self._brokers_to_care_for()),
        )

    def _brokers_to_care_for(self) -> frozenset[int]:
        lifecycle = self._lifecycle
        return lifecycle.brokers_to_care_for() if lifecycle is not None else frozenset()
