"""Notified of what happens to the partitions led here: links and announcements follow from it. Event loop only."""

from collections.abc import Callable
from typing import Protocol

import structlog
from prometheus_client import Counter

from kafka_log.topic_partition import TopicIdPartition
from plugin.errors import defect_site
from rlm.write_path.uploads.uploaded_segment import UploadedSegment

log = structlog.get_logger(__name__)


class UploadListener(Protocol):
    """Receives what happens to the partitions led here."""

    def segment_uploaded(self, segment: UploadedSegment) -> None:
        """Called when an object is stored."""

    def partition_truncated(self, partition: TopicIdPartition, offset: int) -> None:
        """Called when what was uploaded from this offset on is dead."""

    def partition_released(self, partition: TopicIdPartition) -> None:
        """Called when the partition is not led here any more."""


class UploadListeners:
    """Notifies all listeners in the order in which they were added. A failing one stops neither the others nor
    uploads.
    """

    def __init__(self, defects: Counter) -> None:
        self._defects = defects
        self._listeners: list[UploadListener] = []

    def add(self, listener: UploadListener) -> None:
        """Notify this listener from now on."""
        self._listeners.append(listener)

    def segment_uploaded(self, segment: UploadedSegment) -> None:
        """Notify all listeners of a stored object."""
        self._tell(lambda listener: listener.segment_uploaded(segment))

    def partition_truncated(self, partition: TopicIdPartition, offset: int) -> None:
        """Notify all listeners of a truncation."""
        self._tell(lambda listener: listener.partition_truncated(partition, offset))

    def partition_released(self, partition: TopicIdPartition) -> None:
        """Notify all listeners of a partition that is not led here any more."""
        self._tell(lambda listener: listener.partition_released(partition))

    def _tell(self, tell: Callable[[UploadListener], None]) -> None:
        for listener in self._listeners:
            try:
                tell(listener)
            except Exception as error:
                self._defects.inc()
                log.error("upload_listener_failed", listener=type(listener).__name__, defect=defect_site(error))
