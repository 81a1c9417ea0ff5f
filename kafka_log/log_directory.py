"""Finds the partition directories in one of a broker's log directories.

A scan asks the file system about new entries only; an entry with the same name and inode number is the same directory.
So scanning a directory of thousands of partitions costs one listing.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kafka_log.broker_files.partition_metadata import read_partition_metadata
from kafka_log.errors import LogDirectoryError, MalformedFileError
from kafka_log.topic_partition import TopicId, TopicIdPartition, is_topic_name

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
_PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]{0,9})")
_MAX_PARTITION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PartitionDirectory:
    """The directory of a live replica, and its partition."""

    topic: str
    partition: int
    topic_id: TopicId
    path: Path

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)


def parse_partition_directory_name(name: str) -> tuple[str, int] | None:
    """Return topic and partition in a directory's name; None if it is not a live replica's.

    Replicas that move in (-future), are being deleted (-delete), or are not the broker's (-stray) end in letters.
    """
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if match is None or not is_topic_name(match[1]) or int(match[2]) > _MAX_PARTITION:
        return None
    return match[1], int(match[2])


class LogDirectory:
    """One entry of a broker's log.dirs, whose replicas are listed by scans. One caller at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, tuple[int, PartitionDirectory]] = {}

    @property
    def partitions(self) -> Mapping[TopicIdPartition, PartitionDirectory]:
        """The live replicas as of the last scan."""
        return MappingProxyType({known.topic_id_partition: known for _, known in self._known.values()})

    def scan(self) -> list[MalformedFileError]:
        """Scan the directory's entries. A replica without partition.metadata is left for the next scan.

        Returns why partition directories are left out, now and in every scan until they are repaired. Symbolic links
        are not followed. Raises LogDirectoryError when the operating system refuses.
        """
        faults: list[MalformedFileError] = []
        current: dict[str, tuple[int, PartitionDirectory]] = {}
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    known = self._known.get(entry.name)
                    if known is not None and known[0] == entry.inode():
                        current[entry.name] = known
                        continue
                    try:
                        found = self._examine(entry)
                    except MalformedFileError as error:
                        faults.append(error)
                        continue
                    if found is not None:
                        current[entry.name] = (entry.inode(), found)
        except OSError as error:
            raise LogDirectoryError(self.path, str(error)) from error
        self._known = current
        return faults

    def _examine(self, entry: os.DirEntry[str]) -> PartitionDirectory | None:
        named = parse_partition_directory_name(entry.name)
        if named is None or not entry.is_dir(follow_symlinks=False):
            return None
        topic, partition = named
        if topic == CLUSTER_METADATA_TOPIC:
            return None
        path = self.path / entry.name
        try:
            return PartitionDirectory(topic, partition, read_partition_metadata(path), path)
        except FileNotFoundError:
            return None
