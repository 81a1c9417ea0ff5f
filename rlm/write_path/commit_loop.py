"""Reads and uploads as `Pacing` says until it is cancelled, then uploads what was read, as time allows.

Uploads run side by side, each in its own asyncio task. A defect of one ends the loop.
"""

import asyncio
import math
from collections.abc import Callable

from kafka_log.topic_partition import TopicIdPartition
from rlm.write_path.commit.group_commit import Gather, UploadNow, Wait
from rlm.write_path.core.actions import Upload
from rlm.write_path.core.led_partition import LedPartition
from rlm.write_path.core.write_path_core import WritePathCore
from rlm.write_path.effects import Effects
from rlm.write_path.hooks import WritePathHooks
from rlm.write_path.uploads.combine_task import RLMWalCombineTask
from rlm.write_path.wake import Wake


class CommitLoop:
    """The loop that drives the write path. Event loop only."""

    def __init__(
        self,
        core: WritePathCore,
        effects: Effects,
        combine_task: RLMWalCombineTask,
        hooks: WritePathHooks,
        clock: Callable[[], float],
    ) -> None:
        self._core = core
        self._effects = effects
        self._combine_task = combine_task
        self._hooks = hooks
        self._clock = clock
        self._wake = Wake()
        self._uploads: set[asyncio.Task[None]] = set()
        self._defect: BaseException | None = None

    def wake(self) -> None:
        """Look again what to do next, because something happened."""
        self._wake.set()

    def fail(self, defect: BaseException) -> None:
        """End `run` with this defect."""
        self._defect = defect
        self._wake.set()

    def fail_with(self, ended: "asyncio.Task[None]") -> None:
        """End `run` if this task ended by a defect."""
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
        """Run until cancelled, or until a defect."""
        pacing = self._core.pacing
        while True:
            self._wake.clear()
            if self._defect is not None:
                raise self._defect
            match pacing.next_step(self._clock()):
                case UploadNow():
                    await self._read()
                    self._effects.carry_out(self._core.unwanted.let_go(self._clock()))
                    self._start(pacing.next_upload(self._clock()))
                case Gather(delay_s, quiet_s):
                    await self._gather(delay_s, quiet_s)
                case Wait(delay_s):
                    await self._wake.within(delay_s)

    async def flush(self, deadline_s: float) -> None:
        """Upload what is queued, and retry failures, until everything is stored or the time is over."""
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
        """Cancel uploads, after `run`; those in a thread end there, and their result is lost."""
        for upload in list(self._uploads):
            upload.cancel()
        await asyncio.gather(*self._uploads, return_exceptions=True)

    async def _gather(self, delay_s: float, quiet_s: float) -> None:
        """Upload early if all waiting producers have got their round and appended again."""
        pacing = self._core.pacing
        round_is_over = not self._hooks.replication_is_pending() and not self._uploads
        paused = await self._effects.watcher.pause(delay_s, quiet_s, self._append_gathered, pacing.round_is_gathered)
        if paused and (round_is_over or pacing.round_is_gathered()):
            await self._read()
            now_s = self._clock()
            if pacing.gathered_pays(now_s):
                self._start(pacing.next_upload(now_s))

    def _append_gathered(self, partition: TopicIdPartition) -> None:
        self.append_seen(partition)
        led = self._core.led.get(partition)
        if led is not None:
            self._tell_unread(led)

    def _tell_unread(self, led: LedPartition) -> None:
        self._core.pacing.commit.appended(led.assignment.topic_id_partition, led.task.unread_bytes())

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
                self._tell_unread(read.led)

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
            self._effects.watcher.take(self.append_seen)
            # It may end links, so it comes before followers that wait for some decide anew.
            self._core.pacing.stored(upload, self._unread_bytes(), now_s)
            self._effects.carry_out(actions)
        self._wake.set()

    def _unread_bytes(self) -> int:
        """Bytes that were noticed and not read: the kernel may report an append after its bytes."""
        reader = self._effects.reader
        led = [led for led in self._core.pacing.appended() if not reader.is_running(led.task)]
        return sum(one.task.unread_bytes() for one in led)
