"""A partition led by this broker with remote.wal.storage.enable, and how far its upload is."""

from bisect import insort
from dataclasses import dataclass, field
from pathlib import Path

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.topic_settings import LinkPolicy
from rlm.wal_task import RLMWalTask


@dataclass(frozen=True, slots=True)
class Assignment:
    """A partition to take care of, as leadership, topic settings and log directories say together."""

    topic_id_partition: TopicIdPartition
    topic: str
    directory: Path
    link_policy: LinkPolicy
    latency_bound_ms: int


@dataclass(slots=True)
class LedPartition:
    """The state of one assignment. `appended`, `queued` and `uploaded` offsets are three different things."""

    assignment: Assignment
    task: RLMWalTask
    append_seen_s: float | None = None
    """When the oldest append that was not read yet was noticed."""
    queued_offset: int = -1
    """The first offset that was not put into the queue; negative before the first run of the task."""
    first_offsets_in_flight: list[int] = field(default_factory=list)
    """First offsets of items that are queued or being uploaded, ascending."""
    oldest_unstored_s: float | None = None
    backlog_bytes: int = 0
    """Bytes beyond what was read, as of the last run of the task."""
    pending_bytes: int = 0
    """Bytes that are queued or being uploaded."""

    @property
    def uploaded_offset(self) -> int:
        """Every batch of this assignment below this offset is stored."""
        if self.first_offsets_in_flight:
            return self.first_offsets_in_flight[0]
        return self.queued_offset

    def item_queued(self, first_offset: int, size: int, seen_s: float) -> None:
        """A run of batches was put into the queue."""
        insort(self.first_offsets_in_flight, first_offset)
        self.pending_bytes += size
        if self.oldest_unstored_s is None:
            self.oldest_unstored_s = seen_s

    def item_settled(self, first_offset: int, size: int, oldest_left_s: float) -> None:
        """A run of batches is stored, or void."""
        if first_offset in self.first_offsets_in_flight:
            self.first_offsets_in_flight.remove(first_offset)
            self.pending_bytes -= size
        self.oldest_unstored_s = oldest_left_s if self.first_offsets_in_flight else None


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """What `remote-wal describe` shows of a led partition."""

    topic: str
    partition: int
    log_end_offset: int
    uploaded_offset: int
    lag_bytes: int
    lag_age_ms: int
    """Age of the oldest byte that is not stored; 0 when there is none."""
