"""RemoteWalLogManager: uploads what led partitions append to object storage, and notifies others of it.

The flow, in this order: an append is noticed; the partition is due (`PartitionSchedule`); its RLMWalTask reads whole
batches (`LogReader`); they wait in remoteSegmentQ; RLMWalCombineTask makes one object of them and uploads it; the
listeners are notified (links, announcements); metadata is published in the order of the objects' sequence. What a log
that is far behind passes over goes another way (`BacklogUploads`).

`WritePathCore` and its `Pacing` decide without IO what to do, and when. `CommitLoop` and `Effects` carry it out: the
pools run RLMWalTask.run and RemoteWalStorageManager calls, and nothing else. All state belongs to the event loop.

It does not decide which partitions it leads: `assign` says so.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import structlog
from prometheus_client import Counter

from kafka_log.open_files import OpenFiles
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.errors import defect_site
from plugin.inline_reason import InlineReason
from rlm.write_path.assignment import Assignment
from rlm.write_path.backlog_uploads import BacklogUploads
from rlm.write_path.commit.link_policy import LinkDecider, LinkMode
from rlm.write_path.core.actions import (
    Action,
    AskAnew,
    CountLeftOut,
    CountLook,
    CountQueued,
    CountReadFailure,
    CountStored,
    DeclareGaps,
    DeclareNotWanted,
    PassOver,
    Release,
    TellLeftOut,
    TellSettled,
    TellStored,
    TellTruncated,
    Upload,
    Watch,
)
from rlm.write_path.core.led_partition import LedPartition, PartitionStatus, WritePathLoad, log_unfinished
from rlm.write_path.core.led_views import StoredLog
from rlm.write_path.core.pacing import LogManagerLimits, Look, UploadNow, Wait
from rlm.write_path.core.write_path_core import WritePathCore
from rlm.write_path.explanation import Explanation, explain
from rlm.write_path.metrics import StageTimes, WriteMetrics
from rlm.write_path.reading.append_watcher import AppendWatcher
from rlm.write_path.reading.log_task import LogTask
from rlm.write_path.reading.resume_point import ResumePoint, ResumeUnknownError
from rlm.write_path.reading.wal_task import LogReader, RLMWalTask
from rlm.write_path.runtime import Runtime
from rlm.write_path.uploads.combine_task import RLMWalCombineTask
from rlm.write_path.uploads.upload_listener import UploadListener

log = structlog.get_logger(__name__)

ResumePoints = Callable[[Assignment], ResumePoint]


class UploadListeners:
    """Notifies all listeners of the write path, in the order in which they were added."""

    def __init__(self, defects: Counter) -> None:
        self._defects = defects
        self.all: list[UploadListener] = []

    def tell_strictly(self, tell: Callable[[UploadListener], None]) -> None:
        """Call this function with each listener. Raises what they raise."""
        for listener in self.all:
            tell(listener)

    def tell(self, tell: Callable[[UploadListener], None]) -> None:
        """Call this function with each listener. A failing one stops neither the others nor uploads."""
        for listener in self.all:
            try:
                tell(listener)
            except Exception as error:
                self._defects.inc()
                log.error("upload_listener_failed", listener=type(listener).__name__, defect=defect_site(error))


class Wake:
    """A cheap event for one task: it sleeps until somebody wakes it or its time has come. Event loop only.

    asyncio.Event works for any number of tasks, but looks for the running loop at each wait, which is a system call in
    Python 3.11.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_set = False
        self._sleeper: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Wake the task. The event stays set until `clear`."""
        self._is_set = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def clear(self) -> None:
        """Reset the event."""
        self._is_set = False

    async def sleep(self, delay_s: float | None) -> None:
        """Sleep until woken, for at most so many seconds; None: without a limit."""
        if self._is_set:
            return
        loop = self._loop = self._loop or asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        timer = loop.call_later(delay_s, self.set) if delay_s is not None else None
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            if timer is not None:
                timer.cancel()


class Effects:
    """Carries out the actions of the write path's core (`rlm.write_path.core.actions`): files, watches, listeners,
    metrics.
    """

    def __init__(
        self,
        core: WritePathCore,
        limits: LogManagerLimits,
        combine_task: RLMWalCombineTask,
        stage_times: StageTimes,
        metrics: WriteMetrics,
        runtime: Runtime,
        resume_point: ResumePoints,
        ask: Callable[[], object],
    ) -> None:
        self._stage_times = stage_times
        self._metrics = metrics
        self._resume_point, self._ask_owner = resume_point, ask
        self.listeners = UploadListeners(metrics.listener_defects)
        self.open_files = OpenFiles(limits.open_files)
        self.watcher = AppendWatcher(runtime.directory_events())
        clock = runtime.clocks.monotonic_s
        self.reader = LogReader(runtime.pool(limits.task_threads, "rlm-wal-task"), self.watcher, clock)
        self._asking: asyncio.TimerHandle | None = None
        backlog_pool = runtime.pool(1, "rlm-backlog")
        self.backlog = BacklogUploads(core, combine_task, self.carry_out, clock, backlog_pool)

    def log_task(self, assignment: Assignment) -> LogTask:
        """Return the task that reads the log from where its upload continues. Raises ResumeUnknownError."""
        resume = self._resume_point(assignment)
        return RLMWalTask(assignment.topic_id_partition, assignment.directory, resume, self.open_files)

    def carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Watch(partition, directory):
                    self.watcher.watch(partition, directory)
                case Release(led):
                    self._release(led)
                case PassOver(led):
                    self._pass_over(led)
                case CountLeftOut() | CountLook() | CountQueued() | CountStored() | CountReadFailure():
                    self._count(action)
                case _:
                    self._tell(action)

    async def close(self, led: Iterable[LedPartition]) -> None:
        """Close the files and watches of these logs; waits for reads under way."""
        if self._asking is not None:
            self._asking.cancel()
        await self.reader.stop()
        self.backlog.close()
        for one in led:
            one.task.close()
        self.watcher.close()

    def _release(self, led: LedPartition) -> None:
        partition = led.assignment.topic_id_partition
        self.watcher.unwatch(partition)
        self.reader.release(led.task)
        self.backlog.release(partition)
        self.listeners.tell(lambda one: one.partition_released(partition))

    def _pass_over(self, led: LedPartition) -> None:
        rest = led.task.pass_over(led.followers_offset)
        if rest is None:
            return
        if led.assignment.is_kept:
            led.passed_over = self.backlog.add(led.assignment, rest)
            return
        for begin, end in rest.missing:
            led.left_out.add_range(begin, end)
        rest.close()

    def _tell(
        self,
        action: TellTruncated | TellStored | TellLeftOut | TellSettled | DeclareGaps | DeclareNotWanted | AskAnew,
    ) -> None:
        match action:
            case TellLeftOut():
                self.listeners.tell_strictly(lambda one: one.links_left_out())
            case TellStored(segment):
                self.listeners.tell(lambda one: one.segment_uploaded(segment))
            case TellTruncated(partition, offset):
                self.listeners.tell(lambda one: one.partition_truncated(partition, offset))
            case TellSettled(partition):
                self.listeners.tell_strictly(lambda one: one.hurried_log_settled(partition))
            case DeclareGaps(assignment, gaps):
                self.listeners.tell_strictly(lambda one: one.gaps_found(assignment, gaps))
            case DeclareNotWanted(assignment, ranges, leader_epoch):
                self.listeners.tell_strictly(lambda one: one.ranges_not_wanted(assignment, ranges, leader_epoch))
            case AskAnew(after_s) if after_s > 0:
                if self._asking is None:  # one question answers for all partitions
                    self._asking = asyncio.get_running_loop().call_later(after_s, self._ask)
            case AskAnew():
                self._ask_owner()

    def _ask(self) -> None:
        self._asking = None
        self._ask_owner()

    def _count(self, action: CountLeftOut | CountLook | CountQueued | CountStored | CountReadFailure) -> None:
        match action:
            case CountLeftOut(assignment, size_bytes):
                self._metrics.left_out_bytes.inc(size_bytes)
                self.listeners.tell_strictly(lambda one: one.bytes_left_out(assignment, size_bytes))
            case CountLook(_, found):
                self._metrics.looks.labels(found.value).inc()
            case CountQueued(outcome):
                for item in outcome.items:
                    self._stage_times.observe("queued", item.queued_s - item.seen_s)
                self._metrics.appended_bytes.inc(outcome.read_bytes)
            case CountStored(segment, started_s, now_s):
                if started_s is not None:
                    self._stage_times.stored(segment, started_s, now_s)
                self._metrics.uploaded_segments.inc()
                self._metrics.uploaded_bytes.inc(sum(len(item.records) for item in segment.items))
            case CountReadFailure(close_unread):
                self._metrics.read_failures.inc()
                if close_unread:
                    self.open_files.close_unread()


class CommitLoop:
    """Reads and uploads as `Pacing` says until it is cancelled, then uploads what was read, as time allows.

    Uploads run side by side, each in its own asyncio task. A defect of one ends the loop.
    """

    def __init__(
        self,
        core: WritePathCore,
        effects: Effects,
        combine_task: RLMWalCombineTask,
        clock: Callable[[], float],
    ) -> None:
        self._core = core
        self._effects = effects
        self._combine_task = combine_task
        self._clock = clock
        self._wake = Wake()
        self._uploads: set[asyncio.Task[None]] = set()
        self._defect: BaseException | None = None

    def wake(self) -> None:
        """Decide the next step again, because something happened."""
        self._wake.set()

    def fail(self, defect: BaseException) -> None:
        """End `run` with this exception."""
        self._defect = defect
        self._wake.set()

    def fail_with(self, ended: "asyncio.Task[None]") -> None:
        """End `run` if this asyncio task ended with an exception."""
        if not ended.cancelled() and (defect := ended.exception()) is not None:
            self.fail(defect)

    def append_seen(self, partition: TopicIdPartition) -> None:
        """Record that the partition's log was appended to."""
        if self._core.pacing.append_seen(partition, self._clock()):
            self._wake.set()

    @property
    def uploads(self) -> int:
        """How many uploads are under way."""
        return sum(not upload.done() for upload in self._uploads)

    async def run(self) -> None:
        """Read and upload until cancelled, or until a defect."""
        pacing = self._core.pacing
        while True:
            self._wake.clear()
            if self._defect is not None:
                raise self._defect
            match pacing.next_step(self._clock()):
                case UploadNow():
                    await self._read()
                    self._effects.carry_out(self._core.unwanted.drop_queued(self._clock()))
                    self._start(pacing.next_upload(self._clock()))
                case Look():
                    await self._read()
                    self._effects.carry_out(self._core.look(_unread_bytes, self._clock()))
                case Wait(delay_s):
                    await self._wake.sleep(delay_s)

    async def flush(self, deadline_s: float) -> None:
        """Upload what is queued, retrying failures, until everything is stored or the time is over."""
        pacing = self._core.pacing
        while (len(self._core.queue) or self._uploads) and self._defect is None:
            now_s = self._clock()
            if now_s >= deadline_s:
                break
            for upload in pacing.last_uploads(now_s):
                self._start(upload)
            wait_s = min(deadline_s - now_s, pacing.commit.back_off_s(now_s) or math.inf)
            if self._uploads:
                await asyncio.wait(self._uploads, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(wait_s)

    async def cancel_uploads(self) -> None:
        """Cancel uploads, after `run`; the result of one that runs in a thread is lost."""
        for upload in list(self._uploads):
            upload.cancel()
        await asyncio.gather(*self._uploads, return_exceptions=True)

    async def _read(self) -> None:
        reads = self._core.pacing.reads(self._clock())
        if reads is None:
            return
        self._effects.carry_out(reads.first)
        runs = [(read.led.task, read.seen_s) for read in reads.reads]
        outcomes = await self._effects.reader.run(runs, reads.budget_bytes)
        for read, outcome in zip(reads.reads, outcomes, strict=True):
            self._effects.carry_out(self._core.read_done(read, outcome, self._clock()))
            if outcome is None:
                self._core.pacing.commit.left_unread(
                    read.led.assignment.topic_id_partition, read.led.task.unread_bytes()
                )

    def _start(self, upload: Upload | None) -> None:
        if upload is not None:
            running = asyncio.get_running_loop().create_task(self._upload(upload))
            self._uploads.add(running)
            running.add_done_callback(self._uploads.discard)
            running.add_done_callback(self.fail_with)

    async def _upload(self, upload: Upload) -> None:
        segment = await self._combine_task.combine(upload.items)
        now_s = self._clock()
        if segment is None:
            self._core.upload_failed(upload, now_s)
        else:
            actions = self._core.upload_stored(upload, segment, now_s)
            self._effects.carry_out(actions)
        self._wake.set()


def _unread_bytes(led: LedPartition) -> int:
    return led.task.unread_bytes()


class RemoteWalLogManager:
    """The write path of one agent. For the event loop."""

    def __init__(
        self,
        limits: LogManagerLimits,
        combine_task: RLMWalCombineTask,
        decider: LinkDecider,
        stage_times: StageTimes,
        metrics: WriteMetrics,
        runtime: Runtime,
        resume_point: ResumePoints = lambda _assignment: ResumePoint(None),
        ask: Callable[[], object] = lambda: None,
    ) -> None:
        """`resume_point` returns which parts of a log must be uploaded, by default its active segment. It raises
        ResumeUnknownError to put that off until the next `assign`.

        `ask` is called to get new assignments: a follower fetches a log that is not known as led, or one was put off.
        """
        self._clock, self._wall_ms = runtime.clocks.monotonic_s, runtime.clocks.wall_ms
        self._decider = decider
        self._combine_task = combine_task
        self._core = core = WritePathCore(limits, decider)
        self._effects = effects = Effects(core, limits, combine_task, stage_times, metrics, runtime, resume_point, ask)
        self._loop = CommitLoop(core, effects, combine_task, self._clock)
        self._running: list[asyncio.Task[None]] = []

    def add_listener(self, listener: UploadListener) -> None:
        """Add a listener to be notified."""
        self._effects.listeners.all.append(listener)

    def start(self) -> "asyncio.Task[None]":
        """Start to upload. The returned task ends by itself only with a defect."""
        loop = asyncio.get_running_loop()
        self._effects.watcher.listen(self._loop.append_seen)
        draining = loop.create_task(self._effects.backlog.run(), name="backlog-uploads")
        draining.add_done_callback(self._loop.fail_with)
        main = loop.create_task(self._loop.run(), name="remote-wal-log-manager")
        self._running = [main, draining]
        return main

    async def stop(self, flush_timeout_s: float | None) -> None:
        """Upload what was read, within the time, then stop. None: upload nothing more (after a defect)."""
        if not self._running:
            return
        self._core.stopping()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        try:
            self._effects.watcher.ignore()
            if flush_timeout_s is not None:
                await self._loop.flush(self._clock() + flush_timeout_s)
                log_unfinished(self._core.led.values(), self._clock())
                self._effects.carry_out(self._core.unwanted.declare_all(self._clock()))
        finally:
            await self._loop.cancel_uploads()
            await self._effects.close(self._core.led.values())
            self._combine_task.close()

    def fail(self, defect: Exception) -> None:
        """End the task of `start` with this exception, which a call of this class raised."""
        self._loop.fail(defect)

    # Which partitions.

    def assign(self, assignments: Iterable[Assignment]) -> None:
        """Set the partitions to upload: exactly these."""
        self._effects.carry_out(self._core.assigned(assignments))
        self._take_on_some()

    def _take_on_some(self) -> None:
        """Take on a few partitions so that relaying continues meanwhile, then the next ones."""
        try:
            for assignment in self._core.to_take_on():
                self._take_on(assignment)
        except Exception as defect:
            self._loop.fail(defect)
            return
        if self._core.has_to_take_on:
            asyncio.get_running_loop().call_soon(self._take_on_some)
        self._loop.wake()

    def _take_on(self, assignment: Assignment) -> None:
        try:
            task = self._effects.log_task(assignment)
        except ResumeUnknownError as error:
            self._effects.carry_out(self._core.resume_unknown(assignment, str(error)))
        else:
            self._effects.carry_out(self._core.taken_on(assignment, task))

    @property
    def put_off(self) -> Mapping[TopicIdPartition, str]:
        """Partitions whose upload has not started, and why. Any thread may read it."""
        return self._core.put_off

    # What others ask.

    def mode_of(self, partition: TopicIdPartition) -> LinkMode:
        """Return how the newest bytes should travel to a follower that waits for them now."""
        led = self._core.led.get(partition)
        if led is None:
            self._effects.carry_out(self._core.not_led(partition))
            return LinkMode.OFF
        return self._decider.mode_of(led.assignment, self._clock())

    def fetched(self, follower_id: int, partition: TopicIdPartition, offset: int, size: int) -> None:
        """Record that a follower is about to get `size` bytes from this offset on, by link or inline."""
        self._core.pacing.fetched(follower_id, partition, offset, size, self._clock())

    def upload_expected(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether the batch at this offset will soon be stored: not yet stored, not far behind, nothing failing."""
        is_running = bool(self._running) and not self._running[0].done()  # it ends before those who ask
        return is_running and self._core.pacing.upload_expected(partition, offset, self._clock())

    def is_always_linked(self, partition: TopicIdPartition) -> bool:
        """Whether the topic's link policy is `always`: its bytes are linked whatever that costs."""
        led = self._core.led.get(partition)
        return led is not None and led.assignment.link_policy is LinkPolicy.ALWAYS

    def why_inline(self, partition: TopicIdPartition) -> InlineReason:
        """Return the reason for which the partition's bytes go inline, if they do."""
        led = self._core.led.get(partition)
        if led is None:
            return InlineReason.NOT_ENABLED
        return self._decider.why_inline(led.assignment, self._clock()) or InlineReason.LOOK

    def explain(self) -> dict[str, Explanation]:
        """Describe for each topic led here how its bytes travel, and why. On any thread."""
        of_topics = {led.assignment.topic: led.assignment for led in list(self._core.led.values())}
        now_s, wall_ms = self._clock(), self._wall_ms()
        return {topic: explain(self._decider, one, now_s, wall_ms) for topic, one in of_topics.items()}

    def links_wanted(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Start the upload now, because followers wait for links to these partitions."""
        self._core.pacing.links_wanted(partitions, self._clock())
        self._loop.wake()

    def hurry(self, partition: TopicIdPartition, *, hurried: bool = True) -> None:
        """Upload the log's records as soon as possible, however few, from now on; `hurried=False` ends that."""
        self._core.pacing.hurry(partition, self._clock(), hurried=hurried)
        if hurried and partition in self._core.led:
            self._loop.wake()

    def uploaded_offset(self, partition: TopicIdPartition) -> int | None:
        """Return the offset below which everything is stored, also by earlier agents; None if it is not led here."""
        led = self._core.led.get(partition)
        return None if led is None else led.stored_offset

    def find(self, topic_id: bytes | None, partition: int) -> TopicIdPartition | None:
        """Return the partition, if it is led here with the feature on."""
        return self._core.find(topic_id, partition)

    def stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        """Return the partition's log and how far it is stored; None when it is not led here."""
        led = self._core.led.get(partition)
        return None if led is None else led.stored_log()

    def status(self) -> dict[TopicIdPartition, PartitionStatus]:
        """Return the led partitions' states for `describe`. Any thread may call it."""
        now_s, is_pretended = self._clock(), self._core.in_shadow
        return {one: led.status(now_s, is_pretended=is_pretended) for one, led in list(self._core.led.items())}

    def led(self) -> Mapping[TopicIdPartition, LedPartition]:
        """Return the led partitions' states, which must not be changed. Event loop only."""
        return MappingProxyType(self._core.led)

    def load(self) -> WritePathLoad:
        """Return how much the write path holds now: bytes, uploads, open files. Event loop only."""
        queue, open_files = self._core.queue, self._effects.open_files
        return WritePathLoad(queue.size_bytes, self._loop.uploads, open_files.open_count)
