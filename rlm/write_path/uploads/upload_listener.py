"""What the write path notifies others of; by default they ignore it. Event loop only."""

from collections.abc import Sequence

from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.offset_ranges import OffsetRange
from rlm.write_path.assignment import Assignment
from rlm.write_path.uploads.segment_queue import UploadedSegment


class UploadListener:
    """Is notified of stored objects, and of what becomes of led logs."""

    # A defect here stops neither the other listeners nor uploads.

    def segment_uploaded(self, segment: UploadedSegment) -> None:
        """Called when an object is stored."""

    def partition_truncated(self, partition: TopicIdPartition, offset: int) -> None:
        """Called when the log was truncated: what was uploaded from this offset on is dead."""

    def partition_released(self, partition: TopicIdPartition) -> None:
        """Called when the partition is no longer led here."""

    # A defect here ends the write path.

    def gaps_found(self, assignment: Assignment, gaps: Sequence[Gap]) -> None:
        """Called with ranges that should be uploaded and that the log no longer has."""

    def ranges_not_wanted(self, assignment: Assignment, ranges: Sequence[OffsetRange], leader_epoch: int) -> None:
        """Called with ranges that were left out of objects: they went inline, and nothing needs them stored.

        A negative `leader_epoch` stands for the newest one of the log on disk.
        """

    def bytes_left_out(self, assignment: Assignment, size: int) -> None:
        """Called with how many bytes were read and left out of objects, because links do not pay for them."""

    def hurried_log_settled(self, partition: TopicIdPartition) -> None:
        """Called when the log of a hurried partition was read to its end and had nothing left to upload."""

    def links_left_out(self) -> None:
        """Called when records queued for links are not stored after all, because links no longer pay."""
