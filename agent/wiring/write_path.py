"""The write path of one run of the storage system: what the log manager asks the agent, and what others ask of it.

A log manager that met a defect ends the run, as if its process had been killed: what was under way is uploaded again
from where the metadata topic says, and links to what it had stored are forgotten. An orderly end uploads what was read
before.

In shadow it decides as ever, uploads are only pretended, and `Shadow` counts what followers would have got. It declares
no gaps: the agent that replicates will see what is in no object.

Belongs to the event loop, except `status`.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final, Self

import structlog
from prometheus_client import CollectorRegistry

from agent.descriptors import bounded_open_files
from agent.settings.agent_settings import AgentSettings
from agent.settings.memory_shares import QUEUE_BYTES
from agent.settings.upload_settings import ArchiveSettings
from agent.wiring.agent_resources import AgentResources
from agent.wiring.kafka_following import KafkaFollowing
from gateway.durable.durable_uploads import DurableUploads
from metadata_topic.store.archive.archive_store import ArchiveStore
from plugin.inline_reason import InlineReason
from plugin.prices import NEVER_PAYS, Prices
from replication.wire.metrics import RecentTraffic
from rlm.archive.stored_runs import ArchiveLinks, LedLogs
from rlm.lifecycle.gap_declarations import GapDeclarations
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.cadence import Cadence, CommitLimits
from rlm.write_path.commit.link_policy import LinkDecider
from rlm.write_path.commit.price import Price
from rlm.write_path.core.pacing import FAR_BEHIND_OBJECTS, LogManagerLimits
from rlm.write_path.explanation import Explanation
from rlm.write_path.link_costs import LinkCosts
from rlm.write_path.metrics import StageTimes, WriteMetrics
from rlm.write_path.reading.resume_point import ResumePoint, end_of_log, resume_point
from rlm.write_path.remote_wal_log_manager import RemoteWalLogManager
from rlm.write_path.runtime import Runtime
from rlm.write_path.uploads.combine_task import PretendedUploads, RLMWalCombineTask
from rlm.write_path.uploads.object_spacing import spacing_s
from rlm.write_path.uploads.tail_uploads import TailResponses, TailUploads

log = structlog.get_logger(__name__)

_SPACING_LOOK_S: Final = 4.0
_RECKON_EACH: Final = 15
"""At so many looks costs are reckoned anew though nothing was packed: other zones may read together now."""
_SHADOW_LOOK_S: Final = 0.1
"""In shadow no fetch shows what goes inline, so logs are read so often. In the model of `perf.cost` the share came
within ten points of what agents link; at 1 s it missed bursts."""


def log_manager_limits(settings: AgentSettings) -> LogManagerLimits:
    """Return the limits of the write path by the settings."""
    limits = settings.log_manager
    archive_interval_s = min(limits.archive_interval_s, _SHADOW_LOOK_S if settings.is_shadow else math.inf)
    commit = CommitLimits(
        limits.combiner_task_interval_s,
        archive_interval_s,
        limits.combiner_task_upload_bytes,
        limits.combiner_thread_pool_size,
        bytes_per_s=limits.copy_max_bytes_per_second,
    )
    return LogManagerLimits(
        commit,
        QUEUE_BYTES,
        commit.upload_bytes,
        settings.link.wait_max_s,
        bounded_open_files(),
        limits.backlog_max_bytes_per_second,
        settings.is_shadow,
    )


def archive_links(settings: ArchiveSettings, archive: ArchiveStore, prices: Prices) -> ArchiveLinks | None:
    """Return the source of links to archive objects; None when this agent's archive is off.

    Without its own archive the agent still knows archive objects, but its peers may not be able to read them. If
    reading from the archive never pays, only topics with the policy `always` get such links.
    """
    if not settings.enable:
        return None
    min_run_bytes = prices.get_break_even_bytes(prices.of_section(settings.price_section))
    if min_run_bytes == NEVER_PAYS:
        log.warning("archive_links_never_pay", reason="no read is ever cheaper than cross-zone traffic")
    return ArchiveLinks(archive, min_run_bytes)


@dataclass(frozen=True, slots=True)
class TopicWay:
    """How a topic's bytes travel from here now, and travelled of late."""

    minute: float | None
    """The linked share of the last minute; None: nothing moved."""
    hour: float | None
    reasons: Mapping[str, int]
    """Bytes of the last hour that went inline, by `InlineReason`."""
    reason: InlineReason | None
    """Why bytes go inline now; None: they are linked."""
    plain: str
    """How they travel now, in one sentence with what to do."""
    numbers: str
    """What that follows from."""

    @classmethod
    def of(cls, recent: RecentTraffic, now: Explanation, now_s: float) -> Self:
        reasons = {way: size for way, size in recent.moved(3600, now_s).most_common() if way != "linked"}
        inline = ", ".join(f"{size / 1e6:,.1f} MB {reason}" for reason, size in reasons.items())
        numbers = f"{now.numbers} (inline in the last hour: {inline or 'nothing'})"
        return cls(recent.share(60, now_s), recent.share(3600, now_s), reasons, now.reason, now.plain, numbers)


