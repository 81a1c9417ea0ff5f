"""Schedules when each partition is processed: the list of KIP-405's Remote Log Manager thread pool. Sans-IO.

Each partition has a scheduled processing time. A new one is due at once. After success it is due one process interval
later, after a remote failure one retry interval later, doubled with each failure in a row. An append makes it due at
once. A partition that is unassigned while it is processed is removed afterwards.

Idle partitions cost one look per process interval and nothing else.
"""

import heapq
from dataclasses import dataclass, field
from itertools import count

from kafka_log.topic_partition import TopicIdPartition

_MIN_QUEUE_TO_CLEAN = 64
"""Replaced entries stay in the queue until they come up, or outnumber the others by this."""


@dataclass(frozen=True, slots=True)
class ScheduleIntervals:
    """How often partitions are processed, and after which time a failed one is retried, in seconds."""

    process_s: float = 60.0
    """Without any sign of an append (guessed)."""
    retry_s: float = 0.2
    retry_max_s: float = 10.0


@dataclass(slots=True)
class _Scheduled:
    next_s: float
    failures: int = 0
    processing: bool = False
    woken: bool = False
    removed: bool = False
    ticket: int = field(default=0)


class PartitionSchedule:
    """The partitions and their next processing times. All times are monotonic seconds."""

    def __init__(self, intervals: ScheduleIntervals) -> None:
        self._intervals = intervals
        self._partitions: dict[TopicIdPartition, _Scheduled] = {}
        self._queue: list[tuple[float, int, TopicIdPartition]] = []
        self._tickets = count(1)

    def __contains__(self, partition: TopicIdPartition) -> bool:
        scheduled = self._partitions.get(partition)
        return scheduled is not None and not scheduled.removed

    def add(self, partition: TopicIdPartition) -> None:
        """Add a partition, due at once."""
        scheduled = self._partitions.get(partition)
        if scheduled is not None:
            scheduled.woken |= scheduled.removed  # a run under way was begun before the partition was removed
            scheduled.removed = False
            return
        self._partitions[partition] = _Scheduled(0.0)
        self._push(partition, 0.0)

    def remove(self, partition: TopicIdPartition) -> None:
        """Remove a partition; one that is being processed, once that has ended."""
        scheduled = self._partitions.get(partition)
        if scheduled is None:
            return
        if scheduled.processing:
            scheduled.removed = True
        else:
            del self._partitions[partition]

    def wake(self, partition: TopicIdPartition, now_s: float) -> None:
        """Make the partition due now because of an append, unless it backs off after a failure."""
        scheduled = self._partitions.get(partition)
        if scheduled is None:
            return
        if scheduled.processing:
            scheduled.woken = True
        elif not scheduled.failures and scheduled.next_s > now_s:
            self._push(partition, now_s)

    def take_due(self, now_s: float, limit: int) -> list[TopicIdPartition]:
        """Return at most `limit` partitions that are due; `succeeded` or `failed` must follow for each."""
        due: list[TopicIdPartition] = []
        while len(due) < limit and (next_s := self.next_time_s()) is not None and next_s <= now_s:
            _, _, partition = heapq.heappop(self._queue)
            self._partitions[partition].processing = True
            due.append(partition)
        return due

    def succeeded(self, partition: TopicIdPartition, now_s: float, more: bool = False) -> None:
        """Record that the partition was processed: it is due again after an interval, with `more` at once."""
        scheduled = self._processed(partition)
        if scheduled is not None:
            scheduled.failures = 0
            again = more or scheduled.woken
            self._push(partition, now_s if again else now_s + self._intervals.process_s)

    def failed(self, partition: TopicIdPartition, now_s: float) -> None:
        """Record that processing the partition failed; it is due again after a retry interval, which doubles."""
        scheduled = self._processed(partition)
        if scheduled is not None:
            scheduled.failures += 1
            backoff_s = self._intervals.retry_s * 2 ** min(scheduled.failures - 1, 30)
            self._push(partition, now_s + min(backoff_s, self._intervals.retry_max_s))

    def next_time_s(self) -> float | None:
        """Return when the next partition is due; None when there is none."""
        while self._queue:
            if self._is_current(self._queue[0]):
                return self._queue[0][0]
            heapq.heappop(self._queue)
        return None

    def _processed(self, partition: TopicIdPartition) -> _Scheduled | None:
        scheduled = self._partitions[partition]
        scheduled.processing = False
        if scheduled.removed:
            del self._partitions[partition]
            return None
        return scheduled

    def _push(self, partition: TopicIdPartition, next_s: float) -> None:
        scheduled = self._partitions[partition]
        scheduled.next_s = next_s
        scheduled.woken = False
        scheduled.ticket = next(self._tickets)
        heapq.heappush(self._queue, (next_s, scheduled.ticket, partition))
        if len(self._queue) > 2 * len(self._partitions) + _MIN_QUEUE_TO_CLEAN:
            self._queue = [entry for entry in self._queue if self._is_current(entry)]
            heapq.heapify(self._queue)

    def _is_current(self, entry: tuple[float, int, TopicIdPartition]) -> bool:
        scheduled = self._partitions.get(entry[2])
        return scheduled is not None and scheduled.ticket == entry[1] and not scheduled.processing
