"""The write path for those who hold answers until records are stored (`gateway.durable`). Event loop only."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kafka_log.broker_files.partition_metadata import read_partition_metadata
from kafka_log.errors import MalformedFileError
from kafka_log.tail_events import Gap
from kafka_log.topic_partition import TopicId, TopicIdPartition
from metadata_topic.settings.settings_table import SettingsTable
from plugin.segment_metadata import CombinedSegmentId
from rlm.write_path.assignment import Assignment
from rlm.write_path.uploads.published_offsets import PublishedOffsets

if TYPE_CHECKING:
    from gateway.durable.durable_logs import DurableLogs


@dataclass(frozen=True, slots=True)
class KnownTopics:
    """An agent's knowledge of topics."""

    durable: frozenset[str]
    names: Mapping[TopicId, str]
    """Names of topics that have a replica here."""
    is_durable_unset: Callable[[str], bool] | None = None
    """Whether a topic without a record of its own is durable, by its name; None: none is."""


def known_topics(table: SettingsTable, names: Mapping[TopicId, str]) -> KnownTopics:
    """Return which topics are durable by their settings; `names` are those with a replica here."""
    ids = {name: topic_id for topic_id, name in names.items()}

    def is_durable(name: str) -> bool:
        settings = table.of(name, ids.get(name))
        return settings is not None and settings.is_durable

    durable = frozenset(name for name in table.topics.keys() | ids.keys() if is_durable(name))
    return KnownTopics(durable, names, is_durable if table.is_any_durable else None)


class HurriedUploads(Protocol):
    """The log manager, as used here."""

    def hurry(self, partition: TopicIdPartition) -> None: ...

    def uploaded_offset(self, partition: TopicIdPartition) -> int | None: ...


class PublishingUploads(Protocol):
    """RLMWalCombineTask, as used here."""

    def when_published(self, segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None: ...


class DurableUploads:
    """What one run of the write path stores."""

    def __init__(self, manager: HurriedUploads, combine: PublishingUploads, logs: "DurableLogs") -> None:
        self._manager = manager
        self._logs = logs
        self._directories: dict[TopicIdPartition, tuple[Path, int]] = {}
        """Directories of durable logs that are led, each with its inode."""
        loop = asyncio.get_running_loop()

        def when_published(segment_id: CombinedSegmentId, tell: Callable[[], object]) -> None:
            combine.when_published(segment_id, lambda: loop.call_soon_threadsafe(tell))

        self.published = PublishedOffsets(manager.uploaded_offset, when_published, logs)

    def arrived(self) -> None:
        """Record that the write path runs."""
        self._logs.logs_arrived(self)

    def left(self, assignments: Sequence[Assignment]) -> None:
        """Record that the write path does not run any more, so that its logs are not led."""
        self._logs.logs_left()
        for one in assignments:
            self.published.partition_released(one.topic_id_partition)

    def assigned(self, assignments: Sequence[Assignment], topics: KnownTopics) -> None:
        """Set what is led here from now on."""
        self.published.assigned(assignments)
        self.topics_known(topics)
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

    def topics_known(self, topics: KnownTopics) -> None:
        """Set the known topics, possibly before anything is known to be led."""
        self._logs.topics_known(topics.durable, topics.names, topics.is_durable_unset)

    def settled(self, partition: TopicIdPartition) -> None:
        """Handle a log that was read to its end with everything stored: no upload will report it."""
        self._logs.look(partition)

    def gaps_found(self, assignment: Assignment, gaps: Iterable[Gap]) -> None:
        """Handle offsets without records: those that cannot be read are not stored, retention took the others."""
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
        """Report a log's end even without an upload: a log that was not looked at yet may have nothing to upload."""
        uploaded = self._manager.uploaded_offset(partition)
        if uploaded is None or uploaded < 0:
            self._manager.hurry(partition)
