"""The write path as a part of the agent: the log manager and its parts, made again for each run.

A log manager that met a defect is dropped as if its process had been killed: what was under way is uploaded again from
where the metadata topic says, under new sequence numbers, and links to what it had stored are forgotten. The sequence
continues, because no key is ever written twice. An orderly end uploads what was read before.

Belongs to the event loop, except `failed`, `status`, `put_off`, `is_under_way` and `logs`.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import structlog

from agent.client_connections import ClientConnections
from agent.descriptors import bounded_open_files
from agent.settings.agent_settings import AgentSettings
from agent.wiring.durable_uploads import DurableUploads, KnownTopics
from agent.wiring.surroundings import Kept, Surroundings
from agent.wiring.upload_spacing import UploadSpacing
from kafka_log.topic_partition import TopicIdPartition
from plugin.segment_metadata import CombinedSegmentId
from replication.leader.guarded_write_path import WritePathAnswers
from replication.leader.link_index import StoredLogs
from replication.leader.zones import reads_for
from replication.wire.metrics import RecentTraffic
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.group_commit import CommitLimits
from rlm.write_path.commit.link_policy import CostLimits, LinkDecider
from rlm.write_path.commit.partition_schedule import ScheduleIntervals
from rlm.write_path.core.led_partition import PartitionStatus
from rlm.write_path.core.led_views import StoredLog
from rlm.write_path.core.log_manager_limits import LogManagerLimits
from rlm.write_path.core.passed_over import BacklogLimits
from rlm.write_path.hooks import WritePathHooks
from rlm.write_path.machine import Machine, thread_pool
from rlm.write_path.reading.gap_listener import GapListener
from rlm.write_path.reading.resume_point import ResumePoint
from rlm.write_path.remote_wal_log_manager import RemoteWalLogManager
from rlm.write_path.uploads.combine_task import CombineRules, RLMWalCombineTask
from rlm.write_path.uploads.tail_uploads import Answer, TailUploads

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WritePathContext:
    """What the write path needs from the part that follows Kafka."""

    resume: Callable[[Assignment], ResumePoint]
    gaps: GapListener
    on_unknown_partition: Callable[[], None]
    answer: Answer
    """Takes answers to requests for tails."""
    logs: Callable[[Callable[[TopicIdPartition], StoredLog | None]], StoredLogs]
    """Makes the led logs with their metadata, from how far they are stored."""
    topics: Callable[[], KnownTopics]
    """Returns the topics known now; used once Kafka has said what is led."""
    objects_per_s: Callable[[], Mapping[int, float]]
    """Returns the recent rate of each agent that uploads."""


def log_manager_limits(settings: AgentSettings) -> LogManagerLimits:
    """Return how much the write path handles at once."""
    limits, quotas = settings.log_manager, settings.quotas
    retry_s, retry_max_s = limits.task_retry_interval_s, limits.task_retry_interval_max_s
    upload_bytes = limits.combiner_task_upload_bytes
    return LogManagerLimits(
        ScheduleIntervals(limits.task_interval_s, retry_s, retry_max_s),
        CommitLimits(
            limits.combiner_task_interval_s,
            quotas.archive_interval_s,
            upload_bytes,
            limits.combiner_thread_pool_size,
            retry_s,
            retry_max_s,
            quotas.copy_max_bytes_per_second,
        ),
        limits.thread_pool_size,
        limits.combiner_queue_size,
        limits.combiner_queue_bytes,
        upload_bytes,
        settings.link.wait_max_s,
        bounded_open_files(quotas.open_files),
        BacklogLimits(upload_bytes, quotas.backlog_max_bytes_per_second, retry_s, retry_max_s),
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
    spacing: UploadSpacing


class WritePath:
    """The write path of the agent, over its restarts. See the module's theory."""

    def __init__(self, around: Surroundings, kept: Kept, context: WritePathContext) -> None:
        self._around = around
        self._kept = kept
        self._context = context
        self.next_segment_id = kept.next_segment_id
        """The first id of the next run."""
        self._loop = asyncio.get_running_loop()
        self._assignments: Sequence[Assignment] = ()
        self._running: _Running | None = None
        self._decider: LinkDecider | None = None
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self.logs = context.logs(self._stored_log)
        self.tails = TailUploads(around.identity.broker_id, self, context.answer, around.clocks.wall_ms)
        gateway = around.relaying.gateway
        self._durable = DurableUploads(self, gateway.durable) if gateway is not None and gateway.durable else None

    async def run(self) -> None:
        """Upload until cancelled, and then what was read before, as far as the shutdown time allows.

        Raises the defect that ended it.
        """
        self._failure = self._loop.create_future()
        combine = self._make_combine_task()
        decider = self._decider = self._make_decider()
        manager = self._make_manager(combine, decider)
        bound_per_s = self._around.settings.quotas.cluster_objects_per_second
        told = self._kept.metrics.write.upload_spacing
        spacing = UploadSpacing(decider, self._context.objects_per_s, bound_per_s, told)
        self._running = _Running(manager, combine, spacing)
        flush_timeout_s = None
        try:
            running = manager.start()
            self._around.relaying.write_path.arrived(WritePathAnswers(manager, self.logs, self.failed))
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
            try:
                await manager.stop(flush_timeout_s)
            finally:
                self._leave(combine)

    def _leave(self, combine: RLMWalCombineTask) -> None:
        self._around.relaying.write_path.left()
        if self._running is not None:
            self._running.spacing.end()
        self._running = None
        self.next_segment_id = combine.next_segment_id
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
            self._durable.assigned(assignments, self._context.topics())

    def topics_read(self) -> None:
        """Record that topics' settings are known: what agents themselves produce must not wait for leadership."""
        if self._durable is not None:
            self._durable.topics_known(self._context.topics())

    def _stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        return self._running.manager.stored_log(partition) if self._running else None

    # HurriedUploads, for tails and durable logs.

    def hurry(self, partition: TopicIdPartition, *, hurried: bool = True) -> None:
        self._tried(lambda manager: manager.hurry(partition, hurried=hurried))

    def uploaded_offset(self, partition: TopicIdPartition) -> int | None:
        return self._running.manager.uploaded_offset(partition) if self._running else None

    def when_published(self, segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None:
        self._tried(lambda manager: manager.when_published(segment_id, lambda: self._loop.call_soon_threadsafe(tell)))

    def came_freely(self, partition: TopicIdPartition, size: int) -> None:
        self._tried(lambda manager: manager.came_freely(partition, size))

    def _settled(self, partition: TopicIdPartition) -> None:
        self.tails.settled(partition)
        if self._durable is not None:
            self._durable.settled(partition)

    # For metrics and `describe`, on other threads.

    def status(self) -> Mapping[TopicIdPartition, PartitionStatus]:
        """Return the led partitions; none while there is no log manager."""
        running = self._running
        return running.manager.status() if running is not None else {}

    def why(self) -> Mapping[str, WhyInline]:
        """Return for each topic led here how much of it is linked, and why bytes go inline."""
        running = self._running
        told = running.manager.told_why() if running is not None else {}
        recent, now_s = dict(self._around.relaying.metrics.traffic.recent), self._around.clocks.monotonic_s()
        ids = {one.topic: partition.topic_id for partition, one in self.status().items()}
        return {
            topic: WhyInline.of(recent.get(ids[topic]) or RecentTraffic(), why, now_s)
            for topic, why in told.items()
            if topic in ids
        }

    @property
    def break_even_bytes(self) -> int | None:
        """See `LinkDecider.break_even_bytes`; None before there was a log manager."""
        decider = self._decider
        return decider.break_even_bytes if decider is not None else None

    @property
    def link_round_ms(self) -> float | None:
        """How long an upload and a read take recently; None before the first."""
        return (self._decider.link_ms or None) if self._decider is not None else None

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
        around, kept, limits = self._around, self._kept, self._around.settings.log_manager
        pool = thread_pool(limits.combiner_thread_pool_size, "rlm-wal-combine")
        return RLMWalCombineTask(
            around.relaying.storage,
            kept.publisher,
            self.next_segment_id,
            pool,
            kept.metrics.write,
            around.clocks,
            CombineRules(limits.upload_timeout_s, around.settings.link.takes_digests),
            around.relaying.gateway.adoptable if around.relaying.gateway is not None else None,
        )

    def _reads_for(self, brokers: Collection[int]) -> Mapping[int, int | str]:
        return reads_for(brokers, self._around.relaying.zones, self._around.settings.hydration.share_min_readers)

    def _make_decider(self) -> LinkDecider:
        configuration, publication = self._around.configuration, self._kept.publication
        interval_s = self._around.settings.log_manager.combiner_task_interval_s
        decider = LinkDecider(
            CostLimits(configuration.break_even_bytes, interval_s, upload_wait_max_s=configuration.upload_wait_max_s),
            replace(configuration.link_costs, reads_for=self._reads_for),
            ClientConnections(configuration.broker.client_ports).sample,
        )
        decider.is_off = lambda: publication.is_stalled
        return decider

    def _make_manager(self, combine: RLMWalCombineTask, decider: LinkDecider) -> RemoteWalLogManager:
        around, kept, context, leader = self._around, self._kept, self._context, self._around.relaying.leader
        hooks = WritePathHooks(
            context.resume,
            context.gaps if self._durable is None else self._durable.told_of_gaps(context.gaps),
            context.on_unknown_partition,
            self._settled,
            lambda: leader.replication_is_pending,
            leader.links_left_out,
        )
        limits, stage_times = log_manager_limits(around.settings), around.relaying.stage_times
        machine = Machine(around.clocks)
        manager = RemoteWalLogManager(limits, combine, decider, stage_times, kept.metrics.write, machine, hooks)
        manager.add_listener(leader)
        manager.add_listener(self.tails)
        if self._durable is not None:
            manager.add_listener(self._durable.published)
        return manager
