"""One partition's log as the brokers have it, and what became of its batches.

All replicas are taken to be equal at all times, so there is one directory for all brokers.
"""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from kafka_log.broker_files.partition_metadata import FILE_NAME as PARTITION_METADATA
from kafka_log.topic_partition import TopicIdPartition, topic_id_to_text
from tests.kafka_log.log_writer import BatchKey, LogWriter, WrittenBatch


@dataclass
class LedLog:
    partition: TopicIdPartition
    path: Path
    leader: int
    epoch: int = 0
    log: LogWriter = field(init=False)
    raw: dict[BatchKey, bytes] = field(default_factory=dict)
    """All that was ever written."""
    gone: dict[BatchKey, WrittenBatch] = field(default_factory=dict)
    """What retention has removed from the log, but for what the metadata topic tells as stored or lost."""
    cuts: list[int] = field(default_factory=list)
    """Where the log was truncated, the oldest first."""
    begin: int | None = None
    """Where its upload began; what lies below is not wanted."""
    _old_epochs: dict[int, int] = field(default_factory=dict)
    """Where epochs began that began before the log's start."""
    is_compacted = False
    is_archived = False
    leaders: dict[int, int] = field(default_factory=dict)
    """Who led, by leader epoch."""
    cut_off: set[BatchKey] = field(default_factory=set)
    """What elections have taken from the log."""
    is_deleted = False
    """Its topic is not there any more."""
    not_wanted: set[BatchKey] = field(default_factory=set)
    """What went with its object, as it was time for it."""
    released: dict[int, int] = field(default_factory=dict)
    """By leader epoch, up to where (exclusive) records went with their objects."""

    def __post_init__(self) -> None:
        self.leaders[self.epoch] = self.leader
        self.path.mkdir(parents=True, exist_ok=True)
        told = f"version: 0\ntopic_id: {topic_id_to_text(self.partition.topic_id)}\n"
        (self.path / PARTITION_METADATA).write_text(told)
        self.log = LogWriter(self.path)

    @property
    def end(self) -> int:
        return self.log.log_end_offset

    def append(self, records: int, payload: bytes) -> WrittenBatch:
        written = self.log.append(records, self.epoch, payload)
        self.raw[written.key] = written.raw
        return written

    def take(self, batch: WrittenBatch) -> None:
        """A batch of a leader's log, as a follower appends it."""
        self.log.append_batch(batch)
        self.raw[batch.key] = batch.raw

    def elect(self, leader: int, cut_off: int, *, writes_its_epoch: bool) -> None:
        """A leader that lacks so many offsets, perhaps none, and has told its files of its epoch, or is about to."""
        self.epoch += 1
        self.leader = self.leaders[self.epoch] = leader
        end = max(self.end - cut_off, self.log.log_start_offset)
        if end < self.end:
            before = set(self.log.present)
            self.log.truncate_to(end)
            self.cut_off |= before - self.log.present.keys()
            self.cuts.append(self.end)
        if writes_its_epoch:
            self.write_epoch()

    def write_epoch(self) -> None:
        """The leader tells its files where its epoch begins, if it has not yet."""
        if not self.log.epochs or self.log.epochs[-1][0] < self.epoch:
            self.log.epochs = [known for known in self.log.epochs if known[1] < self.end] + [(self.epoch, self.end)]
            self.log.write_checkpoint()

    @property
    def has_told_epoch(self) -> bool:
        """Whether its leader's files tell of its epoch."""
        return not self.epoch or (bool(self.log.epochs) and self.log.epochs[-1][0] == self.epoch)

    def expire(self, *, unlink: bool) -> None:
        """The broker's own retention, which does not ask what is stored."""
        if len(self.log.segments) > 1:
            self.gone |= {batch.key: batch for batch in self.log.segments[0].batches}
            before = self.log.epochs
            self.log.remove_oldest(unlink=unlink)
            self._old_epochs |= {epoch: start for epoch, start in before if start < self.log.log_start_offset}

    def released_to(self) -> int:
        """What lies below went with its objects, as this log's epochs have it; where it is archived, with the log's."""
        if self.is_archived:
            return self.log.log_start_offset
        if not self.released:
            return 0
        epochs = sorted((dict(self.log.epochs) | self._old_epochs).items())
        ends = {epoch: start for (epoch, _), (_, start) in pairwise(epochs)}
        known = {epoch for epoch, _ in epochs}
        return max(
            (min(up_to, ends.get(epoch, up_to)) for epoch, up_to in self.released.items() if epoch in known), default=0
        )
