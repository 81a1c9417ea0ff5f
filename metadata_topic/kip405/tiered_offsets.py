"""Knows what KIP-405's long-term tier holds of each partition, from `__remote_log_metadata`.

A segment counts from its COPY_SEGMENT_FINISHED until its DELETE_SEGMENT_STARTED, and never without the record that
gives its offsets, which the topic's own retention may have removed (KAFKA-15632). States only move forward
(`metadata_topic.records.states`). Of such a segment, only the records that the log still has count: each leader epoch's
part of the segment, cut to the range that the log's leader epoch chain gives that epoch. So segments may overlap, be
copied twice, or hold what an unclean election discarded (KAFKA-15168, 16890), and none of it adds a missing offset. For
the same reason, whole segments are never compared by start or end.

All records about a partition are in one partition of the topic, in order. If they come out of order nevertheless, or
more than once, the tier seems to hold less, never more: what is deleted stays deleted (the last `REMEMBERED_DELETIONS`
of them), and a state before its segment is ignored. A record that cannot be decoded is counted, and changes nothing. If
it was a deletion, the answer would be too high by that segment; Kafka deletes from the tier only what is expired, dead,
or there twice.

If `__remote_log_metadata` itself was made again, or lost its end, nothing counts of what the earlier one said.

Any thread may call any method of `TieredOffsets`; one lock guards all.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kafka_cluster.client_config import KafkaClientConfig
from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.kip405.kip405 import (
    REMOTE_LOG_METADATA_TOPIC,
    RemoteLogMetadata,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    decode,
)
from metadata_topic.records.offset_ranges import OffsetRange, joined_ranges
from metadata_topic.records.records import UnknownRecord
from metadata_topic.records.states import DELETED, DELETING, FINISHED, STARTED, furthest
from metadata_topic.topic.topic_consumer import ConsumerFactory
from metadata_topic.topic.topic_follower import FollowSettings, TopicFollower, TopicRecord

REMEMBERED_DELETIONS = 100_000
"""How many ids of deleted segments (and separately, partitions) are kept, so that no stray record revives them."""


@dataclass(frozen=True, slots=True)
class TieredRange:
    """A range of offsets without a gap, inclusive at both ends."""

    first_offset: int
    last_offset: int


class TieredOffsets:
    """The segments of the long-term tier by partition, in memory, built from the topic's records."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: Counter[str] = Counter()
        self.start_over()

    def start_over(self) -> None:
        """Forget all segments, because the topic was created anew."""
        with self._lock:
            self._partitions: dict[TopicIdPartition, _Partition] = {}
            self._deleted_segments = _Remembered(REMEMBERED_DELETIONS)
            self._deleted_partitions = _Remembered(REMEMBERED_DELETIONS)

    def apply_all(self, records: Iterable[RemoteLogMetadata]) -> None:
        """Apply records, in order per partition of the topic."""
        with self._lock:
            for record in records:
                self._apply(record)

    def is_tiered(
        self,
        topic_id_partition: TopicIdPartition,
        leader_epochs: LeaderEpochs,
        leader_epoch: int,
        offsets: TieredRange,
    ) -> bool:
        """Whether the log still has these records of one leader epoch, and the tier holds each of them."""
        first, last = offsets.first_offset, offsets.last_offset
        if not leader_epochs.epoch_for(first) == leader_epoch == leader_epochs.epoch_for(last):
            return False
        return any(
            held.first_offset <= first and last <= held.last_offset
            for held in self.tiered_ranges(topic_id_partition, leader_epochs)
        )

    def tiered_ranges(
        self, topic_id_partition: TopicIdPartition, leader_epochs: LeaderEpochs
    ) -> tuple[TieredRange, ...]:
        """Return all ranges of this log on the tier, ascending; something is missing between two ranges."""
        with self._lock:
            partition = self._partitions.get(topic_id_partition)
            return partition.ranges(leader_epochs) if partition is not None else ()

    def epoch_starts(self, topic_id_partition: TopicIdPartition) -> dict[int, int]:
        """Return the first offset that the tier holds of each leader epoch, whether or not the log still has it."""
        return {epoch: ranges[0].first_offset for epoch, ranges in self.epoch_ranges(topic_id_partition).items()}

    def epoch_ranges(self, topic_id_partition: TopicIdPartition) -> Mapping[int, tuple[TieredRange, ...]]:
        """Return the ranges that the tier holds of each leader epoch, ascending, whether or not the log still has them.

        One leader wrote each epoch, so the same offset of the same epoch is the same record.
        """
        with self._lock:
            partition = self._partitions.get(topic_id_partition)
            return partition.epoch_ranges() if partition is not None else {}

    @property
    def counters(self) -> dict[str, int]:
        """Records with little effect, by kind: `without_start`, `after_delete`, `regression`, `unknown_<reason>`."""
        with self._lock:
            return dict(self._counters)

    def _apply(self, record: RemoteLogMetadata) -> None:
        match record:
            case RemoteLogSegmentMetadata() | RemoteLogSegmentMetadataUpdate():
                self._apply_to_segment(record)
            case RemotePartitionDeleteMetadata():
                self._deleted_partitions.add(record.topic_id_partition)
                self._partitions.pop(record.topic_id_partition, None)
            case UnknownRecord():
                self._counters[f"unknown_{record.reason}"] += 1

    def _apply_to_segment(self, record: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate) -> None:
        key, segment_id = record.segment_id
        if key in self._deleted_partitions or record.segment_id in self._deleted_segments:
            # Normal while a partition's deletion continues.
            self._counters["after_delete"] += 1
            return
        partition = self._partitions.get(key)
        segment = partition.segments.get(segment_id) if partition is not None else None
        if segment is None and isinstance(record, RemoteLogSegmentMetadataUpdate):
            self._counters["without_start"] += 1
        if record.state is DELETED or (segment is None and record.state is DELETING):
            self._forget(record)
        elif segment is not None:
            self._advance(segment, record)
        elif isinstance(record, RemoteLogSegmentMetadata):
            partition = self._partitions.setdefault(key, _Partition())
            partition.segments[segment_id] = _Segment(record)
        if partition is not None:
            partition.changed()

    def _advance(self, segment: "_Segment", record: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate) -> None:
        if furthest(segment.state, record.state) is not record.state:
            self._counters["regression"] += 1
            return
        if isinstance(record, RemoteLogSegmentMetadata) and segment.state is STARTED:
            segment.take_offsets(record)
        segment.state = record.state

    def _forget(self, record: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate) -> None:
        key, segment_id = record.segment_id
        self._deleted_segments.add(record.segment_id)
        partition = self._partitions.get(key)
        if partition is not None:
            partition.segments.pop(segment_id, None)
            if not partition.segments:
                del self._partitions[key]


