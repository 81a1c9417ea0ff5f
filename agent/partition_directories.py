"""The broker's replicas, from its log directories as they are now."""

from collections.abc import Sequence

import structlog

from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.log_directory import LogDirectory, PartitionDirectory

log = structlog.get_logger(__name__)


def partition_directories(log_directories: Sequence[LogDirectory]) -> list[PartitionDirectory]:
    """Of all log directories that can be read; one that fails does not take the others with it.

    Where it is the process that lacks file descriptors, the directory's replicas are those of the last look.
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
