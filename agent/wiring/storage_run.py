"""Follows Kafka, with everything that depends on it: made again as one when following Kafka failed."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from agent.defects import Run
from agent.http.object_summary import object_summary
from agent.metrics.loop_times import Loop
from agent.wiring.archive import archive_links, build_archiving
from agent.wiring.durable_uploads import KnownTopics
from agent.wiring.kafka_following import KafkaFollowing
from agent.wiring.lifecycle import build_lifecycle
from agent.wiring.surroundings import Kept, Surroundings
from agent.wiring.write_path import WritePath, WritePathContext
from kafka_log.log_directory import LogDirectory
from kafka_log.topic_partition import TopicIdPartition
from plugin.archive_storage import ObjectArchiveStorage
from replication.leader.link_index import StoredLogs
from rlm.archive.archive_tier import ArchiveTier
from rlm.archive.archived_topics import ArchivedTopics, CareDuties
from rlm.archive.archiving import Archiving
from rlm.archive.stored_runs import LedLogs
from rlm.lifecycle.caretaking import publish_registration
from rlm.lifecycle.cluster_observer import Observation
from rlm.lifecycle.gap_declarations import GapDeclarations
from rlm.lifecycle.led_gaps import LedGaps
from rlm.lifecycle.lifecycle import Lifecycle
from rlm.lifecycle.node_care import NodeRegistration
from rlm.lifecycle.release import Tiers
from rlm.write_path.assignment import Assignment
from rlm.write_path.core.led_views import StoredLog
from rlm.write_path.uploads.tail_uploads import TailAnswers

WRITE_PATH, LIFECYCLE, ARCHIVE, USAGE = "write path", "lifecycle", "archive", "usage"


class StorageRun:
    """One run of these parts. Create and use it in the event loop."""

    def __init__(self, around: Surroundings, kept: Kept) -> None:
        self._around = around
        self._kept = kept
        self._assignments: Sequence[Assignment] = ()
        settings, identity, client, wall_ms = (
            around.settings,
            around.identity,
            around.configuration.client,
            around.clocks.wall_ms,
        )
        log_directories = [LogDirectory(path) for path in around.configuration.broker.log_dirs]
        own = NodeRegistration(identity.broker_id, identity.incarnation, identity.broker_id)
        self.kafka = KafkaFollowing(
            settings,
            identity,
            client,
            log_directories,
            self.assigned,
            around.relaying.storage,
            self._register,
            around.relaying.zones,
        )
        metadata, topic_settings = self.kafka.metadata, self.kafka.topic_settings
        self._archived = ArchivedTopics(
            own, metadata.store, metadata.archive, topic_settings, settings.archive.enable, around.clocks.monotonic_s
        )
        archive_tier = ArchiveTier(metadata.archive, self._archived.is_archived, self._archived.chain_of)
        self._tiers = Tiers([self.kafka.readers.tiered_storage, archive_tier])
        self._gaps = GapDeclarations(
            kept.next_gap_record, kept.publisher, metadata.store.declares, self._tiers, kept.metrics.write, wall_ms
        )
        self._tail_answers = TailAnswers(client)
        context = WritePathContext(
            self.kafka.resume_point,
            self._gaps,
            self.kafka.leadership.look_again,
            self._tail_answers,
            self._led_logs,
            self._topics,
            metadata.objects_per_s,
        )
        self.write_path = WritePath(around, kept, context)
        self.led_gaps = LedGaps(metadata.store, self.write_path.status, self._archived.chain_of)
        self._lifecycle: Lifecycle | None = None
        self._archiving: Archiving | None = None
        self._tell_of_kafka()

    def _tell_of_kafka(self) -> None:
        """Connect the callbacks of what follows Kafka."""
        kafka, loop, gateway = self.kafka, asyncio.get_running_loop(), self._around.relaying.gateway
        kafka.topics.hold_publication = self._kept.publisher.hold
        kafka.leadership.on_known = lambda: self._kept.loops.succeeded(Loop.LEADERSHIP)
        kafka.on_agents = self._around.relaying.found_peers.registered
        kafka.on_topics_read = self.write_path.topics_read
        kafka.topic_settings.on_tail_requests = lambda requests: loop.call_soon_threadsafe(
            self.write_path.tails.requested, requests
        )
        if gateway is not None:
            gateway.metadata_is_followed(kafka.metadata, self._around.relaying.storage, lambda: kafka.lease.may_delete)
            if gateway.durable is not None:
                gateway.durable.ask_anew = kafka.leadership.look_again

    def start(self) -> None:
        """Begin everything except following Kafka, in this order: the registration goes before uploads."""
        self._register()
        for part, run in self._runs():
            self._around.supervisor.start(part, run)

    def _register(self) -> None:
        identity, now_ms = self._around.identity, self._around.clocks.wall_ms()
        own = NodeRegistration(identity.broker_id, identity.incarnation, identity.broker_id)
        publish_registration(self._kept.publisher, own, now_ms)

    async def stop(self) -> None:
        """End them in order, so that what is left is uploaded, and published last."""
        for part, _ in self._runs():
            await self._around.supervisor.stop(part)
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
        if lost := self.kafka.lease.lost_because:
            reasons.append(f"nothing is uploaded or deleted: {lost}")
        if put_off := self.write_path.put_off():
            partition, reason = next(iter(put_off.items()))
            reasons.append(f"{len(put_off)} partitions put off, not known from where to upload: {partition}: {reason}")
        return reasons

    @property
    def degraded(self) -> list[str]:
        """What waits for a person, while replication has all it needs."""
        doubt = self.kafka.metadata.doubt()
        told = [f"{doubt}: no orphan is healed before `remote-wal metadata rebuild`"] if doubt else []
        if self.kafka.leadership.is_known and (away := self.kafka.leadership.unknown_because):
            told.append(f"Kafka does not say who leads what, so what it said last counts: {away}")
        if off := self.kafka.lease.clock_is_off:
            told.append(off)
        if lost := self.kafka.topic_settings.remembered_only:
            told.append(f"the settings topic was lost: set {', '.join(lost)} again; what was known last counts")
        told += [
            f"{held['topic']}-{held['partition']} lost records that object storage holds (offsets "
            f"{held['from_offset']} to {held['to_offset'] - 1}): `{held['restore']}`, or `{held['give_up']}`"
            for held in self.led_gaps.describe_held()
        ]
        return told + [str(problem) for problem in self.kafka.topics.problems]

    def objects(self) -> dict[str, Any]:
        """Return the combined segments that exist; any thread may ask."""
        return object_summary(self.kafka.metadata.store, self._around.clocks.wall_ms())

    @property
    def archive_storage(self) -> ObjectArchiveStorage | None:
        """The archive's store; None until it has answered."""
        return self._archiving.storage if self._archiving is not None else None

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Set the partitions that are led here from now on."""
        self._assignments = assignments
        self.write_path.assign(assignments)
        self._archived.led(assignments)
        if self._lifecycle is not None:
            self._lifecycle.led(assignments)
        # Unread records of the topic would look like a hole in the log.
        if self._archiving is not None and self.kafka.metadata.is_read:
            self._archiving.assign(assignments)

    async def _run_lifecycle(self) -> None:
        lifecycle = build_lifecycle(
            self._around,
            self._kept,
            self.kafka,
            self._tiers,
            self.write_path.is_under_way,
            self._cluster_seen,
            self._gaps.lost_locally,
        )
        lifecycle.led(self._assignments)
        self._lifecycle = lifecycle
        try:
            await lifecycle.run()
        finally:
            self._lifecycle = None

    def _cluster_seen(self, observation: Observation) -> None:
        # Must come before a deletion because of a log's start.
        self._gaps.began(observation.view.log_start, self._assignments)
        self._archived.cluster_seen(observation)

    async def _run_archive(self) -> None:
        archiving = build_archiving(self._around, self._kept, self.kafka, self._duties)
        archiving.assign(self._assignments if self.kafka.metadata.is_read else ())
        self._archiving = archiving
        try:
            await archiving.run()
        finally:
            self._kept.next_archive_writer_id = archiving.next_writer_id
            self._archiving = None
            archiving.close()

    def _duties(self) -> CareDuties:
        lifecycle = self._lifecycle
        return self._archived.duties(lifecycle.brokers_to_care_for() if lifecycle is not None else frozenset())

    def _topics(self) -> KnownTopics:
        settings = self.kafka.topic_settings.topics
        names = self.kafka.replicas.topic_names
        ids = {name: topic_id for topic_id, name in names.items()}
        durable = (name for name, topic in settings.items() if topic.is_durable and topic.is_of(ids.get(name)))
        return KnownTopics(frozenset(durable), names)

    def _led_logs(self, stored_log: Callable[[TopicIdPartition], StoredLog | None]) -> StoredLogs:
        around, metadata = self._around, self.kafka.metadata
        min_run_bytes = around.configuration.prices.get_break_even_bytes(around.configuration.store_prices)
        archive = archive_links(around.settings.archive, metadata.archive, around.configuration.prices)
        takes_digests = around.settings.link.takes_digests
        return LedLogs(metadata.store, stored_log, min_run_bytes, archive, takes_digests=takes_digests)