class _Remembered:
    """A set that forgets its oldest items beyond `most`."""

    __slots__ = ("_items", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: dict[object, None] = {}

    def add(self, item: object) -> None:
        self._items[item] = None
        if len(self._items) > self._most:
            del self._items[next(iter(self._items))]

    def __contains__(self, item: object) -> bool:
        return item in self._items


class _Segment:
    __slots__ = ("end_offset", "leader_epochs", "start_offset", "state")

    def __init__(self, record: RemoteLogSegmentMetadata) -> None:
        self.state = record.state
        self.take_offsets(record)

    def take_offsets(self, record: RemoteLogSegmentMetadata) -> None:
        self.start_offset = record.start_offset
        self.end_offset = record.end_offset
        self.leader_epochs = record.leader_epochs

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """Yield (leader epoch, first offset, end) of what each epoch's leader wrote of this segment."""
        ends = (*self.leader_epochs[1:], (0, self.end_offset + 1))
        for (epoch, offset), (_, end) in zip(self.leader_epochs, ends, strict=True):
            yield epoch, max(offset, self.start_offset), end


class _Partition:
    __slots__ = ("_cached_for", "_cached_ranges", "_epoch_ranges", "segments")

    def __init__(self) -> None:
        self.segments: dict[bytes, _Segment] = {}
        self._cached_for: tuple[tuple[int, int], ...] | None = None
        self._cached_ranges: tuple[TieredRange, ...] = ()
        self._epoch_ranges: Mapping[int, tuple[TieredRange, ...]] | None = None

    def changed(self) -> None:
        self._cached_for = self._epoch_ranges = None

    def finished(self) -> Iterator[_Segment]:
        return (segment for segment in self.segments.values() if segment.state is FINISHED)

    def ranges(self, leader_epochs: LeaderEpochs) -> tuple[TieredRange, ...]:
        entries = leader_epochs.entries
        if self._cached_for != entries:
            self._cached_ranges = _tiered_ranges(self._living_parts(leader_epochs))
            self._cached_for = entries
        return self._cached_ranges

    def epoch_ranges(self) -> Mapping[int, tuple[TieredRange, ...]]:
        if self._epoch_ranges is None:
            parts: dict[int, list[OffsetRange]] = {}
            for segment in self.finished():
                for epoch, first, end in segment.parts():
                    parts.setdefault(epoch, []).append((first, end))
            held = {epoch: _tiered_ranges(ranges) for epoch, ranges in parts.items()}
            self._epoch_ranges = {epoch: ranges for epoch, ranges in held.items() if ranges}
        return self._epoch_ranges

    def _living_parts(self, leader_epochs: LeaderEpochs) -> Iterator[tuple[int, int]]:
        """Yield (first offset, end) of the finished segments' records that the log has."""
        for segment in self.finished():
            for epoch, first, end in segment.parts():
                log_first, log_end = leader_epochs.start_offset(epoch), leader_epochs.end_of(epoch)
                if log_first is not None:
                    yield max(first, log_first), end if log_end is None else min(end, log_end)


def _tiered_ranges(ranges: Iterable[OffsetRange]) -> tuple[TieredRange, ...]:
    return tuple(TieredRange(first, end - 1) for first, end in joined_ranges(ranges))


TIER_SETTINGS = FollowSettings(absence_check_ms=30_000, retry_pause_ms=10_000)
"""Nothing waits for this topic, and each try without rights to it is refused, so tries are rare."""


class TierFollower(TopicFollower):
    """Reads `__remote_log_metadata` into `offsets`, on a thread of its own.

    Brokers create the topic when they start with `remote.log.storage.system.enable` and Kafka's own, topic-based
    metadata manager. Otherwise the topic is absent: that is no fault, and nothing counts as tiered. The follower looks
    for it from time to time, and reads it from its beginning once it exists. Before its end is reached, `offsets` may
    have segments that were deleted since: check `ready` first.
    """

    def __init__(
        self,
        client_config: KafkaClientConfig,
        offsets: TieredOffsets,
        settings: FollowSettings = TIER_SETTINGS,
        rack: str | None = None,
        consumer_factory: ConsumerFactory | None = None,
    ) -> None:
        """`rack` is the agent's zone: brokers with a rack-aware replica selector then serve the reads from it."""
        self._offsets = offsets
        super().__init__(client_config, REMOTE_LOG_METADATA_TOPIC, self._apply, settings, rack, consumer_factory)

    def start(self) -> None:
        self.begin(start_over=self._offsets.start_over)

    @property
    def ready(self) -> bool:
        """Whether everything that the tier held at the start is known and reading continues; also if there is no
        topic.
        """
        return self.failure is None and (self.is_there is False or (super().ready and not self.left))

    def _apply(self, records: Sequence[TopicRecord]) -> None:
        self._offsets.apply_all(decode(record.value) for record in records)
