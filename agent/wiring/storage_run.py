"""Follows Kafka, with everything that depends on it: made again as one when following Kafka failed."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent.defects import Run
from agent.http.object_summary import object_summary
from agent.metrics.loop_times import Loop
from agent.metrics.usage import UsageReport
from agent.pack_rules import PackRules
from agent.wiring.agent_resources import AgentResources
from agent.wiring.archive import build_archiving
from agent.wiring.kafka_following import KafkaFollowing
from agent.wiring.lifecycle import build_lifecycle
from agent.wiring.write_path import make_write_path
from metadata_topic.settings.settings_table import SettingsTable
from metadata_topic.topic.followed_metadata import KnownMetadata
from plugin.archive_storage import ObjectArchiveStorage
from plugin.wall_clock import lasting_s
from rlm.archive.archived_topics import ArchivedTopics, ArchiveTier, CareDuties
from rlm.archive.archiving import Archiving
from rlm.lifecycle.cluster_observer import Observation
from rlm.lifecycle.gap_declarations import GapDeclarations, LedGaps
from rlm.lifecycle.lifecycle import Lifecycle
from rlm.lifecycle.log_starts import LogStarts
from rlm.lifecycle.object_ownership import NodeRegistration, publish_registration
from rlm.lifecycle.release import Tiers
from rlm.write_path.assignment import Assignment

WRITE_PATH, LIFECYCLE, ARCHIVE, USAGE = "write path", "lifecycle", "archive", "usage"


class StorageRun:
    """One run of these parts. Create and use it in the event loop."""

    def __init__(self, around: AgentResources, usage: UsageReport, known: KnownMetadata) -> None:
        self._around = around
        self._usage = usage
        self._assignments: Sequence[Assignment] = ()
        identity, settings, wall_ms = around.identity, around.settings, around.clocks.wall_ms
        self._own = NodeRegistration(identity.broker_id, identity.incarnation, identity.broker_id)
        self.kafka = KafkaFollowing(around, known, self.assigned, self._register)
        metadata, topic_settings = self.kafka.metadata, self.kafka.topic_settings
        self._archived = ArchivedTopics(
            self._own,
            metadata.store,
            metadata.archive,
            topic_settings,
            settings.archive.enable,
            lasting_s,
        )
        archive_tier = ArchiveTier(metadata.archive, self._archived.is_archived, self._archived.chain_of)
        self._tiers = Tiers([self.kafka.readers.tiered_storage, archive_tier])
        self._gaps = GapDeclarations(
            around.next_gap_record,
            around.publisher,
            metadata.store.declares,
            self._tiers,
            around.metrics.write,
            wall_ms,
        )
        self._log_starts = LogStarts(metadata.store)
        self.write_path = make_write_path(around, self.kafka, self._gaps)
        self.led_gaps = LedGaps(metadata.store, self.write_path.status, self._archived.chain_of)
        self._lifecycle: Lifecycle | None = None
        self._archiving: Archiving | None = None
        self._tell_of_kafka()

    def _tell_of_kafka(self) -> None:
        """Connect the callbacks of what follows Kafka."""
        kafka, gateway = self.kafka, self._around.relaying.gateway
        kafka.topics.hold_publication = self._around.publisher.hold
        kafka.leadership.on_known = lambda: self._around.metrics.loops.succeeded(Loop.LEADERSHIP)
        kafka.on_settings = self._settings_read
        if self._around.relaying.shadow is not None:
            return
        kafka.on_topics_read = self._topics_read
        if gateway is not None:
            gateway.metadata_is_followed(kafka.metadata, self._around.relaying.storage, kafka.lease)
            if gateway.durable is not None:
                gateway.durable.ask_anew = kafka.leadership.look_again

    def _settings_read(self, table: SettingsTable) -> None:
        self._around.relaying.pauses.recorded(table.pauses)
        if self._around.relaying.shadow is None:
            self._around.relaying.found_peers.registered(table.agents)
            self.write_path.tails.requested(table.tail_requests)

    def _topics_read(self) -> None:
        self.write_path.topics_read()
        relaying, kafka = self._around.relaying, self.kafka
        rules = PackRules(kafka.topic_settings, lambda: kafka.replicas.topic_names, self._around.clocks.monotonic_s)
        relaying.packing.is_allowed = rules.allows

    def start(self) -> None:
        """Begin everything except following Kafka, in this order: the registration goes before uploads."""
        self._register()
        for part, run in self._runs():
            self._around.supervisor.start(part, run)

    def _register(self) -> None:
        if self._around.settings.has_store:
            publish_registration(self._around.publisher, self._own, self._around.clocks.wall_ms())

    async def stop(self) -> None:
        """End them in order, so that what is left is uploaded, and published last."""
        for part, _ in self._runs():
            await self._around.supervisor.stop(part)
        self._gaps.close()
        self._around.next_gap_record = self._gaps.next_record
        await asyncio.to_thread(self.write_path.close)

    def _runs(self) -> list[tuple[str, Run]]:
        if not self._around.settings.has_store:
            return [(WRITE_PATH, self.write_path.run)]
        runs: list[tuple[str, Run]] = [(LIFECYCLE, self._run_lifecycle), (WRITE_PATH, self.write_path.run)]
        if self._around.settings.archive.enable:
            runs.append((ARCHIVE, self._run_archive))
        return [*runs, (USAGE, self._usage.run)]

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
        told += [why for why in (self.kafka.lease.clock_is_off, self.kafka.lease.contested) if why]
        if self.kafka.topic_settings.memory.is_lost:
            told.append("the settings topic was lost: what it held last counts, and agents write it again")
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
        self._archived.set_led(assignments)
        if self._lifecycle is not None:
            self._lifecycle.set_led(assignments)
        # Unread records of the topic would look like a hole in the log.
        if self._archiving is not None and self.kafka.metadata.is_read:
            self._archiving.assign(assignments)

    async def _run_lifecycle(self) -> None:
        lifecycle = build_lifecycle(
            self._around,
            self.kafka,
            self._tiers,
            self.write_path.is_under_way,
            self._cluster_seen,
            self._gaps.declare_loss,
        )
        lifecycle.set_led(self._assignments)
        self._lifecycle = lifecycle
        try:
            await lifecycle.run()
        finally:
            self._lifecycle = None

    def _cluster_seen(self, observation: Observation) -> Observation:
        """Declare where logs begin. Returns the observation with the starts by which objects may go."""
        seen = observation.view.log_start
        self._gaps.declare_log_starts(self._log_starts.to_declare(seen, self._assignments))
        view = replace(observation.view, log_start=self._log_starts.told(seen))
        observation = replace(observation, view=view)
        self._archived.cluster_seen(observation)
        return observation

    async def _run_archive(self) -> None:
        archiving = build_archiving(self._around, self.kafka, self._duties)
        archiving.assign(self._assignments if self.kafka.metadata.is_read else ())
        self._archiving = archiving
        try:
            await archiving.run()
        finally:
            self._around.next_archive_writer_id = archiving.next_writer_id
            self._archiving = None
            archiving.close()

    def _duties(self) -> CareDuties:
        lifecycle = self._lifecycle
        return self._archived.duties(lifecycle.brokers_to_care_for() if lifecycle is not None else frozenset())
