"""RemoteWalLogManager: takes what led partitions append to object storage, and tells others what is there.

The flow, in this order: an append is noticed; the partition is due (`PartitionSchedule`); its RLMWalTask reads whole
batches (`LogReader`); they wait in remoteSegmentQ; RLMWalCombineTask makes one object of them and uploads it; the
listeners learn of it (links, announcements); metadata is published in the order of the objects' sequence. What a log
that is far behind passes over goes another way (`BacklogUploads`).

Holds true: a partition's batches are uploaded in the order of its log, or anew after a failure; `uploaded_offset` never
counts a batch that is not stored; tasks do not run while the queue is full. All state belongs to the event loop; the
thread pools run RLMWalTask.run and RemoteWalStorageManager calls, and nothing else.

It does not decide which partitions it leads: `assign` is told.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from types import MappingProxyType

import structlog

from kafka_log.errors import LogDirectoryError
from kafka_log.open_files import OpenFiles
from kafka_log.topic_partition import TopicId, TopicIdPartition
from rlm.write_path.append_watcher import AppendWatcher
from rlm.write_path.assignment import Assignment
from rlm.write_path.backlog_uploads import BacklogUploads
from rlm.write_path.combine_task import RLMWalCombineTask
from rlm.write_path.gap_listener import NO_GAPS, GapListener
from rlm.write_path.group_commit import Gather, GroupCommit, Load, Step, UploadNow, Urgency, Wait
from rlm.write_path.led_partition import LedPartition, PartitionStatus, WritePathLoad, tell_unfinished
from rlm.write_path.led_views import StoredLog
from rlm.write_path.link_policy import LinkDecider, LinkMode
from rlm.write_path.log_manager_limits import LogManagerLimits
from rlm.write_path.log_reader import LogReader
from rlm.write_path.log_task import Outcome, ReadError, Run, TaskOutcome
from rlm.write_path.machine import THIS_MACHINE, Machine
from rlm.write_path.metrics import StageTimes, WriteMetrics
from rlm.write_path.partition_schedule import PartitionSchedule
from rlm.write_path.resume_point import ResumePoint, ResumeUnknownError
from rlm.write_path.segment_queue import MetaQueueItem, RemoteSegmentQueue
from rlm.write_path.upload_listener import UploadListener, UploadListeners
from rlm.write_path.uploaded_segment import UploadedSegment
from rlm.write_path.wal_task import RLMWalTask

log = structlog.get_logger(__name__)

_LOOK_AGAIN_S = 1.0
"""After so long it is looked anew for where a log's upload goes on."""
_TAKEN_ON_AT_ONCE = 32
"""To find where a log goes on takes some tenths of a millisecond."""
_FAR_BEHIND_OBJECTS = 8
"""A log with more than so many objects' bytes to read goes on where its followers are: links are no use before."""
_PARTITIONS_PER_RUN = 256
"""So many due partitions are read at a time."""


