"""Gives relays access to the write path, which may not exist yet or may have failed.

Relaying begins before the write path, and survives its failure. Without it, no partition is led as far as relays know,
so all bytes go inline. A call that meets a defect gets the same answer, and the write path is told that it failed; no
connection ends because of it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from kafka_log.topic_partition import TopicIdPartition
from plugin.format.archive_object_id import StoredObjectId
from plugin.inline_reason import InlineReason
from replication.leader.link_index import StoredLogs
from rlm.write_path.commit.link_policy import LinkMode
from rlm.write_path.core.led_views import FoundRuns, LedPartitions, StoredLog

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WritePathAnswers:
    """The answers of one run of the write path."""

    led: LedPartitions
    logs: StoredLogs
    failed: Callable[[Exception], None]
    """Called with a defect that a call met; from any thread."""


class GuardedWritePath:
    """Implements `LedPartitions` for relays and `StoredLogs` for catch-up.

    For the event loop; `is_living` and `runs` on any thread.
    """

    def __init__(self) -> None:
        self._path: WritePathAnswers | None = None

    def arrived(self, path: WritePathAnswers) -> None:
        self._path = path

    def left(self) -> None:
        self._path = None

    # LedPartitions.

    def mode_of(self, partition: TopicIdPartition) -> LinkMode:
        return self._asked(lambda path: path.led.mode_of(partition), LinkMode.OFF)

    def fetched(self, follower_id: int, partition: TopicIdPartition, offset: int, size: int) -> None:
        self._asked(lambda path: path.led.fetched(follower_id, partition, offset, size), None)

    def upload_expected(self, partition: TopicIdPartition, offset: int) -> bool:
        return self._asked(lambda path: path.led.upload_expected(partition, offset), False)

    def is_always_linked(self, partition: TopicIdPartition) -> bool:
        return self._asked(lambda path: path.led.is_always_linked(partition), False)

    def why_inline(self, partition: TopicIdPartition) -> InlineReason:
        return self._asked(lambda path: path.led.why_inline(partition), InlineReason.UPLOADS_STOPPED)

    def links_wanted(self, partitions: Iterable[TopicIdPartition]) -> None:
        self._asked(lambda path: path.led.links_wanted(partitions), None)

    def find(self, topic_id: bytes | None, partition: int) -> TopicIdPartition | None:
        return self._asked(lambda path: path.led.find(topic_id, partition), None)

    # StoredLogs.

    def stored_log(self, partition: TopicIdPartition) -> StoredLog | None:
        return self._asked(lambda path: path.logs.stored_log(partition), None)

    def runs(self, log: StoredLog, offset: int, max_bytes: int, archive: bool) -> FoundRuns:
        """Find runs. Defects are raised: the caller continues without runs."""
        path = self._path
        return FoundRuns([]) if path is None else path.logs.runs(log, offset, max_bytes, archive)

    def is_living(self, object_id: StoredObjectId) -> bool:
        return self._asked(lambda path: path.logs.is_living(object_id), False)

    def _asked(self, question: Callable[[WritePathAnswers], T], otherwise: T) -> T:
        path = self._path
        if path is None:
            return otherwise
        try:
            return question(path)
        except Exception as defect:
            path.failed(defect)
            return otherwise
