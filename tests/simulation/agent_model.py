"""One incarnation of an agent: the product's write path, put together as `agent.wiring.write_path` does it."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.publishable import Publishable
from metadata_topic.records.records import RemoteWalNodeRegistration
from metadata_topic.settings.topic_settings import LinkPolicy
from metadata_topic.store.archive.archive_store import ArchiveStore
from metadata_topic.store.store import RemoteWalMetadataStore
from plugin.segment_metadata import CombinedSegmentId
from plugin.wall_clock import Clocks
from rlm.lifecycle.failover import FailoverPlanner
from rlm.lifecycle.gap_declarations import GapDeclarations
from rlm.lifecycle.release import LongTermTier, Tiers
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.cadence import Cadence, CommitLimits
from rlm.write_path.commit.link_policy import LinkDecider
from rlm.write_path.commit.price import Outlook, Price
from rlm.write_path.core.pacing import LogManagerLimits
from rlm.write_path.core.partition_schedule import ScheduleIntervals
from rlm.write_path.metrics import StageTimes, WriteMetrics
from rlm.write_path.reading.log_task import LogTask, TaskOutcome
from rlm.write_path.reading.resume_point import ResumePoint, resume_point
from rlm.write_path.reading.wal_task import run_tasks
from rlm.write_path.remote_wal_log_manager import RemoteWalLogManager
from rlm.write_path.runtime import Runtime
from rlm.write_path.uploads.adoptable_records import AdoptableRecords, AdoptionLimits
from rlm.write_path.uploads.combine_task import RLMWalCombineTask
from rlm.write_path.uploads.segment_queue import MetaQueueItem, UploadedSegment
from rlm.write_path.uploads.upload_listener import UploadListener
from tests.kafka_log.log_writer import BatchKey, WrittenBatch
from tests.simulation.directory_events import SimulatedDirectoryEvents
from tests.simulation.led_log import LedLog
from tests.simulation.metadata_topic_model import Consumption, Publication, TopicModel
from tests.simulation.seeded_storage import TIMEOUT_S, PooledStorage, SeededStorage
from tests.simulation.virtual_time import Delays, SeededExecutor, VirtualTimeLoop

UPLOAD_BYTES = 1000
UPLOADS_MAX = 3
QUEUE_BYTES = 4 * UPLOAD_BYTES
LIMITS = LogManagerLimits(
    CommitLimits(
        interval_s=0.025, archive_interval_s=0.25, upload_bytes=UPLOAD_BYTES, max_in_flight=UPLOADS_MAX, retry_s=0.05,
        retry_max_s=1.0,
    ),
    schedule=ScheduleIntervals(process_s=2.0, retry_s=0.05, retry_max_s=1.0),
    queue_items=12,
    queue_bytes=QUEUE_BYTES,
    read_bytes=UPLOAD_BYTES,
    link_wait_max_s=0.5,
    open_files=3,
    backlog_bytes_per_s=40_000,
)  # fmt: skip
ADOPTION = AdoptionLimits(wait_max_s=0.5, age_max_s=4.0)
BREAK_EVEN_BYTES = 300
_POLICIES = (LinkPolicy.ALWAYS, LinkPolicy.COST)
NO_TIER = Tiers()
WALL_MS = 1_700_000_000_000


def wall_ms_at(loop_s: float) -> int:
    return WALL_MS + int(loop_s * 1000)


class WorldParts(Protocol):
    loop: VirtualTimeLoop
    logs: dict[TopicIdPartition, LedLog]
    storage: SeededStorage
    topic: TopicModel
    metrics: WriteMetrics
    stage_times: StageTimes

    def note(self, *what: object) -> None: ...

    def random(self, name: str) -> random.Random: ...

    def read_delays(self) -> Delays: ...

    def may_watch(self) -> bool: ...

    def assigned_anew(self, agent: "AgentModel") -> None: ...

    def heard(self, agent: "AgentModel", segment: UploadedSegment) -> None: ...

    def published(self, agent: "AgentModel", record: Publishable) -> None: ...


class ObservedCombineTask(RLMWalCombineTask):
    """Tells of each object whose upload succeeded."""

    on_stored: Callable[[CombinedSegmentId], None]

    async def combine(self, items: list[MetaQueueItem]) -> UploadedSegment | None:
        segment = await super().combine(items)
        if segment is not None:
            self.on_stored(segment.combined_segment_id)
        return segment


class AgentModel(UploadListener):
    """What is fixed here of the product is what `agent` fixes: what stands on what, and the order of a start."""

    def __init__(
        self,
        world: WorldParts,
        broker_id: int,
        incarnation: int,
        store: RemoteWalMetadataStore,
        archive: ArchiveStore | None = None,
        tiers: LongTermTier = NO_TIER,
    ) -> None:
        self._world, self._loop = world, world.loop
        self.broker_id, self.incarnation = broker_id, incarnation
        self.publication = Publication(world.topic, lambda record: world.published(self, record))
        self.store, self.archive = store, archive or ArchiveStore()
        self.consumption = Consumption(world.topic, store, self.archive)
        metrics = world.metrics
        clocks = Clocks(self._loop.time, self.wall_ms)
        first_id = CombinedSegmentId(broker_id, incarnation, 0)
        self.adoptable = AdoptableRecords(ADOPTION)
        self.uploading = SeededExecutor(self._loop, UPLOADS_MAX, world.storage.delays)
        self.combine = ObservedCombineTask(
            PooledStorage(world.storage, self.uploading),
            self.publication,
            first_id,
            metrics,
            clocks,
            self.adoptable,
            timeout_s=TIMEOUT_S,
        )
        self.combine.on_stored = self._object_stored
        self.pools: list[SeededExecutor] = []
        self.directory_events: list[SimulatedDirectoryEvents] = []
        runtime = Runtime(clocks, self._pool, self._directory_events)
        decider = LinkDecider(Price(lambda _led: Outlook(BREAK_EVEN_BYTES, 0.0, 1.0), 0.1), Cadence(LIMITS.commit))
        times, ask = world.stage_times, partial(world.assigned_anew, self)
        self.manager = RemoteWalLogManager(
            LIMITS, self.combine, decider, times, metrics, runtime, self.resume_point, ask
        )
        self.gaps = GapDeclarations(first_id, self.publication, store.declares, tiers, metrics, self.wall_ms)
        self.failover = FailoverPlanner(broker_id, store, self.gaps.declare_loss)
        for one in (self, self.gaps):
            self.manager.add_listener(one)
        self.is_living = True
        self._is_stopping = False
        self.assignments: list[Assignment] = []
        """As it was told last."""
        self.unstored: dict[TopicIdPartition, dict[BatchKey, WrittenBatch]] = {}
        """What neither the topic tells as stored, nor this incarnation has."""
        self.stored_ids: set[CombinedSegmentId] = set()
        self.looks: dict[LogTask, tuple[int, float]] = {}
        """How many cuts of the log a task has seen at least, and when that was told."""
        self.cuts_at_start: dict[TopicIdPartition, int] = {}
        self.begun: dict[TopicIdPartition, BatchKey] = {}
        """Where it began with the upload of a log: what older leaders wrote below that it does not take for wanted."""
        self.gaps_declared = 0
        """How often it met that."""
        self.passed_over: set[LogTask] = set()
        """What was read of them."""
        self.on_object_stored: Callable[[CombinedSegmentId], None] = lambda _segment_id: None

    def resume_point(self, assignment: Assignment) -> ResumePoint:
        resume = resume_point(self.store, self.archive, assignment)
        self._note_resumed(assignment, resume)
        self.gaps.declare_begin(assignment, resume)
        return resume

    def start(self) -> None:
        self.publication.publish(
            RemoteWalNodeRegistration(self.broker_id, self.incarnation, self.broker_id, self.wall_ms())
        )
        self.main = self.manager.start()

    async def stop(self, flush_timeout_s: float) -> None:
        """In order; what is not published by then is lost."""
        self._is_stopping = True
        await self.manager.stop(flush_timeout_s)
        self.gaps.close()
        self._dead()

    async def crash(self, rng: random.Random) -> tuple[int, int]:
        """Nothing more happens. How many writes took effect all the same, and how many did not."""
        effects = [0, 0]

        def takes_effect() -> bool:
            made = rng.random() < 0.5
            effects[not made] += 1
            return made

        self._dead()
        self.uploading.crash(takes_effect)
        for pool in self.pools:
            pool.crash(lambda: False)
        await self.manager.stop(None)  # what it holds of files and timers
        self.gaps.close()
        return effects[0], effects[1]

    def _dead(self) -> None:
        self.is_living = False
        self.consumption.die()
        for events in self.directory_events:
            events.close()

    def assign(self, led: Iterable[LedLog]) -> None:
        self.assignments = [
            Assignment(log.partition, "t", log.path, _POLICIES[log.partition.partition % 2], 20, log.is_archived)
            for log in led
        ]
        self.manager.assign(self.assignments)

    @property
    def led(self) -> tuple[TopicIdPartition, ...]:
        return tuple(assignment.topic_id_partition for assignment in self.assignments)

    def declare_dead(self, partition: TopicIdPartition) -> None:
        """As `agent.wiring.lifecycle` does it from time to time."""
        from kafka_log.broker_files.leader_epoch_checkpoint import read_leader_epochs
        from metadata_topic.records.errors import PublicationBacklogFullError

        led = self._world.logs[partition]
        epochs = read_leader_epochs(led.path)
        for update in self.failover.plan(partition, epochs, self.wall_ms(), lambda: led.leaders):
            try:
                self.publication.publish(update)
            except PublicationBacklogFullError:
                self.failover.plan_again(update)

    def _note_resumed(self, assignment: Assignment, resume: ResumePoint) -> None:
        log = self._world.logs[assignment.topic_id_partition]
        if not self._says_begun(log.partition):
            self.begun.pop(log.partition, None)
        if resume.is_first:
            log.begin = resume.next_offset
            self.begun[log.partition] = BatchKey(resume.leader_epochs.latest_epoch, resume.next_offset or 0)
        # Where a new leader has not told its files of its epoch, only a look at the log's end shows what it lacks.
        self.cuts_at_start[log.partition] = len(log.cuts) if log.has_told_epoch else 0

    def _says_begun(self, partition: TopicIdPartition) -> bool:
        """Whether its word of where the upload began is what it goes on by, whatever others said without the topic."""
        begun = self.begun.get(partition)
        return begun in [BatchKey(gap.leader_epoch, gap.to_offset) for gap in self.store.declared_gaps(partition)]

    # UploadListener.

    def gaps_found(self, assignment: Assignment, gaps: Any) -> None:
        self.gaps_declared += 1

    def segment_uploaded(self, segment: UploadedSegment) -> None:
        if self.is_living:
            self._world.heard(self, segment)

    def partition_truncated(self, partition: TopicIdPartition, offset: int) -> None:
        self._world.note("truncated", partition.partition, offset)

    # The machine.

    def wall_ms(self) -> int:
        return wall_ms_at(self._loop.time())

    def _object_stored(self, segment_id: CombinedSegmentId) -> None:
        if self.is_living:
            self.stored_ids.add(segment_id)
            self.on_object_stored(segment_id)

    def _directory_events(self) -> SimulatedDirectoryEvents:
        events = SimulatedDirectoryEvents(self._loop, self._world.may_watch)
        self.directory_events.append(events)
        return events

    def _pool(self, threads: int, name: str) -> SeededExecutor:
        pool = SeededExecutor(self._loop, threads, self._world.read_delays, self._looked)
        pool.around = self._look if name != "rlm-backlog" else self._look_back
        self.pools.append(pool)
        return pool

    def _look_back(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        self.passed_over.update(task for task, _ in arguments[0])
        return self._look(function, arguments)

    def _look(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Remember how much of what happened to the logs before a task's run it must have seen."""
        result = function(*arguments)
        if function is run_tasks:
            runs, outcomes = arguments[0], result
            seen = {
                task: len(self._world.logs[task.topic_id_partition].cuts)
                for (task, _), outcome in zip(runs, outcomes, strict=True)
                if isinstance(outcome, TaskOutcome)
                and not task.missing
                and _sees_the_end(outcome, self._world.logs[task.topic_id_partition])
            }
            return _Looked(outcomes, seen)
        return result

    def _looked(self, _function: Callable[..., Any], _arguments: tuple[Any, ...], result: Any) -> None:
        if isinstance(result, _Looked) and not self._is_stopping:  # then nobody waits for what was read
            for task, cuts in result.seen.items():
                self.looks[task] = (cuts, self._loop.time())

    def cuts_seen(self, partition: TopicIdPartition) -> int:
        """How many of the log's cuts it must know by now."""
        led = self.manager.led()[partition]
        cuts, told_s = self.looks.get(led.task, (0, 0.0))
        return max(cuts if told_s < self._loop.time() else 0, self.cuts_at_start[partition])


def _sees_the_end(outcome: TaskOutcome, log: LedLog) -> bool:
    """Whether it must know of all that was cut off.

    A torn batch may stand in the place of that; and a deleted segment that is open is read to its end before others.
    """
    present = log.log.present.keys()
    found = {BatchKey(item.leader_epoch, batch.base_offset) for item in outcome.items for batch in item.batches}
    return not log.log.is_torn and found <= present


class _Looked(list[Any]):
    """Outcomes of `run_tasks`."""

    def __init__(self, outcomes: list[Any], seen: dict[LogTask, int]) -> None:
        super().__init__(outcomes)
        self.seen = seen
