"""Plans the storing of logs that were passed over. Sans-IO.

A log that is far behind continues at its followers' position, so that new records are linked at once. What lies between
is a `PassedOver`: ranges of offsets that are in no object. They are read and stored beside the uploads for links, the
log that was passed over first coming first, one object at a time, within a quota of their own. No follower waits for
them, so they are neither linked nor announced; followers that are far behind find them by metadata.

`PassedOver.first_offset` is the first offset that is not stored. What the log's retention has deleted meanwhile is
declared as a Gap. A log that was cut, or is gone, is handed back (`void`) and taken on again by what the metadata topic
says. A failed upload or read is retried after a back-off. What is left when the process ends is a hole that the next
incarnation finds (`rlm.write_path.reading.resume_point`).

`BacklogUploads` carries it out. All times are monotonic seconds.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import structlog

from kafka_log.topic_partition import TopicIdPartition
from rlm.write_path.commit.bandwidth import TokenBucket
from rlm.write_path.commit.cadence import CommitLimits
from rlm.write_path.core.actions import Action, CountReadFailure, DeclareGaps
from rlm.write_path.core.led_partition import PassedOver
from rlm.write_path.reading.log_task import LogTask, Outcome, ReadError, TaskOutcome
from rlm.write_path.uploads.segment_queue import MetaQueueItem

log = structlog.get_logger(__name__)

_LOGS_PER_OBJECT: Final = 256


class Backlog:
    """The backlog: ranges of logs that reading skipped when followers were far ahead, to be stored at a low rate."""

    def __init__(
        self, limits: CommitLimits, bytes_per_s: int, void: Callable[[TopicIdPartition], Sequence[Action]]
    ) -> None:
        """At most `bytes_per_s` are stored. `void` returns the actions for a log that was truncated or is gone."""
        self._limits = limits
        self._void = void
        self._quota = TokenBucket(bytes_per_s)
        self._logs: dict[TopicIdPartition, PassedOver] = {}
        self._failures_in_a_row = 0
        self._to_look_at: deque[TopicIdPartition] = deque()
        """The logs that may still add to the object being gathered."""
        self._gathered: list[PassedOver] = []
        """Logs whose items are in the next object, or in the one being uploaded."""
        self._reading: PassedOver | None = None

    def __len__(self) -> int:
        return len(self._logs)

    def get(self, partition: TopicIdPartition) -> PassedOver | None:
        """Return what is left to store of this log; None if nothing is."""
        return self._logs.get(partition)

    def add(self, passed_over: PassedOver) -> None:
        """Add a range to store. An earlier range of the same log is released."""
        passed_over.update()
        partition = passed_over.assignment.topic_id_partition
        self._logs[partition] = passed_over
        log.warning(
            "log_passed_over",
            partition=str(partition),
            offsets=passed_over.offsets,
            from_offset=passed_over.first_offset,
            consequence="what is new is uploaded and linked first, these offsets beside it",
        )

    def release(self, partition: TopicIdPartition) -> LogTask | None:
        """Drop a log that is no longer uploaded here. Returns its task, to be closed, unless it is being read."""
        passed_over = self._logs.pop(partition, None)
        return None if passed_over is None or passed_over is self._reading else passed_over.task

    def wait_s(self, now_s: float) -> float:
        """Return how long to wait before the next object: for the quota, and after failures."""
        wait_s = self._quota.wait_s(now_s)
        if self._failures_in_a_row:
            back_off_s = self._limits.retry_s * 2 ** min(self._failures_in_a_row - 1, 30)
            wait_s = max(wait_s, min(back_off_s, self._limits.retry_max_s))
        return wait_s

    # Reading as much as an object holds, from the first logs on.

    def begin_object(self) -> None:
        """Forget which items were gathered, to gather those of the next object."""
        self._gathered.clear()
        self._to_look_at = deque(islice(self._logs, _LOGS_PER_OBJECT))

    def next_read(self) -> tuple[PassedOver, int] | None:
        """Return the log to read next, and how many bytes at most; None if the object has enough."""
        while self._to_look_at:
            free_bytes = self._limits.upload_bytes - sum(one.held_bytes for one in self._gathered)
            if free_bytes <= 0:
                break
            passed_over = self._logs.get(self._to_look_at.popleft())
            if passed_over is None:
                continue
            if not passed_over.items:
                self._reading = passed_over
                return passed_over, free_bytes
            self._gathered.append(passed_over)
        return None

    def read_done(self, passed_over: PassedOver, outcome: Outcome, now_s: float) -> Sequence[Action]:
        """Record the outcome of a read. If its log was released meanwhile, nothing changes."""
        self._reading = None
        if not self.is_wanted(passed_over):
            return ()
        partition = passed_over.assignment.topic_id_partition
        if isinstance(outcome, ReadError):
            log.warning("log_read_failed", partition=str(partition), error=str(outcome))
            self._failures_in_a_row += 1
            self._logs[partition] = self._logs.pop(partition)  # so that other logs come first
            return (CountReadFailure(),)
        if not isinstance(outcome, TaskOutcome):
            return ()
        actions: list[Action] = []
        if outcome.gaps:
            actions.append(DeclareGaps(passed_over.assignment, outcome.gaps))
        if outcome.deleted or outcome.truncated_at is not None:
            return [*actions, *self._void(partition)]
        passed_over.items += outcome.items
        if passed_over.items:
            self._gathered.append(passed_over)
        self._looked(passed_over, now_s)
        return actions

    def is_wanted(self, passed_over: PassedOver) -> bool:
        """Whether the range is still to be stored: it was neither released nor stored to its end."""
        return self._logs.get(passed_over.assignment.topic_id_partition) is passed_over

    # Storing it.

    def next_object(self, now_s: float) -> list[MetaQueueItem]:
        """Return the gathered items that are still to be stored; may be empty."""
        self._gathered = [one for one in self._gathered if self.is_wanted(one)]
        self._quota.take(sum(one.held_bytes for one in self._gathered), now_s)
        return [item for one in self._gathered for item in one.items]

    def object_failed(self) -> None:
        """Record a failed upload; its items go into the next object."""
        self._failures_in_a_row += 1

    def object_stored(self, now_s: float) -> list[LogTask]:
        """Record a stored object. Returns the tasks that have nothing left to read, to be closed."""
        self._failures_in_a_row = 0
        wanted = [one for one in self._gathered if self.is_wanted(one)]
        for passed_over in wanted:
            passed_over.items.clear()
            self._looked(passed_over, now_s)
        return [one.task for one in wanted if not self.is_wanted(one)]

    def end(self) -> list[LogTask]:
        """Stop reading and storing. Returns all tasks, to be closed."""
        left = [one for one in self._logs.values() if one.left]
        if left:
            log.warning(
                "backlog_unfinished",
                partitions=len(left),
                offsets=sum(one.offsets for one in left),
                consequence="uploaded when an agent takes the partitions on again",
            )
        return [one.task for one in self._logs.values()]

    def _looked(self, passed_over: PassedOver, now_s: float) -> None:
        passed_over.update()
        if not passed_over.left:
            partition = passed_over.assignment.topic_id_partition
            log.info("log_caught_up", partition=str(partition), seconds=math.ceil(now_s - passed_over.since_s))
            del self._logs[partition]
