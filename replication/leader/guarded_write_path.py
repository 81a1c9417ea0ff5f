"""Gives relays access to the write path, which may not exist yet or may have failed.

Relaying begins before the write path, and survives its failure. Without it, no partition is led as far as relays know,
so all bytes go inline. A call that meets a defect gets the same answer, and the write path is told that it failed; no
connection ends because of it.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from kafka_log.topic_partition import TopicIdPartition
from plugin.format.archive_object_id import StoredObjectId
from plugin.inline_reason import InlineReason
from replication.leader.link_index import StoredLogs
from rlm.write_path.commit.link_policy import LinkMode
from rlm.write_path.core.led_views import FoundRuns, LedPartitions, StoredLog

T = TypeVar("T")


class GuardedWritePath:
    """Stands in for the write path while that does not exist yet or has failed: links nothing, finds nothing.

    For the event loop; `is_living` and `runs` on any thread.
    """

    def __init__(self) -> None:
        self._run: tuple[LedPartitions, StoredLogs, Callable[[Exception], object]] | None = None

    def arrived(self, led: LedPartitions, logs: StoredLogs, failed: Callable[[Exception], object]) -> None:
        """Start to use this write path. `failed` is called with an unexpected error that a call raised; from any
        thread."""
        self._run = led, logs, failed

    def left(self) -> None:
        self._run = None

    # LedPartitions.

    def mode_of(self, partition: TopicIdPartition) -> LinkMode:
        return self._asked(lambda led, _: led.mode_of(partition), LinkMode.OFF)

    def fetched(self, follower_id: int, partition: TopicIdPartition, offset: int, size: int) -> None:
        self._asked(lambda led, _: led.fetched(follower_id, partition, offset, size), None)

    def upload_expected(self, partition: TopicIdPartition, offset: int) -> bool:
        return self._asked(lambda led, _: led.upload_expected(partition, offset), False)

    def is_always_linked(self, partition: TopicIdPartition) -> bool:
        return self._asked(lambda led, _: led.is_always_linked(partition), False)

    def why_inline(self, partition: TopicIdPartition) -> InlineReason:
        return self._asked(lambda led, _: led.why_inline(partition), InlineReason.UPLOADS_STOPPED)

    def links_wanted(self, partitions: Iterable[TopicIdPartition]) -> None:
        self._asked(lambda led, _: led.links_wanted(partitions), None)

    def find(self, topic_id: bytes | None, partition: int) -> TopicIdPartition | None:
        return self._asked(lambda led, _: led.find(topic_id, partition), None)

    # StoredLogs.

    def stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        return self._asked(lambda _, logs: logs.stored_log(partition), None)

    def runs(self, log: StoredLog, offset: int, max_bytes: int, archive: bool) -> FoundRuns:
        """Find runs (`LedLogs.runs`). Unexpected errors are raised: the caller continues without runs."""
        run = self._run
        return FoundRuns([]) if run is None else run[1].runs(log, offset, max_bytes, archive)

    def is_living(self, object_id: StoredObjectId) -> bool:
        return self._asked(lambda _, logs: logs.is_living(object_id), False)

    def _asked(self, question: Callable[[LedPartitions, StoredLogs], T], otherwise: T) -> T:
        if self._run is None:
            return otherwise
        led, logs, failed = self._run
        try:
            return question(led, logs)
        except Exception as defect:
            failed(defect)
            return otherwise
