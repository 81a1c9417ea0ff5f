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
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.settings.topic_settings import LinkPolicy
from plugin.inline_reason import InlineReason
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.assignment import Assignment
from rlm.write_path.commit.link_policy import LinkDecider, LinkMode
from rlm.write_path.commit_loop import CommitLoop
from rlm.write_path.core.led_partition import LedPartition, PartitionStatus, WritePathLoad, tell_unfinished
from rlm.write_path.core.led_views import StoredLog
from rlm.write_path.core.log_manager_limits import LogManagerLimits
from rlm.write_path.core.write_path_core import WritePathCore
from rlm.write_path.effects import Effects
from rlm.write_path.hooks import WritePathHooks
from rlm.write_path.machine import Machine
from rlm.write_path.metrics import StageTimes, WriteMetrics
from rlm.write_path.reading.resume_point import ResumeUnknownError
from rlm.write_path.uploads.combine_task import RLMWalCombineTask
from rlm.write_path.uploads.upload_listener import UploadListener


class RemoteWalLogManager:
    """The write path of one agent. Create and use it in the event loop."""

    def __init__(
        self,
        limits: LogManagerLimits,
        combine_task: RLMWalCombineTask,
        decider: LinkDecider,
        stage_times: StageTimes,
        metrics: WriteMetrics,
        machine: Machine,
        hooks: WritePathHooks | None = None,
    ) -> None:
        self.hooks = hooks = WritePathHooks() if hooks is None else hooks
        self._clock = machine.clocks.monotonic_s
        self._decider = decider
        self._combine_task = combine_task
        self._core = core = WritePathCore(limits, decider)
        self._effects = effects = Effects(core, limits, combine_task, stage_times, metrics, hooks, machine)
        self._loop = CommitLoop(core, effects, combine_task, hooks, self._clock)
        self._running: list[asyncio.Task[None]] = []

    def add_listener(self, listener: UploadListener) -> None:
        """Notify this listener, too."""
        self._effects.listeners.add(listener)

    def start(self) -> "asyncio.Task[None]":
        """Begin to process partitions. The task ends by itself only through a defect."""
        loop = asyncio.get_running_loop()
        self._effects.watcher.listen(self._loop.append_seen)
        draining = loop.create_task(self._effects.backlog.run(), name="backlog-uploads")
        draining.add_done_callback(self._loop.fail_with)
        main = loop.create_task(self._loop.run(), name="remote-wal-log-manager")
        self._running = [main, draining]
        return main

    async def stop(self, flush_timeout_s: float | None) -> None:
        """Upload what was read, as far as the time allows, then stop. None, after a defect: upload nothing more."""
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
                tell_unfinished(self._core.led.values(), self._clock())
                self._effects.carry_out(self._core.unwanted.last_declared(self._clock()))
        finally:
            await self._loop.cancel_uploads()
            await self._effects.close(self._core.led.values())
            self._combine_task.close()

    # Which partitions.

    def assign(self, assignments: Iterable[Assignment]) -> None:
        """Take care of exactly these partitions from now on."""
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
        """Partitions that were not taken on, and why. Other threads may read it."""
        return self._core.put_off

    # What others ask.

    def mode_of(self, partition: TopicIdPartition, size: int) -> LinkMode:
        """Return how `size` bytes should travel to a follower that waits for them now."""
        led = self._core.led.get(partition)
        if led is None:
            self._effects.carry_out(self._core.not_led(partition))
            return LinkMode.OFF
        return self._core.pacing.mode_of(led, size, self._clock())

    def fetched(self, follower_id: int, partition: TopicIdPartition, offset: int, size: int) -> None:
        """Record that a follower is about to get `size` bytes from this offset on, by link or inline."""
        self._core.pacing.fetched(follower_id, partition, offset, size, self._clock())

    def upload_expected(self, partition: TopicIdPartition, offset: int) -> bool:
        """Whether the batch at this offset will soon be stored: not yet stored, not far behind, nothing failing."""
        is_running = bool(self._running) and not self._running[0].done()  # it ends before those who ask
        return is_running and self._core.pacing.upload_expected(partition, offset, self._clock())

    def is_always_linked(self, partition: TopicIdPartition) -> bool:
        """Whether its bytes must travel as links whatever that costs."""
        led = self._core.led.get(partition)
        return led is not None and led.assignment.link_policy is LinkPolicy.ALWAYS

    def came_freely(self, partition: TopicIdPartition, size: int) -> None:
        """Record bytes that came through an agent from producers that do not wait:

        acks 0 or 1, or held acknowledgements.

        Call it before, or as, they reach the log.
        """
        self._core.pacing.came_freely(partition, size, self._clock())

    def why_inline(self, partition: TopicIdPartition) -> InlineReason:
        """Why the partition's bytes go inline, if they do."""
        led = self._core.led.get(partition)
        return InlineReason.NOT_ENABLED if led is None else self._decider.why_inline(led.assignment, self._clock())

    def told_why(self) -> dict[str, str]:
        """Describe for each topic led here, in words and numbers, why its bytes go inline. On any thread."""
        of_topics = {led.assignment.topic: led.assignment for led in list(self._core.led.values())}
        return {topic: self._decider.told_why(one, self._clock()) for topic, one in of_topics.items()}

    def links_wanted(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Upload now: followers wait for these partitions' links."""
        self._core.pacing.links_wanted(partitions, self._clock())
        self._loop.wake()

    def hurry(self, partition: TopicIdPartition, *, hurried: bool = True) -> None:
        """Upload what the partition's log holds as soon as possible, however little it is, until `hurried` is False."""
        self._core.pacing.hurry(partition, self._clock(), hurried=hurried)
        if hurried and partition in self._core.led:
            self._loop.wake()

    def uploaded_offset(self, partition: TopicIdPartition) -> int | None:
        """Return the offset below which everything is stored, also by earlier agents; None if it is not led here."""
        led = self._core.led.get(partition)
        return None if led is None else led.stored_offset

    def when_published(self, segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None:
        """Call `tell` once the segment's metadata is acknowledged, see RLMWalCombineTask."""
        self._combine_task.when_published(segment_id, tell)

    def find(self, topic_id: bytes | None, partition: int) -> TopicIdPartition | None:
        """Return the partition, if it is led here with the feature on."""
        return self._core.find(topic_id, partition)

    def stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        """Return the partition's log and how far it is stored; None when it is not led here."""
        led = self._core.led.get(partition)
        return None if led is None else led.stored_log()

    def status(self) -> dict[TopicIdPartition, PartitionStatus]:
        """Return the led partitions for `describe`. May be called on other threads."""
        return {partition: led.status(self._clock()) for partition, led in list(self._core.led.items())}

    def led(self) -> Mapping[TopicIdPartition, LedPartition]:
        """Return the led partitions themselves, to be read only. Event loop only."""
        return MappingProxyType(self._core.led)

    def load(self) -> WritePathLoad:
        """Return what is held now, to check its limits. Event loop only."""
        queue, open_files = self._core.queue, self._effects.open_files
        return WritePathLoad(len(queue), queue.size_bytes, self._loop.uploads, open_files.open_count)
