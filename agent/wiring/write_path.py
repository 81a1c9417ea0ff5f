"""The write path as one of the parts that follow Kafka: the log manager, made again for each run of it.

A log manager that met a defect is dropped as if its process had been killed: what was under way is uploaded again from
where the metadata topic says, under new sequence numbers, and links to what it had stored are forgotten. The sequence
continues, because no key is ever written twice. An orderly end uploads what was read before.

`ShadowWritePath` and `PretendingWritePath` say what is different in shadow, with and without object storage.

Belongs to the event loop, except `failed`, `status`, `put_off` and `is_under_way`.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from prometheus_client import CollectorRegistry

from agent.descriptors import bounded_open_files
from agent.settings.agent_settings import AgentSettings
from agent.settings.memory_shares import QUEUE_BYTES
from agent.wiring.agent_resources import AgentResources
from agent.wiring.archive import archive_links
from agent.wiring.durable_uploads import DurableUploads, KnownTopics, known_topics
from agent.wiring.kafka_following import KafkaFollowing
from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.offset_ranges import OffsetRange
from plugin.segment_metadata import CombinedSegmentId
from replication.leader.guarded_write_path import WritePathAnswers
from replication.leader.shadow import Shadow
from replication.leader.zones import reads_for
from replication.wire.metrics import RecentTraffic
from rlm.archive.stored_runs import LedLogs
from rlm.lifecycle.gap_declarations import GapDeclarations
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.cadence import Cadence, CommitLimits, spacing_s
from rlm.write_path.commit.link_policy import LinkDecider
from rlm.write_path.commit.price import Price
from rlm.write_path.core.led_partition import BacklogLimits, PartitionStatus
from rlm.write_path.core.led_views import StoredLog
from rlm.write_path.core.pacing import FAR_BEHIND_OBJECTS, LogManagerLimits
from rlm.write_path.core.partition_schedule import ScheduleIntervals
from rlm.write_path.metrics import StageTimes, WriteMetrics
from rlm.write_path.reading.resume_point import ResumePoint, end_of_log
from rlm.write_path.remote_wal_log_manager import RemoteWalLogManager, UploadListener, WritePathOwner
from rlm.write_path.runtime import Runtime
from rlm.write_path.uploads.combine_task import CombineRules, PretendedUploads, RLMWalCombineTask, SegmentCopies
from rlm.write_path.uploads.tail_uploads import TailAnswers, TailUploads

_RETRY_S, _RETRY_MAX_S = 0.2, 10.0
"""The back-off after a failed upload or read: it doubles from the first to the second."""
_LOOK_S: Final = 60.0
"""How often a partition is looked at without any sign of an append (guessed)."""
_READ_THREADS: Final = 2
"""Threads that read active segments from disk: KIP-1176's remote.wal.log.manager.thread.pool.size."""
_QUEUE_ITEMS: Final = 4096
"""Items in remoteSegmentQ at most: KIP-1176's remote.wal.log.manager.combiner.queue.size."""
_SPACING_LOOK_S: Final = 2.0
_UPLOAD_TIMEOUT_S: Final = 60.0
"""An upload that takes longer counts as failed (guessed; above the storage managers' `total.timeout.ms`)."""
_SHADOW_LOOK_S: Final = 0.1
"""In shadow no fetch shows what goes inline, so logs are read so often. In the model of `perf.cost` the share came
within ten points of what agents link; at 1 s it missed bursts."""


def log_manager_limits(settings: AgentSettings) -> LogManagerLimits:
    """Return how much the write path handles at once."""
    limits, quotas = settings.log_manager, settings.quotas
    upload_bytes, archive_interval_s = limits.combiner_task_upload_bytes, quotas.archive_interval_s
    if settings.is_shadow:
        archive_interval_s = min(archive_interval_s, _SHADOW_LOOK_S)
    return LogManagerLimits(
        ScheduleIntervals(_LOOK_S, _RETRY_S, _RETRY_MAX_S),
        CommitLimits(
            limits.combiner_task_interval_s,
            archive_interval_s,
            upload_bytes,
            limits.combiner_thread_pool_size,
            _RETRY_S,
            _RETRY_MAX_S,
            quotas.copy_max_bytes_per_second,
        ),
        _READ_THREADS,
        _QUEUE_ITEMS,
        QUEUE_BYTES,
        upload_bytes,
        settings.link.wait_max_s,
        bounded_open_files(),
        BacklogLimits(upload_bytes, quotas.backlog_max_bytes_per_second, _RETRY_S, _RETRY_MAX_S),
        settings.is_shadow,
    )


