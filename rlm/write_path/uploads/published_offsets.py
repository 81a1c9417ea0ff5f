"""Tracks how far led logs are stored and published: what a recovery finds by the metadata topic. An upload listener.

An offset counts as published once the topic has acknowledged every object that has anything below it. An acknowledged
object waits for older ones. So nothing counts behind an object whose metadata could not be published, until the log is
looked at again, and that object's records are uploaded again.

Used for durable logs only. Belongs to the event loop.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from kafka_log.topic_partition import TopicIdPartition
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.assignment import Assignment
from rlm.write_path.uploads.segment_queue import UploadedSegment
from rlm.write_path.uploads.upload_listener import UploadListener


class PublishedLogs(Protocol):
    """A listener for changes of published offsets."""

    def look(self, log: TopicIdPartition) -> None:
        """Called when more of the log may be stored and published than before."""

    def cut(self, log: TopicIdPartition, offset: int) -> None:
        """Called when the log was truncated at this offset."""

    def released(self, log: TopicIdPartition) -> None:
        """Called when the log is no longer led here."""


class _Unpublished:
    """The offsets of one log that are stored and not published yet."""

    def __init__(self, published_offset: int) -> None:
        self.published_offset = published_offset
        self.stored: deque[tuple[int, int]] = deque()
        """For each object in the order of storing: its sequence, and the offset up to which everything was stored
        then.
        """
        self.acknowledged: set[int] = set()
        """Those of these objects that are acknowledged and wait for an older one."""


class PublishedOffsets(UploadListener):
    """The offsets up to which durable logs are stored and published."""

    def __init__(
        self,
        uploaded_offset: Callable[[TopicIdPartition], int | None],
        when_published: Callable[[CombinedSegmentId, Callable[[], object]], object],
        told: PublishedLogs,
    ) -> None:
        """`uploaded_offset` returns the offset below which everything is stored; None if the log is not led here.

        `when_published` calls back in the event loop once the segment is published.
        """
        self._uploaded_offset = uploaded_offset
        self._when_published = when_published
        self._told = told
        self._durable: frozenset[TopicIdPartition] = frozenset()
        self._unpublished: dict[TopicIdPartition, _Unpublished] = {}

    def assigned(self, assignments: Iterable[Assignment]) -> None:
        """Set the partitions that are led here."""
        self._durable = frozenset(one.topic_id_partition for one in assignments if one.is_durable)

    def published_offset(self, partition: TopicIdPartition) -> int | None:
        """Return the offset below which everything is stored and published; None if unknown here."""
        unpublished = self._unpublished.get(partition)
        return self._uploaded_offset(partition) if unpublished is None else unpublished.published_offset

    # UploadListener.

    def segment_uploaded(self, segment: UploadedSegment) -> None:
        """Note how far durable logs are stored with this object; that counts once the topic has acknowledged it."""
        durable = {item.topic_id_partition for item in segment.items} & self._durable
        sequence = segment.combined_segment_id.sequence
        for partition in durable:
            stored = self._uploaded_offset(partition)
            if stored is None:
                continue
            begin = min(item.first_offset for item in segment.items if item.topic_id_partition == partition)
            unpublished = self._unpublished.setdefault(partition, _Unpublished(min(begin, stored)))
            unpublished.stored.append((sequence, stored))
        if durable:
            acknowledged = partial(self._acknowledged, segment.combined_segment_id, tuple(durable))
            self._when_published(segment.combined_segment_id, acknowledged)

    def _acknowledged(self, segment_id: CombinedSegmentId, partitions: tuple[TopicIdPartition, ...]) -> None:
        for partition in partitions:
            unpublished = self._unpublished.get(partition)
            if unpublished is None:
                continue
            unpublished.acknowledged.add(segment_id.sequence)
            while unpublished.stored and unpublished.stored[0][0] in unpublished.acknowledged:
                sequence, unpublished.published_offset = unpublished.stored.popleft()
                unpublished.acknowledged.discard(sequence)
            if not unpublished.stored:
                del self._unpublished[partition]
            self._told.look(partition)

    def partition_truncated(self, partition: TopicIdPartition, offset: int) -> None:
        """Handle a truncation: what was uploaded from this offset on is dead."""
        unpublished = self._unpublished.get(partition)
        if unpublished is not None:
            unpublished.published_offset = min(unpublished.published_offset, offset)
            unpublished.stored = deque((sequence, min(stored, offset)) for sequence, stored in unpublished.stored)
        self._told.cut(partition, offset)

    def partition_released(self, partition: TopicIdPartition) -> None:
        """Forget a partition that is no longer led here."""
        self._unpublished.pop(partition, None)
        self._told.released(partition)
