"""The write path as those see it who hold answers until records are stored (`gateway.durable`). Event loop only."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.records.offset_ranges import OffsetRange
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.assignment import Assignment
from rlm.write_path.reading.gap_listener import GapListener
from rlm.write_path.reading.resume_point import ResumePoint
from rlm.write_path.uploads.published_offsets import PublishedOffsets

if TYPE_CHECKING:
    from gateway.durable.durable_logs import DurableLogs


@dataclass(frozen=True, slots=True)
class KnownTopics:
    """What an agent knows of topics."""

    durable: frozenset[str]
    names: Mapping[TopicId, str]
    """Of those that have a replica here."""


class AwaitedUploads(Protocol):
    """What is asked of the write path."""

    def hurry(self, partition: TopicIdPartition, *, hurried: bool = True) -> None: ...

    def uploaded_offset(self, partition: TopicIdPartition) -> int | None: ...

    def when_published(self, segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None: ...


class DurableUploads:
    """Of all runs of the write path."""

    def __init__(self, uploads: AwaitedUploads, logs: "DurableLogs") -> None:
        self._uploads = uploads
        self._logs = logs
        self.published = PublishedOffsets(uploads, logs)

    def arrived(self) -> None:
        """The write path runs."""
        self._logs.logs_arrived(self)

    def left(self, assignments: Sequence[Assignment]) -> None:
        """It does not any more, and whatever it led is not led."""
        self._logs.logs_left()
        for one in assignments:
            self.published.partition_released(one.topic_id_partition)

    def assigned(self, assignments: Sequence[Assignment], topics: KnownTopics) -> None:
        """What is led here from now on."""
        self.published.assigned(assignments)
        self.topics_known(topics)
        self._logs.assigned(assignments)

    def topics_known(self, topics: KnownTopics) -> None:
        """Perhaps before anything is known to be led."""
        self._logs.topics_known(topics.durable, topics.names)

    def settled(self, partition: TopicIdPartition) -> None:
        """Its log was read to the end, and all of it was stored before: no upload tells of it."""
        self._logs.look(partition)

    def told_of_gaps(self, gaps: GapListener) -> GapListener:
        """The listener that tells this one as well."""
        return _GapsToldOn(gaps, self._logs)

    # StoredLogs.

    def published_offset(self, partition: TopicIdPartition) -> int | None:
        return self.published.published_offset(partition)

    def awaited(self, partition: TopicIdPartition) -> None:
        """Of a log that was not looked at yet, an upload may have nothing to tell; so its end is to be told of."""
        uploaded = self._uploads.uploaded_offset(partition)
        if uploaded is None or uploaded < 0:
            self._uploads.hurry(partition)


class _GapsToldOn:
    """A GapListener. What a log lost to retention is gone as it should be; what cannot be read is not stored."""

    def __init__(self, gaps: GapListener, logs: "DurableLogs") -> None:
        self._gaps = gaps
        self._logs = logs

    def resumed(self, assignment: Assignment, resume: ResumePoint) -> None:
        self._gaps.resumed(assignment, resume)

    def found(self, assignment: Assignment, gaps: Iterable[Gap]) -> None:
        found = tuple(gaps)
        for gap in found:
            if assignment.is_durable and gap.is_unreadable:
                self._logs.unreadable(assignment.topic_id_partition, gap.from_offset, gap.to_offset)
        self._gaps.found(assignment, found)

    def not_wanted(self, assignment: Assignment, ranges: Iterable[OffsetRange]) -> None:
        self._gaps.not_wanted(assignment, ranges)
