"""Finds the broker's replicas in its log directories as they are now."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.log_directory import LogDirectory, PartitionDirectory
from kafka_log.topic_partition import TopicId, TopicIdPartition

log = structlog.get_logger(__name__)


def partition_directories(log_directories: Sequence[LogDirectory]) -> list[PartitionDirectory]:
    """List the replicas of all readable log directories; a failing directory does not affect the others.

    If the process lacks file descriptors, the directory's replicas are those of the last look.
    """
    found: list[PartitionDirectory] = []
    for directory in log_directories:
        faults: tuple[MalformedFileError, ...] = ()
        try:
            faults = directory.scan().faults
        except LogDirectoryError as error:
            log.error("log_directory_failed", error=str(error))
            if not error.lacks_descriptors:
                continue
        for fault in faults:
            log.warning("partition_directory_malformed", error=str(fault))
        found += directory.partitions.values()
    return found


class LocalReplicas:
    """The replicas here, as of the last look. Any thread may ask."""

    def __init__(self, log_directories: Sequence[LogDirectory]) -> None:
        self._log_directories = log_directories
        self._paths: dict[TopicIdPartition, Path] = {}
        self.topic_names: Mapping[TopicId, str] = {}
        """Names of all topics with a replica here."""

    def look(self) -> Sequence[PartitionDirectory]:
        """Scan the directories. Blocks."""
        found = partition_directories(self._log_directories)
        self._paths = {directory.topic_id_partition: directory.path for directory in found}
        self.topic_names = {directory.topic_id: directory.topic for directory in found}
        return found

    def directory_of(self, partition: TopicIdPartition) -> Path | None:
        """Return its replica's directory; None when there is none here."""
        return self._paths.get(partition)