@dataclass(frozen=True, slots=True)
class WhyInline:
    """How a topic's recent bytes travelled from here, for people."""

    minute: float | None
    """The linked share of the last minute; None: nothing moved."""
    hour: float | None
    reasons: Mapping[str, int]
    """Bytes of the last hour that went inline, by `InlineReason`."""
    now: str
    """Why bytes go inline now, if they do."""

    @classmethod
    def of(cls, recent: RecentTraffic, now: str, now_s: float) -> Self:
        """Make it as of now."""
        reasons = {way: size for way, size in recent.moved(3600, now_s).most_common() if way != "linked"}
        return cls(recent.share(60, now_s), recent.share(3600, now_s), reasons, now)

    @property
    def told(self) -> str:
        """The text; empty if nothing went inline in the last minute."""
        if self.minute is None or self.minute == 1.0:
            return ""
        reasons = ", ".join(f"{size / 1e6:,.1f} MB {reason}" for reason, size in self.reasons.items())
        return f"{self.now} (last hour: {reasons})"


@dataclass(frozen=True, slots=True)
class _Running:
    """The parts that are made for each run."""

    manager: RemoteWalLogManager
    combine: RLMWalCombineTask


class WritePath(WritePathOwner):
    """The write path of the agent, over its restarts: what the log manager asks, and what others ask it."""

    uploads: type[RLMWalCombineTask] = RLMWalCombineTask
    """What makes objects and uploads them."""

    def __init__(self, around: AgentResources, kafka: KafkaFollowing, gaps: GapDeclarations) -> None:
        self._around = around
        self._kafka = kafka
        self._gaps = gaps
        self._loop = asyncio.get_running_loop()
        self._assignments: Sequence[Assignment] = ()
        self._running: _Running | None = None
        self._decider: LinkDecider | None = None
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._logs = self._led_logs()
        self._answers = TailAnswers(around.configuration.client)
        self.tails = TailUploads(around.identity.broker_id, self, self._answers, around.clocks.wall_ms)
        self._durable = self._durable_uploads()

    def _durable_uploads(self) -> DurableUploads | None:
        gateway = self._around.relaying.gateway
        return DurableUploads(self, gateway.durable) if gateway is not None and gateway.durable else None

    def _led_logs(self) -> LedLogs:
        around, metadata = self._around, self._kafka.metadata
        prices, takes_digests = around.configuration.prices, around.settings.link.takes_digests
        min_run_bytes = prices.get_break_even_bytes(around.configuration.store_prices)
        archive = archive_links(around.settings.archive, metadata.archive, prices)
        return LedLogs(metadata.store, self._stored_log, min_run_bytes, archive, takes_digests=takes_digests)

    async def run(self) -> None:
        """Upload until cancelled, and then what was read before, as far as the shutdown time allows.

        Raises the defect that ended it.
        """
        self._failure = self._loop.create_future()
        combine = self._make_combine_task()
        decider = self._decider = self._make_decider()
        manager = self._make_manager(combine, decider)
        self._running = _Running(manager, combine)
        spacing = asyncio.create_task(self._space_uploads(decider))
        flush_timeout_s = None
        try:
            running = manager.start()
            self._around.relaying.write_path.arrived(WritePathAnswers(manager, self._logs, self.failed))
            manager.assign(self._assignments)
            if self._durable is not None:
                self._durable.arrived()
            await asyncio.wait((running, self._failure), return_when=asyncio.FIRST_COMPLETED)
            await (self._failure if self._failure.done() else running)
        except asyncio.CancelledError:
            flush_timeout_s = self._around.settings.process.shutdown_timeout_s
            raise
        finally:
            if not self._failure.cancel() and not self._failure.cancelled():
                self._failure.exception()  # mark as retrieved: it was reported, or came second
            spacing.cancel()
            try:
                await manager.stop(flush_timeout_s)
            finally:
                self._leave(combine)

    async def _space_uploads(self, decider: LinkDecider) -> None:
        """Set every two seconds how far apart uploads must be at least, by the recent rates of all agents."""
        objects_per_s, told = self._kafka.metadata.objects_per_s, self._around.metrics.write.upload_spacing
        bound_per_s = self._around.settings.quotas.cluster_objects_per_second
        while True:
            decider.space_uploads(spacing_s(objects_per_s().values(), bound_per_s))
            told.set(decider.price.spacing_s)
            decider.price.reckon()
            await asyncio.sleep(_SPACING_LOOK_S)

    def _leave(self, combine: RLMWalCombineTask) -> None:
        self._around.relaying.write_path.left()
        self._running = None
        self._around.next_segment_id = combine.next_segment_id
        for assignment in self._assignments:
            self._around.relaying.leader.partition_released(assignment.topic_id_partition)
        if self._durable is not None:
            self._durable.left(self._assignments)

    def failed(self, defect: Exception) -> None:
        """Restart after a call met a defect."""
        self._loop.call_soon_threadsafe(self._fail, defect)

    def _fail(self, defect: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(defect)

    def assign(self, assignments: Sequence[Assignment]) -> None:
        """Take care of exactly these partitions from now on."""
        self._assignments = assignments
        self._tried(lambda manager: manager.assign(assignments))
        self.tails.assigned(assignments)
        if self._durable is not None:
            self._durable.assigned(assignments, self._known_topics())

    def topics_read(self) -> None:
        """Record that topics' settings are known: what agents themselves produce must not wait for leadership."""
        if self._durable is not None:
            self._durable.topics_known(self._known_topics())

    def _stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        return self._running.manager.stored_log(partition) if self._running else None

    # HurriedUploads, for tails and durable logs.

    def hurry(self, partition: TopicIdPartition, *, hurried: bool = True) -> None:
        self._tried(lambda manager: manager.hurry(partition, hurried=hurried))

    def uploaded_offset(self, partition: TopicIdPartition) -> int | None:
        return self._running.manager.uploaded_offset(partition) if self._running else None

    def when_published(self, segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None:
        self._tried(lambda manager: manager.when_published(segment_id, lambda: self._loop.call_soon_threadsafe(tell)))

    # WritePathOwner.

    def resume_point(self, assignment: Assignment) -> ResumePoint:
        return self._kafka.resume_point(assignment)

    def upload_resumed(self, assignment: Assignment, resume: ResumePoint) -> None:
        self._gaps.declare_begin(assignment, resume)

    def gaps_found(self, assignment: Assignment, gaps: Sequence[Gap]) -> None:
        if self._durable is not None:
            self._durable.gaps_found(assignment, gaps)
        self._gaps.declare_gaps(assignment, gaps)

    def ranges_not_wanted(self, assignment: Assignment, ranges: Sequence[OffsetRange], leader_epoch: int) -> None:
        self._gaps.declare_not_wanted(assignment, ranges, leader_epoch)

    def look_for_assignments(self) -> None:
        self._kafka.leadership.look_again()

    def hurried_log_settled(self, partition: TopicIdPartition) -> None:
        self.tails.settled(partition)
        if self._durable is not None:
            self._durable.settled(partition)

    def links_left_out(self) -> None:
        self._around.relaying.leader.links_left_out()

    # For metrics and `describe`, on other threads.

    def status(self) -> Mapping[TopicIdPartition, PartitionStatus]:
        """Return the led partitions; none while there is no log manager."""
        running = self._running
        return running.manager.status() if running is not None else {}

    def explain_inline(self) -> Mapping[str, WhyInline]:
        """Return for each topic led here how much of it is linked, and why bytes go inline."""
        running = self._running
        told = running.manager.explain_inline() if running is not None else {}
        recent, now_s = dict(self._around.relaying.traffic.recent), self._around.clocks.monotonic_s()
        ids = {one.topic: partition.topic_id for partition, one in self.status().items()}
        return {
            topic: WhyInline.of(recent.get(ids[topic]) or RecentTraffic(), why, now_s)
            for topic, why in told.items()
            if topic in ids
        }

    @property
    def break_even_bytes(self) -> int | None:
        """How many inline bytes cost as much as an object now; None before there was a log manager."""
        decider = self._decider
        return decider.price.break_even_bytes if decider is not None else None

    @property
    def link_round_ms(self) -> float | None:
        """How long an upload and a read take recently; None before the first, and if nothing is uploaded."""
        decider = self._decider
        return (decider.price.link_s * 1000 or None) if decider is not None else None

    @property
    def upload_ms(self) -> float | None:
        """How long uploads take recently; None before the first, and if nothing is uploaded."""
        decider = self._decider
        return (decider.price.upload_s * 1000 or None) if decider is not None else None

    def put_off(self) -> Mapping[TopicIdPartition, str]:
        """Return partitions that are not uploaded because the start is unknown, and why."""
        running = self._running
        return dict(running.manager.put_off) if running is not None else {}

    def is_under_way(self, segment_id: CombinedSegmentId) -> bool:
        """Whether the segment's upload is under way, see RLMWalCombineTask."""
        running = self._running
        return running is not None and running.combine.is_under_way(segment_id)

    def _tried(self, call: Callable[[RemoteWalLogManager], None]) -> None:
        """Call the log manager; its defect must not fail the caller, which is another part."""
        if self._running is None:
            return
        try:
            call(self._running.manager)
        except Exception as defect:
            self._fail(defect)

    def _make_combine_task(self) -> RLMWalCombineTask:
        around, gateway = self._around, self._around.relaying.gateway
        rules = CombineRules(_UPLOAD_TIMEOUT_S, around.settings.link.takes_digests)
        return self.uploads(
            SegmentCopies(around.relaying.storage, rules),
            around.publisher,
            around.next_segment_id,
            around.metrics.write,
            around.clocks,
            gateway.adoptable if gateway is not None else None,
        )

    def _reads_for(self, brokers: Collection[int]) -> Mapping[int, int | str]:
        return reads_for(brokers, self._around.relaying.zones, self._around.settings.hydration.share_min_readers)

    def _make_decider(self) -> LinkDecider:
        configuration, publication = self._around.configuration, self._around.publication
        pack_ratio = self._around.relaying.packing.ratio_of
        costs = replace(configuration.link_costs, reads_for=self._reads_for, pack_ratio=pack_ratio)
        price = Price(configuration.break_even_bytes, configuration.upload_wait_max_s, costs)
        limits, is_shadow = log_manager_limits(self._around.settings), self._around.settings.is_shadow
        decider = LinkDecider(price, Cadence(limits.commit), has_trials=not is_shadow)
        decider.is_off = lambda: publication.is_stalled
        decider.paused_because = self._around.relaying.pauses.find_reason
        return decider

    def _make_manager(self, combine: RLMWalCombineTask, decider: LinkDecider) -> RemoteWalLogManager:
        (stage_times, metrics), runtime = self._metrics(), Runtime(self._around.clocks)
        limits = log_manager_limits(self._around.settings)
        manager = RemoteWalLogManager(limits, combine, decider, stage_times, metrics, runtime, self)
        for listener in self._listeners():
            manager.add_listener(listener)
        return manager

    def _listeners(self) -> list[UploadListener]:
        """Return who gets to know what happens to the partitions led here, in this order."""
        listeners: list[UploadListener] = [self._around.relaying.leader, self.tails]
        if self._durable is not None:
            listeners.append(self._durable.published)
        return listeners

    def _metrics(self) -> tuple[StageTimes, WriteMetrics]:
        return self._around.relaying.stage_times, self._around.metrics.write

    def _known_topics(self) -> KnownTopics:
        return known_topics(self._kafka.topic_settings.table, self._kafka.replicas.topic_names)

    def close(self) -> None:
        """Wait for answers on their way; blocks."""
        self._answers.close()


class ShadowWritePath(WritePath):
    """The write path in shadow: it decides as ever, and `Shadow` counts what followers would have got.

    What it stores is for links alone, and it declares no gaps: the agent that replicates will see what is in no object.
    """

    def __init__(self, around: AgentResources, kafka: KafkaFollowing, gaps: GapDeclarations, shadow: Shadow) -> None:
        super().__init__(around, kafka, gaps)
        self._shadow = shadow

    def _durable_uploads(self) -> None:
        """Return None: nobody holds answers through an agent in shadow."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._follow_backlogs())
            await super().run()

    async def _follow_backlogs(self) -> None:
        far_bytes = FAR_BEHIND_OBJECTS * self._around.settings.log_manager.combiner_task_upload_bytes
        while True:
            if self._running is not None:
                await self._shadow.follow(self._running.manager.led(), far_bytes)
            await asyncio.sleep(_SPACING_LOOK_S)

    def assign(self, assignments: Sequence[Assignment]) -> None:
        assignments = [replace(one, archive=False, is_kept=False, is_durable=False) for one in assignments]
        self._shadow.set_led(assignments)
        super().assign(assignments)

    def resume_point(self, assignment: Assignment) -> ResumePoint:
        return end_of_log(assignment)

    def upload_resumed(self, assignment: Assignment, resume: ResumePoint) -> None:
        """Declare nothing."""

    def gaps_found(self, assignment: Assignment, gaps: Sequence[Gap]) -> None:
        """Declare nothing."""

    def ranges_not_wanted(self, assignment: Assignment, ranges: Sequence[OffsetRange], leader_epoch: int) -> None:
        """Declare nothing."""

    def bytes_left_out(self, assignment: Assignment, size: int) -> None:
        if self._running is not None:
            partition = assignment.topic_id_partition
            self._shadow.left_out(partition, size, self._running.manager.why_inline(partition))

    def _listeners(self) -> list[UploadListener]:
        return [self._shadow]


class PretendingWritePath(ShadowWritePath):
    """The write path in shadow without object storage: uploads are pretended, so no metric and no status has them."""

    uploads = PretendedUploads
    link_round_ms = None
    upload_ms = None

    def _metrics(self) -> tuple[StageTimes, WriteMetrics]:
        return StageTimes(CollectorRegistry()), WriteMetrics(CollectorRegistry())


def make_write_path(around: AgentResources, kafka: KafkaFollowing, gaps: GapDeclarations) -> WritePath:
    """Return the write path of an agent that replicates, or that is in shadow, with or without object storage."""
    shadow = around.relaying.shadow
    if shadow is None:
        return WritePath(around, kafka, gaps)
    kind = ShadowWritePath if around.settings.has_store else PretendingWritePath
    return kind(around, kafka, gaps, shadow)
