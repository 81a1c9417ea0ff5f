"""Uploads what a log manager passed over to be with the followers again: what was appended while the store was away.

Theory. A log that is far behind goes on at its followers' position, so that what is new is linked at once. What lies
between is a `PassedOver`: ranges of offsets that are in no object. They are read and stored here, the log that was
passed over first coming first, one object at a time, beside the uploads for links and within a quota of their own. No
follower waits for them, so no link and no announcement is made of them; followers far behind find them by metadata.

Holds true: `first_offset` is that of the first record of them that is not stored; what the log's retention has deleted
meanwhile is told as a Gap; a log that was cut, or is gone, is handed back (`on_void`), to be taken on anew by what the
metadata topic tells. A failed upload or read is made again after a back-off. What is left when the process ends is a
hole that the next incarnation finds (`rlm.write_path.resume_point`).

Belongs to the event loop, but for what it reads, in one thread of its own.
"""

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import Executor

import structlog

from kafka_log.topic_partition import TopicIdPartition
from rlm.write_path.assignment import Assignment
from rlm.write_path.bandwidth import TokenBucket
from rlm.write_path.combine_task import RLMWalCombineTask
from rlm.write_path.gap_listener import GapListener
from rlm.write_path.log_task import LogTask, Outcome, ReadError, TaskOutcome
from rlm.write_path.passed_over import BacklogLimits, PassedOver
from rlm.write_path.segment_queue import MetaQueueItem
from rlm.write_path.uploaded_segment import UploadedSegment
from rlm.write_path.wal_task import run_tasks

log = structlog.get_logger(__name__)

_LOGS_PER_OBJECT = 256


class BacklogUploads:
    """See the module's theory."""

    def __init__(
        self,
        limits: BacklogLimits,
        combine_task: RLMWalCombineTask,
        gaps: Callable[[], GapListener],
        clock: Callable[[], float],
        reading: Executor,
    ) -> None:
        """It takes the thread for `reading` over."""
        self._limits = limits
        self._combine_task = combine_task
        self._gaps = gaps
        self._clock = clock
        self._quota = TokenBucket(limits.bytes_per_s)
        self._logs: dict[TopicIdPartition, PassedOver] = {}
        self._wake = asyncio.Event()
        self._failures_in_a_row = 0
        self._reading: PassedOver | None = None
        self._pool = reading
        self.on_stored: Callable[[UploadedSegment], None] = lambda _segment: None
        """Told of each object, with what of it is still wanted."""
        self.on_void: Callable[[TopicIdPartition], None] = lambda _partition: None
        """Told of a log that was cut, or is gone. It is released from here before."""

    def add(self, assignment: Assignment, task: LogTask) -> PassedOver:
        """Store what the task has to read, besides what is left of the same log."""
        partition, now_s = assignment.topic_id_partition, self._clock()
        known = self._logs.get(partition)
        since_s = known.since_s if known is not None else now_s
        if known is not None:
            task.also_read(known.left)
            self.release(partition)
        passed_over = self._logs[partition] = PassedOver(assignment, task, since_s)
        passed_over.looked()
        log.warning(
            "log_passed_over",
            partition=str(partition),
            offsets=passed_over.offsets,
            from_offset=passed_over.first_offset,
            consequence="what is new is uploaded and linked first, these offsets beside it",
        )
        self._wake.set()
        return passed_over

    def release(self, partition: TopicIdPartition) -> None:
        """The log is not uploaded from here any more, or is taken on anew."""
        passed_over = self._logs.pop(partition, None)
        if passed_over is not None and passed_over is not self._reading:
            passed_over.task.close()

    async def run(self) -> None:
        """Store what is added, until cancelled."""
        while True:
            if not self._logs:
                self._wake.clear()
                await self._wake.wait()
            wait_s = self._quota.wait_s(self._clock())
            if self._failures_in_a_row:
                back_off_s = self._limits.retry_s * 2 ** min(self._failures_in_a_row - 1, 30)
                wait_s = max(wait_s, min(back_off_s, self._limits.retry_max_s))
            await asyncio.sleep(wait_s)
            gathered = await self._gather()
            if gathered:
                await self._store(gathered)

    def close(self) -> None:
        """After `run` was cancelled. What is not stored stays in the logs."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for passed_over in self._logs.values():
            passed_over.task.close()
        left = [one for one in self._logs.values() if one.left]
        if left:
            log.warning(
                "backlog_unfinished",
                partitions=len(left),
                offsets=sum(one.offsets for one in left),
                consequence="uploaded when an agent takes the partitions on again",
            )

    async def _gather(self) -> list[MetaQueueItem]:
        """Read as much as an object holds, from the first logs on."""
        size_bytes = 0
        gathered: list[MetaQueueItem] = []
        for partition in list(self._logs)[:_LOGS_PER_OBJECT]:
            passed_over = self._logs.get(partition)
            if passed_over is None:
                continue
            if not passed_over.items:
                await self._read(passed_over, self._limits.object_bytes - size_bytes)
            if self._logs.get(partition) is passed_over:
                gathered += passed_over.items
                size_bytes += sum(len(item.records) for item in passed_over.items)
            if size_bytes >= self._limits.object_bytes:
                break
        return gathered

    async def _read(self, passed_over: PassedOver, budget_bytes: int) -> None:
        partition, now_s = passed_over.assignment.topic_id_partition, self._clock()
        self._reading = passed_over
        try:
            (outcome,) = await asyncio.get_running_loop().run_in_executor(
                self._pool, run_tasks, [(passed_over.task, now_s)], budget_bytes, self._clock
            )
        finally:
            self._reading = None
        if self._logs.get(partition) is not passed_over:  # released meanwhile
            passed_over.task.close()
            return
        self._take_outcome(passed_over, outcome)

    def _take_outcome(self, passed_over: PassedOver, outcome: Outcome) -> None:
        partition = passed_over.assignment.topic_id_partition
        if isinstance(outcome, ReadError):
            log.warning("log_read_failed", partition=str(partition), error=str(outcome))
            self._failures_in_a_row += 1
            self._logs[partition] = self._logs.pop(partition)  # others first
            return
        if not isinstance(outcome, TaskOutcome):
            return
        if outcome.gaps:
            self._gaps().found(passed_over.assignment, outcome.gaps)
        if outcome.deleted or outcome.truncated_at is not None:
            self.release(partition)
            self.on_void(partition)
            return
        passed_over.items += outcome.items
        self._looked(passed_over)

    async def _store(self, items: list[MetaQueueItem]) -> None:
        owners = {partition: self._logs[partition] for partition in {item.topic_id_partition for item in items}}
        self._quota.take(sum(len(item.records) for item in items), self._clock())
        segment = await self._combine_task.combine(items)
        if segment is None:
            self._failures_in_a_row += 1
            return
        self._failures_in_a_row = 0
        for partition, passed_over in owners.items():
            if self._logs.get(partition) is passed_over:
                passed_over.items.clear()
                self._looked(passed_over)
        self.on_stored(segment)

    def _looked(self, passed_over: PassedOver) -> None:
        passed_over.looked()
        if not passed_over.left:
            partition = passed_over.assignment.topic_id_partition
            log.info("log_caught_up", partition=str(partition), seconds=math.ceil(self._clock() - passed_over.since_s))
            self.release(partition)
