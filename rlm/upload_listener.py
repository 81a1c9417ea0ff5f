"""Who is told what became of the partitions led here: links and announcements follow from it. Event loop only."""

from typing import Protocol

from kafka_log.topic_partition import TopicIdPartition
from rlm.combine_task import UploadedSegment


class UploadListener(Protocol):
    """Who wants to know what became of the partitions led here."""

    def segment_uploaded(self, segment: UploadedSegment) -> None:
        """An object is stored."""

    def partition_truncated(self, partition: TopicIdPartition, offset: int) -> None:
        """What was uploaded from this offset on is dead."""

    def partition_released(self, partition: TopicIdPartition) -> None:
        """The partition is not led here any more."""


class UploadListeners:
    """Tells all of them, in the order in which they were added."""

    def __init__(self) -> None:
        self._listeners: list[UploadListener] = []

    def add(self, listener: UploadListener) -> None:
        """From now on."""
        self._listeners.append(listener)

    def segment_uploaded(self, segment: UploadedSegment) -> None:
        """As `UploadListener` says."""
        for listener in self._listeners:
            listener.segment_uploaded(segment)

    def partition_truncated(self, partition: TopicIdPartition, offset: int) -> None:
        """As `UploadListener` says."""
        for listener in self._listeners:
            listener.partition_truncated(partition, offset)

    def partition_released(self, partition: TopicIdPartition) -> None:
        """As `UploadListener` says."""
        for listener in self._listeners:
            listener.partition_released(partition)