class RemoteWalLogManager:
    """Owns the led partitions' tasks, the queue and the uploads. Create and use it in the event loop."""

    def __init__(
        self,
        limits: LogManagerLimits,
        combine_task: RLMWalCombineTask,
        decider: LinkDecider,
        stage_times: StageTimes,
        metrics: WriteMetrics,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        self._limits = limits
        self._combine_task = combine_task
        self._decider = decider
        self._stage_times = stage_times
        self._metrics = metrics
        self._clock = clock = machine.monotonic_s
        self._listeners = UploadListeners(metrics.listener_defects)
        self._schedule = PartitionSchedule(limits.schedule)
        self._commit = GroupCommit(limits.commit)
        self._queue = RemoteSegmentQueue(limits.queue_items, limits.queue_bytes)
        self._partitions: dict[TopicIdPartition, LedPartition] = {}
        self._to_take_on: deque[Assignment] = deque()
        self._watcher = AppendWatcher(machine.directory_events())
        self._open_files = OpenFiles(limits.open_files)
        self._reader = LogReader(machine.pool(limits.task_threads, "rlm-wal-task"), self._watcher, clock)
        self._appended: set[TopicIdPartition] = set()
        backlog_pool = machine.pool(1, "rlm-backlog")
        self._backlog = BacklogUploads(limits.backlog, combine_task, lambda: self.gaps, clock, backlog_pool)
        self._backlog.on_stored, self._backlog.on_void = self._backlog_stored, self._take_on_anew
        self._wake = asyncio.Event()
        self._uploads: set[asyncio.Task[None]] = set()
        self._defect: BaseException | None = None
        self._unknown: set[TopicIdPartition] = set()
        self._hurried: set[TopicIdPartition] = set()
        self._main: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self.resume: Callable[[Assignment], ResumePoint] = lambda _assignment: ResumePoint(None)
        """What of a log is to be uploaded. Raises ResumeUnknownError: then it is put off until the next `assign`."""
        self.gaps: GapListener = NO_GAPS
        """Told what cannot be uploaded any more."""
        self.put_off: dict[TopicIdPartition, str] = {}
        """Partitions that were not taken on, and why. Other threads may look."""
        self.on_unknown_partition: Callable[[], None] = lambda: None
        """Called to be assigned anew: a follower fetches a partition that is not known as led, or one was put off."""
        self.on_hurried_settled: Callable[[TopicIdPartition], None] = lambda _partition: None
        """Called when the log of a hurried partition was read and nothing of it was left to upload."""
        self.replication_is_pending: Callable[[], bool] = lambda: False
        """Whether followers have yet to take something that is stored."""

    def add_listener(self, listener: UploadListener) -> None:
        """Tell this one, too."""
        self._listeners.add(listener)

    def start(self) -> "asyncio.Task[None]":
        """Begin to process partitions. The task never ends by itself, unless by a defect."""
        loop = asyncio.get_running_loop()
        self._watcher.listen(self._append_seen)
        self._draining = loop.create_task(self._backlog.run(), name="backlog-uploads")
        self._draining.add_done_callback(self._upload_ended)
        self._main = loop.create_task(self._run(), name="remote-wal-log-manager")
        return self._main

    async def stop(self, flush_timeout_s: float | None) -> None:
        """Upload what was read, as far as the time allows, then stop. None, after a defect: upload nothing more."""
        if self._main is None:
            return
        self._to_take_on.clear()
        ending = [task for task in (self._main, self._draining) if task is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        try:
            self._watcher.ignore()
            if flush_timeout_s is not None:
                await self._flush(self._clock() + flush_timeout_s)
        finally:
            for upload in list(self._uploads):
                upload.cancel()
            await asyncio.gather(*self._uploads, return_exceptions=True)
            await self._reader.stop()
            self._backlog.close()
            for led in self._partitions.values():
                led.task.close()
            self._combine_task.close()
            self._watcher.close()

    async def _flush(self, deadline_s: float) -> None:
        """Upload what is queued, and anew what fails, until all is stored or the time is over."""
        while (len(self._queue) or self._uploads) and self._defect is None and (now_s := self._clock()) < deadline_s:
            back_off_s = self._commit.back_off_s(now_s)
            while len(self._queue) and not back_off_s and not self._commit.is_full:
                self._start_upload(now_s)
            wait_s = min(deadline_s - now_s, back_off_s or math.inf)
            if self._uploads:
                await asyncio.wait(self._uploads, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(wait_s)
        tell_unfinished(self._partitions.values(), self._clock())

    # Which partitions.

    def assign(self, assignments: Iterable[Assignment]) -> None:
        """Take care of exactly these partitions from now on."""
        wanted = {assignment.topic_id_partition: assignment for assignment in assignments}
        released = [known for known in self._partitions if known not in wanted]
        if released or wanted.keys() - self._partitions.keys():
            log.info("led_partitions_changed", before=len(self._partitions), released=len(released), now=len(wanted))
        for partition in released:
            self._release(partition)
        for partition in self.put_off.keys() - wanted.keys():
            del self.put_off[partition]
        self._to_take_on.clear()
        for partition, assignment in wanted.items():
            led = self._partitions.get(partition)
            if led is None or led.assignment.directory != assignment.directory:
                if led is not None:
                    self._release(partition)
                self._to_take_on.append(assignment)
            else:
                led.assignment = assignment
        self._take_on_some()

    def _take_on_some(self) -> None:
        """So many that relaying goes on meanwhile; then the next ones."""
        try:
            for _ in range(min(len(self._to_take_on), _TAKEN_ON_AT_ONCE)):
                self._take_on(self._to_take_on.popleft())
        except Exception as defect:
            self._defect = defect
        if self._to_take_on and self._defect is None:
            asyncio.get_running_loop().call_soon(self._take_on_some)
        self._wake.set()

    def _take_on(self, assignment: Assignment) -> None:
        partition = assignment.topic_id_partition
        try:
            resume = self.resume(assignment)
        except ResumeUnknownError as error:
            self.put_off[partition] = str(error)
            self._metrics.resumes_put_off.inc()
            log.warning("resume_offset_unknown", partition=str(partition), error=str(error), consequence="inline")
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self.on_unknown_partition)
            return
        self.put_off.pop(partition, None)
        self.gaps.resumed(assignment, resume)
        task = RLMWalTask(partition, assignment.directory, resume, self._open_files)
        self._partitions[partition] = LedPartition(assignment, task)
        self._unknown.discard(partition)
        self._watcher.watch(partition, assignment.directory)
        self._schedule.add(partition)

    def _release(self, partition: TopicIdPartition) -> None:
        led = self._partitions.pop(partition)
        self._appended.discard(partition)
        self._hurried.discard(partition)
        self._schedule.remove(partition)
        self._watcher.unwatch(partition)
        self._queue.discard(partition)
        self._reader.release(led.task)
        self._backlog.release(partition)
        self._listeners.partition_released(partition)

    def _take_on_anew(self, partition: TopicIdPartition) -> None:
        """What is known of the log here does not hold any more; the metadata topic tells where it goes on."""
        self._release(partition)
        self.on_unknown_partition()

    # What others ask.

    def mode_of(self, partition: TopicIdPartition, size: int) -> LinkMode:
        """How `size` bytes should travel to a follower that waits for them now."""
        led = self._partitions.get(partition)
        if led is None:
            if partition not in self._unknown:
                self._unknown.add(partition)
                self.on_unknown_partition()
            return LinkMode.OFF
        policy, bound_ms = led.assignment.link_policy, led.assignment.latency_bound_ms
        return self._decider.mode(policy, bound_ms, size, self._clock())

    def fetched(self, follower_id: int, partition: TopicIdPartition, offset: int, size: int) -> None:
        """A follower is about to be sent `size` bytes from this offset on, one way or the other."""
        led = self._partitions.get(partition)
        if led is None:
            return
        led.followers_offset = max(led.followers_offset, offset)
        if offset >= led.uploaded_offset:
            self._decider.fetched(follower_id, size, self._clock())

    def upload_expected(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether the batch at this offset is about to be stored: not yet stored, not far behind, nothing failing."""
        led = self._partitions.get(partition)
        return (
            led is not None
            and self._main is not None
            and not self._main.done()  # it ends before those who ask
            and not led.is_failing
            and offset >= led.uploaded_offset
            and led.backlog_bytes <= 2 * self._limits.commit.upload_bytes
            and self._commit.is_prompt(self._limits.link_wait_max_s, self._clock())
        )

    def links_wanted(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Followers wait for these partitions' links: upload now."""
        for partition in partitions:
            led = self._partitions.get(partition)
            if led is not None and led.is_settled:
                self._append_seen(partition)
        self._wake.set()

    def hurry(self, partition: TopicIdPartition, *, hurried: bool = True) -> None:
        """Upload what the partition's log holds as soon as can be, however little it is, until told otherwise."""
        if not hurried or partition not in self._partitions:
            self._hurried.discard(partition)
            return
        self._hurried.add(partition)
        self._append_seen(partition)

    def uploaded_offset(self, partition: TopicIdPartition) -> int | None:
        """All below is stored, by this agent or those before; None when the partition is not led here."""
        led = self._partitions.get(partition)
        return None if led is None else led.stored_offset

    def find(self, topic_id: bytes | None, partition: int) -> TopicIdPartition | None:
        """The partition, if it is led here with the feature on."""
        if topic_id is None:
            return None
        wanted = TopicIdPartition(TopicId(topic_id), partition)
        return wanted if wanted in self._partitions else None

    def stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        """The partition's log and how far it is stored; None when it is not led here."""
        led = self._partitions.get(partition)
        return None if led is None else led.stored_log()

    def status(self) -> dict[TopicIdPartition, PartitionStatus]:
        """The led partitions, for `describe`. May be called on other threads."""
        return {partition: led.status(self._clock()) for partition, led in list(self._partitions.items())}

    def led(self) -> Mapping[TopicIdPartition, LedPartition]:
        """The led partitions as they are, to look at and not to change. Event loop only."""
        return MappingProxyType(self._partitions)

    def load(self) -> WritePathLoad:
        """What is held now, for those who look after its bounds. Event loop only."""
        return WritePathLoad(len(self._queue), self._queue.size_bytes, len(self._uploads), self._open_files.open_count)

    # The flow.

    def _append_seen(self, partition: TopicIdPartition) -> None:
        led = self._partitions.get(partition)
        if led is None:
            return
        now_s = self._clock()
        if led.append_seen_s is None:
            led.append_seen_s = now_s
            self._appended.add(partition)
        self._schedule.wake(partition, now_s)
        self._wake.set()

    def _append_gathered(self, partition: TopicIdPartition) -> None:
        self._append_seen(partition)
        led = self._partitions.get(partition)
        if led is not None:
            self._commit.appended(partition, led.task.unread_bytes())

    def _round_is_gathered(self) -> bool:
        return self._commit.is_round(self._queue.size_bytes)

    def _has_unread(self) -> bool:
        """Whether what was told of was not read meanwhile: the kernel's word of an append may come after its bytes."""
        appended = (self._partitions[partition].task for partition in self._appended)
        return any(self._reader.is_running(task) or task.unread_bytes() for task in appended)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._defect is not None:
                raise self._defect
            match self._next_step(self._clock()):
                case UploadNow():
                    await self._run_due_tasks()
                    self._start_queued(self._clock())
                case Gather(delay_s, quiet_s):
                    await self._gather(delay_s, quiet_s)
                case Wait(delay_s):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(delay_s):
                            await self._wake.wait()

    async def _gather(self, delay_s: float, quiet_s: float) -> None:
        """Upload early if those who append have all got their round and appended anew."""
        round_is_over = not self._uploads and not self.replication_is_pending()
        paused = await self._watcher.pause(delay_s, quiet_s, self._append_gathered, self._round_is_gathered)
        if paused and (round_is_over or self._round_is_gathered()):
            await self._run_due_tasks()
            now_s = self._clock()
            if self._urgency(now_s) is Urgency.LINKS or self._decider.pays(self._queue.size_bytes):
                self._start_queued(now_s)

    def _start_queued(self, now_s: float) -> None:
        if len(self._queue) and not self._commit.held_back_s(now_s):
            self._start_upload(now_s)

    def _next_step(self, now_s: float) -> Step:
        due_s = self._schedule.next_time_s()
        if due_s is None or self._queue.is_full:
            due_s = math.inf
        has_work = len(self._queue) or due_s <= now_s  # to ask for the urgency without any would keep links in use
        urgency = self._urgency(now_s) if has_work else Urgency.ARCHIVE
        expected_bytes = self._decider.expected_bytes(now_s)
        load = Load(self._queue.size_bytes, due_s, bool(self._appended), expected_bytes, urgency)
        return self._commit.next_step(load, now_s)

    def _urgency(self, now_s: float) -> Urgency:
        """How the upload of what is queued and appended is wanted."""
        if any(one in self._appended or not self._partitions[one].is_settled for one in self._hurried):
            return Urgency.LINKS
        waiting = chain(self._queue.first_partition(), islice(self._appended, _PARTITIONS_PER_RUN))
        led = (self._partitions.get(partition) for partition in waiting)
        return self._decider.urgency((known.assignment for known in led if known is not None), now_s)

    async def _run_due_tasks(self) -> None:
        if self._queue.is_full:
            return
        now_s = self._clock()
        due = self._schedule.take_due(now_s, min(_PARTITIONS_PER_RUN, self._queue.free_items))
        if not due:
            return
        self._commit.read()
        runs: list[Run] = []
        for partition in due:
            led = self._partitions[partition]
            self._pass_over(led)
            runs.append((led.task, now_s if led.append_seen_s is None else led.append_seen_s))
            led.append_seen_s = None
            self._appended.discard(partition)
        budget_bytes = min(self._limits.read_bytes, max(self._queue.free_bytes, 1))
        outcomes = await self._reader.run(runs, budget_bytes)
        for partition, (task, seen_s), outcome in zip(due, runs, outcomes, strict=True):
            known = self._partitions.get(partition)
            if known is None or known.task is not task:  # released meanwhile, and perhaps taken on anew
                self._schedule.succeeded(partition, self._clock(), more=True)
                continue
            if not isinstance(outcome, TaskOutcome):
                known.append_seen_s = seen_s
            self._take_outcome(known, outcome)

    def _take_outcome(self, led: LedPartition, outcome: Outcome) -> None:
        now_s = self._clock()
        partition = led.assignment.topic_id_partition
        if outcome is None:
            self._schedule.succeeded(partition, now_s, more=True)
            return
        led.is_failing = isinstance(outcome, ReadError)
        if isinstance(outcome, ReadError):
            self._metrics.read_failures.inc()
            log.warning("log_read_failed", partition=str(partition), error=str(outcome))
            if isinstance(outcome, LogDirectoryError) and outcome.lacks_descriptors:
                self._open_files.close_unread()
            self._schedule.failed(partition, now_s)
            return
        self._schedule.succeeded(partition, now_s, outcome.more)
        if outcome.truncated_at is not None:
            self._truncated(led, outcome.truncated_at)
            if led.passed_over is not None and led.passed_over.left:
                self._take_on_anew(partition)
                return
        self._queue_items(led, outcome)
        self._decider.appended(outcome.read_bytes, led.read_s if led.read_s is not None else now_s, now_s)
        led.read_s = now_s
        if partition in self._hurried and led.is_settled:
            self.on_hurried_settled(partition)
        if outcome.deleted:  # should it be there again, `assign` takes it on anew
            self._release(partition)

    def _pass_over(self, led: LedPartition) -> None:
        """Leave to the backlog what lies between here and the followers, where that is more than a few objects."""
        partition, far_bytes = led.assignment.topic_id_partition, _FAR_BEHIND_OBJECTS * self._limits.commit.upload_bytes
        is_far = led.backlog_bytes > far_bytes and led.followers_offset > led.task.next_offset >= 0
        if not is_far or partition in self._hurried:
            return
        rest = led.task.pass_over(led.followers_offset)
        if rest is not None:
            led.passed_over = self._backlog.add(led.assignment, rest)

    def _backlog_stored(self, segment: UploadedSegment) -> None:
        self._count_uploaded(segment)
        for partition in self._hurried & {item.topic_id_partition for item in segment.items}:
            self.on_hurried_settled(partition)

    def _count_uploaded(self, segment: UploadedSegment) -> None:
        self._metrics.uploaded_segments.inc()
        self._metrics.uploaded_bytes.inc(sum(len(item.records) for item in segment.items))

    def _queue_items(self, led: LedPartition, outcome: TaskOutcome) -> None:
        if outcome.gaps:
            self.gaps.found(led.assignment, outcome.gaps)
        self._queue.put(outcome.items)
        led.log_read(outcome)
        for item in outcome.items:
            self._stage_times.observe("queued", item.queued_s - item.seen_s)
        self._metrics.appended_bytes.inc(outcome.read_bytes)

    def _truncated(self, led: LedPartition, offset: int) -> None:
        partition = led.assignment.topic_id_partition
        log.info("log_truncated", partition=str(partition), offset=offset)
        self._queue.discard(partition, offset)
        led.truncated(offset)
        self._listeners.partition_truncated(partition, offset)

    def _start_upload(self, now_s: float) -> None:
        items = self._queue.drain(self._limits.commit.upload_bytes)
        size_bytes = sum(len(item.records) for item in items)
        self._commit.started(now_s, size_bytes)
        upload = asyncio.get_running_loop().create_task(self._upload(items, now_s))
        self._uploads.add(upload)
        upload.add_done_callback(self._upload_ended)

    def _upload_ended(self, upload: "asyncio.Task[None]") -> None:
        self._uploads.discard(upload)
        if not upload.cancelled() and (defect := upload.exception()) is not None:
            self._defect = defect
            self._wake.set()

    async def _upload(self, items: list[MetaQueueItem], started_s: float) -> None:
        segment = await self._combine_task.combine(items)
        now_s = self._clock()
        if segment is None:
            self._commit.failed(started_s, now_s)
            self._queue.put_back(part for item in items if (part := self._unstored_part(item)) is not None)
        else:
            self._commit.stored(started_s)
            self._decider.uploaded(now_s - started_s)
            self._stored(segment, started_s, now_s)  # followers wait for it, so all else comes after
            self._watcher.take(self._append_seen)
            self._commit.appended_meanwhile(self._has_unread())
        self._wake.set()

    def _stored(self, segment: UploadedSegment, started_s: float, now_s: float) -> None:
        live = [
            (part, entry)
            for item, entry in zip(segment.items, segment.entries, strict=True)
            if (part := self._unstored_part(item)) is not None
        ]
        for item, _ in live:
            self._partitions[item.topic_id_partition].item_stored(item)
        # The log may have been truncated, or its leadership lost, during the upload.
        self._listeners.segment_uploaded(
            replace(segment, items=tuple(part for part, _ in live), entries=tuple(entry for _, entry in live))
        )
        for item in segment.items:
            self._stage_times.observe("combined", started_s - item.queued_s)
        self._stage_times.observe("uploaded", now_s - started_s)
        self._count_uploaded(segment)

    def _unstored_part(self, item: MetaQueueItem) -> MetaQueueItem | None:
        led = self._partitions.get(item.topic_id_partition)
        return led.unstored_part(item) if led is not None else None
