"""Finds the log starts by which objects may go: those that a log's own retention or a deletion of records made.

Brokers delete from a log's begin only while they run. If a log begins later than the topic tells, and its leader epoch
is another one than when it was last seen, segments may be lost on disk, and objects may hold the only copies. Then
the start that was told counts, until the log's start rises within one leader epoch: whatever deleted records there
has passed all older ones. Where nothing is stored in between, nothing is at stake.

Belongs to the event loop.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import structlog

from kafka_log.broker_files.leader_epoch_checkpoint import read_leader_epochs
from kafka_log.errors import MalformedFileError
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.declared_gaps import DeclaredGap, GapReason
from metadata_topic.store.store import RemoteWalMetadataStore
from rlm.write_path.assignment import Assignment

log = structlog.get_logger(__name__)


class _Seen(NamedTuple):
    leader_epoch: int
    start: int


class LogStarts:
    """The starts of led logs as this agent saw them, and the starts of all logs in the metadata topic."""

    def __init__(self, store: RemoteWalMetadataStore) -> None:
        self._store = store
        self._seen: dict[TopicIdPartition, _Seen] = {}

    def told(self, log_starts: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, int]:
        """Return by log the start below which records may be released; without logs whose start is not in the topic."""
        told = self._store.log_starts()
        return {one: min(start, max(told[one].values())) for one, start in log_starts.items() if one in told}

    def to_declare(
        self, log_starts: Mapping[TopicIdPartition, int], led: Iterable[Assignment]
    ) -> Iterator[DeclaredGap]:
        """Yield the starts of logs led here that are not in the topic yet; `log_starts` is where all logs begin now."""
        told = self._store.log_starts()
        before, self._seen = self._seen, {}
        for assignment in led:
            partition = assignment.topic_id_partition
            start, seen = log_starts.get(partition), before.get(partition)
            if seen is not None:
                self._seen[partition] = seen
            if start is None or (seen is not None and start <= seen.start):
                continue
            try:
                epoch = read_leader_epochs(assignment.directory).latest_epoch
            except (OSError, MalformedFileError):
                continue  # looked at again with the next observation
            self._seen[partition] = _Seen(epoch, start)
            of_epoch = told.get(partition, {})
            known = max(of_epoch.values(), default=0)
            was_led = epoch in of_epoch or (seen is not None and seen.leader_epoch == epoch)
            if start > known and not was_led and self._is_at_stake(assignment, known, start):
                log.warning(
                    "log_start_in_doubt",
                    partition=str(partition),
                    told=known,
                    log_start=start,
                    consequence="objects with these records are kept until the log's start rises again",
                )
            elif of_epoch.get(epoch, -1) < start:
                yield DeclaredGap(partition, 0, start, epoch, GapReason.LOG_START)

    def _is_at_stake(self, assignment: Assignment, begin: int, end: int) -> bool:
        return assignment.archive or self._store.has_runs(assignment.topic_id_partition, begin, end)