class WritePath:
    """Builds and runs the log manager and its listeners for one run of the storage system."""

    def __init__(self, around: AgentResources, kafka: KafkaFollowing) -> None:
        self._around, self._kafka = around, kafka
        self.assignments: Sequence[Assignment] = ()
        """The partitions that are led here."""
        relaying, settings, clocks = around.relaying, around.settings, around.clocks
        self._shadow, gateway = relaying.shadow, relaying.gateway
        limits = log_manager_limits(settings)
        uploads = RLMWalCombineTask if self._shadow is None else PretendedUploads
        self.gaps = GapDeclarations(
            around.writer_id,
            around.publisher,
            kafka.metadata.store.declares,
            kafka.tiers,
            around.metrics.write,
            clocks.wall_ms,
        )
        adoptable = gateway.adoptable if gateway is not None else None
        metrics, stage_times = around.metrics.write, relaying.stage_times
        if self._shadow is not None:  # what is pretended is in no metric
            metrics, stage_times = WriteMetrics(CollectorRegistry()), StageTimes(CollectorRegistry())
        self.combine = uploads(
            relaying.storage,
            around.publisher,
            around.writer_id,
            metrics,
            clocks,
            adoptable,
            digests=settings.link.takes_digests,
        )
        prices, store = around.configuration.prices, around.configuration.store_prices
        costs = LinkCosts(prices, store, relaying.reads_for, relaying.packing.ratio_of)
        self.price = Price(costs.judge, around.configuration.upload_wait_max_s)
        self._decider = LinkDecider(
            self.price,
            Cadence(limits.commit),
            has_trials=not settings.is_shadow,
            is_off=lambda: around.publication.stalled_because is not None,
            paused_because=relaying.pauses.find_reason,
        )
        self.manager = RemoteWalLogManager(
            limits,
            self.combine,
            self._decider,
            stage_times,
            metrics,
            Runtime(clocks),
            self._resume_point if self._shadow is None else end_of_log,
            relaying.leadership_asked.set,
        )
        self.answers = TailResponses(around.configuration.client)
        self.tails = TailUploads(around.identity.broker_id, self.manager, self.answers, clocks.wall_ms)
        self._durable: DurableUploads | None = None
        if gateway is not None and gateway.durable is not None:
            self._durable = DurableUploads(self.manager, self.combine.when_published, gateway.durable)
        durable = (self._durable, self._durable.published) if self._durable is not None else ()
        for one in (relaying.leader, self.tails, *durable, self.gaps) if self._shadow is None else (self._shadow,):
            self.manager.add_listener(one)

    async def run(self) -> None:
        """Upload until cancelled, and then what was read before, within the shutdown time.

        Raises the error that ended it.
        """
        around, guarded = self._around, self._around.relaying.write_path
        loop = asyncio.get_running_loop()
        spacing = asyncio.create_task(self._look_around())
        flush_timeout_s = None
        try:
            running = self.manager.start()
            failed = self.manager.fail
            guarded.arrived(self.manager, self._stored_logs(), lambda defect: loop.call_soon_threadsafe(failed, defect))
            if self._durable is not None:
                self._durable.arrived()
            await asyncio.wait((running, spacing), return_when=asyncio.FIRST_COMPLETED)
            for one in (running, spacing):
                if one.done():
                    one.result()
        except asyncio.CancelledError:
            flush_timeout_s = around.settings.process.shutdown_timeout_s
            raise
        finally:
            spacing.cancel()
            try:
                await self.manager.stop(flush_timeout_s)
            finally:
                guarded.left()
                for assignment in self.assignments:
                    around.relaying.leader.partition_released(assignment.topic_id_partition)
                if self._durable is not None:
                    self._durable.left(self.assignments)

    def _stored_logs(self) -> LedLogs:
        configuration, metadata, settings = self._around.configuration, self._kafka.metadata, self._around.settings
        min_run_bytes = configuration.prices.get_break_even_bytes(configuration.store_prices)
        links = archive_links(settings.archive, metadata.archive, configuration.prices)
        digests = settings.link.takes_digests
        return LedLogs(metadata.store, self.manager.stored_log, min_run_bytes, links, takes_digests=digests)

    async def _look_around(self) -> None:
        """Set every few seconds how far apart uploads must be at least, by the recent rates of all agents."""
        rates, told = self._kafka.metadata.consumer.object_rates, self._around.metrics.write.upload_spacing
        bound_per_s = self._around.settings.log_manager.cluster_objects_per_second
        far_bytes = FAR_BEHIND_OBJECTS * self._around.settings.log_manager.combiner_task_upload_bytes
        packed, reckoned = self._around.relaying.metrics.packing.before_bytes, -1.0
        for turn in count():
            self._decider.space_uploads(spacing_s(rates.per_second().values(), bound_per_s))
            told.set(self.price.spacing_s)
            if packed.value != reckoned or turn % _RECKON_EACH == 0:
                reckoned = packed.value
                self.price.reckon()
            if self._shadow is not None:
                await self._shadow.follow(self.manager.led(), far_bytes)
            await asyncio.sleep(_SPACING_LOOK_S)

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Upload exactly these partitions from now on."""
        if self._shadow is not None:  # all that is stored is for links alone
            assignments = [replace(one, archive=False, is_kept=False, is_durable=False) for one in assignments]
            self._shadow.set_led(assignments, self.manager.why_inline)
        if assignments is not self.assignments or len(self.manager.led()) != len(assignments):
            self.manager.assign(assignments)  # some are new, or were not taken on, or were released since
        self.assignments = assignments
        self.tails.assigned(assignments)
        if self._durable is not None:
            self.topics_read()
            self._durable.assigned(assignments)

    def topics_read(self) -> None:
        """Record that topics' settings are read, so that records which agents themselves produce need not wait for
        leadership."""
        gateway, kafka = self._around.relaying.gateway, self._kafka
        if gateway is not None and gateway.durable is not None:
            replicas = kafka.replicas
            gateway.durable.topics_known(kafka.topic_settings.table, replicas.topic_names, replicas.is_here)

    def _resume_point(self, assignment: Assignment) -> ResumePoint:
        metadata = self._kafka.metadata  # it was read before anything is led
        resume = resume_point(metadata.store, metadata.archive, assignment)
        self.gaps.declare_begin(assignment, resume)
        return resume

    # For metrics and `describe`, on other threads.

    def explain(self) -> Mapping[str, TopicWay]:
        """Return for each topic led here how its bytes travel, and why."""
        told = self.manager.explain()
        recent, now_s = dict(self._around.relaying.traffic.recent), self._around.clocks.monotonic_s()
        ids = {one.topic: partition.topic_id for partition, one in self.manager.status().items()}
        return {
            topic: TopicWay.of(recent.get(ids[topic]) or RecentTraffic(), why, now_s)
            for topic, why in told.items()
            if topic in ids
        }

    def held_back_s(self) -> Mapping[str, float | None]:
        """Return by topic for how long links hold records back, in seconds, by the last look; None before the first
        look."""
        found = self._decider.trials.found()
        return {topic: None if one is None else max(one.held_back_s, 0.0) for topic, one in found.items()}
