"""Tells `DurableLogs` what the write path stores and publishes. Event loop only."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gateway.durable.durable_logs import DurableLogs
from kafka_log.broker_files.partition_metadata import read_partition_metadata
from kafka_log.errors import MalformedFileError
from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicIdPartition
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.assignment import Assignment
from rlm.write_path.uploads.published_offsets import PublishedOffsets
from rlm.write_path.uploads.tail_uploads import HurriedUploads
from rlm.write_path.uploads.upload_listener import UploadListener


class DurableUploads(UploadListener):
    """Reports to `DurableLogs` what one instance of the write path has stored and published."""

    def __init__(
        self,
        manager: HurriedUploads,
        when_published: Callable[[CombinedSegmentId, Callable[[], object]], object],
        logs: DurableLogs,
    ) -> None:
        """`when_published` calls back once a segment is published (`RLMWalCombineTask.when_published`)."""
        self._manager = manager
        self._logs = logs
        self._directories: dict[TopicIdPartition, tuple[Path, int]] = {}
        """Directories of durable logs that are led, each with its inode."""
        loop = asyncio.get_running_loop()

        def tell_in_loop(segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None:
            when_published(segment_id, lambda: loop.call_soon_threadsafe(tell))

        self.published = PublishedOffsets(manager.uploaded_offset, tell_in_loop, logs)

    def arrived(self) -> None:
        """Record that the write path has started."""
        self._logs.logs_arrived(self)

    def left(self, assignments: Sequence[Assignment]) -> None:
        """Record that the write path has stopped, so that none of its logs is led here."""
        self._logs.logs_left()
        for one in assignments:
            self.published.partition_released(one.topic_id_partition)

    def assigned(self, assignments: Sequence[Assignment]) -> None:
        """Set the partitions that are led here from now on."""
        self.published.assigned(assignments)
        self._directories = {
            log: known
            for one in assignments
            if one.is_durable and (known := self._bound(log := one.topic_id_partition, one.directory)) is not None
        }
        self._logs.assigned(assignments)

    def _bound(self, log: TopicIdPartition, directory: Path) -> tuple[Path, int] | None:
        """Return the directory, if it is that log's. A recreated topic gets a directory of the same name."""
        known = self._directories.get(log)
        if known is not None and known[0] == directory and self.is_same_log(log):
            return known
        try:
            inode = directory.stat().st_ino
            return (directory, inode) if read_partition_metadata(directory) == log.topic_id else None
        except (OSError, MalformedFileError):
            return None

    def hurried_log_settled(self, partition: TopicIdPartition) -> None:
        """Report a log that was already stored to its end, for which no upload will be reported."""
        self._logs.look(partition)

    def gaps_found(self, assignment: Assignment, gaps: Iterable[Gap]) -> None:
        """Report offsets that were to be uploaded and that the log lacks: unreadable ones are not stored, retention
        removed the others."""
        for gap in gaps:
            if assignment.is_durable and gap.is_unreadable:
                self._logs.unreadable(assignment.topic_id_partition, gap.from_offset, gap.to_offset)

    # StoredLogs.

    def is_same_log(self, log: TopicIdPartition) -> bool:
        directory, inode = self._directories.get(log, (None, -1))
        try:
            return directory is not None and directory.stat().st_ino == inode
        except OSError:
            return False

    def published_offset(self, partition: TopicIdPartition) -> int | None:
        return self.published.published_offset(partition)

    def awaited(self, partition: TopicIdPartition) -> None:
        """Make the write path report how far a log is stored, even if it has nothing to upload."""
        uploaded = self._manager.uploaded_offset(partition)
        if uploaded is None or uploaded < 0:
            self._manager.hurry(partition)
