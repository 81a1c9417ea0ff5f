"""The agents' declarations about offsets that are in no object: gaps, and where the upload of a log began.

A declaration is about the log as its leader of some epoch had it: the offsets [from, to) in that epoch or an older one.
If the log is cut below and rewritten in a newer epoch, the declaration says nothing about the new records; so it counts
up to the begin of an epoch newer than the declarer's. It never contradicts what is stored: a search for gaps first
looks for what no object holds.

All declarations are joined, so order and repetition do not matter, except for the limit on how many are kept, by which
the oldest are dropped. Unwanted ranges are declared piece by piece, and joined where pieces touch.

Not thread-safe.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from kafka_log.broker_files.leader_epoch_checkpoint import LeaderEpochs
from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.offset_ranges import OffsetRange

KEPT_MAX: Final = 500_000


class GapReason(IntEnum):
    """Why records are in no object. The numbers are part of the metadata topic's format."""

    BEFORE_UPLOAD = 0
    """They were in the log before its upload began, with the active segment: nobody wanted them stored."""
    RETENTION = 1
    """Retention, or a deletion of records, removed them from the log before they were stored."""
    UNREADABLE = 2
    """They were behind a damaged batch of a closed segment."""
    RELEASED = 3
    """Nobody wants them any more, because records above went with their objects, according to a rebuild of the topic.
    The store holds it as `metadata_topic.store.released_offsets`, and never as a gap."""

    NOT_WANTED = 4
    """They went to the followers inline, and nothing else wants them stored: by the policy by cost, for topics whose
    objects are only for links."""
    LOST_LOCALLY = 5
    """The only replica, or the broker that leads again, lost them; objects of older leader epochs still hold them. The
    store holds it as `metadata_topic.store.held_records`, and never as a gap."""

    LOG_START = 7
    """The log begins behind them: its retention or a deletion of records removed them. The store holds it in separate
    `ReleasedOffsets`, and never as a gap."""

    COMPACTED = 6
    """Compaction removed them: each has a newer record of its key behind it."""

    GIVEN_UP = 8
    """A person wants nothing of the local loss with these offsets and this epoch that the archive holds. The store
    holds it as `metadata_topic.store.held_records`, and never as a gap."""

    @property
    def is_loss(self) -> bool:
        """Whether records are missing that should have been stored."""
        return self in (GapReason.RETENTION, GapReason.UNREADABLE)

    @property
    def is_hole(self) -> bool:
        """Whether the log continues in objects behind these records: after a loss, or unwanted or compacted records."""
        return self.is_loss or self in (GapReason.NOT_WANTED, GapReason.COMPACTED)


class DeclaredGap(NamedTuple):
    """Offsets [from_offset, to_offset) of a log that object storage does not have; empty if both are equal."""

    topic_id_partition: TopicIdPartition
    from_offset: int
    to_offset: int
    leader_epoch: int
    """The newest epoch of the log when this was declared."""
    reason: GapReason

    def end_in(self, leader_epochs: LeaderEpochs) -> int:
        """Return the offset up to which (exclusive) this declaration counts for a log with these leader epochs."""
        newer = leader_epochs.end_offset_for(self.leader_epoch)
        return self.to_offset if newer is None else min(self.to_offset, newer)


class DeclaredGaps:
    """All known declared gaps, by partition; bounded in number."""

    def __init__(self, known: Iterable[DeclaredGap] = (), kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._of: dict[TopicIdPartition, dict[DeclaredGap, None]] = {}
        self._not_wanted: dict[TopicIdPartition, dict[int, list[OffsetRange]]] = {}
        """By leader epoch: ascending ranges that do not touch."""
        self._count = 0
        self.add(known)

    def add(self, gaps: Iterable[DeclaredGap]) -> None:
        """Add declarations; the oldest are dropped beyond the limit on their number."""
        for gap in gaps:
            if gap.reason is GapReason.NOT_WANTED:
                by_epoch = self._not_wanted.setdefault(gap.topic_id_partition, {})
                ranges = by_epoch.setdefault(gap.leader_epoch, [])
                self._count += _join(ranges, gap.from_offset, gap.to_offset)
                continue
            known = self._of.setdefault(gap.topic_id_partition, {})
            self._count += gap not in known
            known[gap] = None
        while self._count > self._kept_max:
            self._forget_oldest()

    def of(self, topic_id_partition: TopicIdPartition) -> list[DeclaredGap]:
        """Return a partition's declared gaps, sorted by offset."""
        return sorted([*self._of.get(topic_id_partition, ()), *self._unwanted(topic_id_partition)])

    def __iter__(self) -> Iterator[DeclaredGap]:
        yield from (gap for known in self._of.values() for gap in known)
        for topic_id_partition in self._not_wanted:
            yield from self._unwanted(topic_id_partition)

    def _unwanted(self, topic_id_partition: TopicIdPartition) -> Iterator[DeclaredGap]:
        for leader_epoch, ranges in self._not_wanted.get(topic_id_partition, {}).items():
            for begin, end in ranges:
                yield DeclaredGap(topic_id_partition, begin, end, leader_epoch, GapReason.NOT_WANTED)

    def _forget_oldest(self) -> None:
        """Drop the oldest partition's unwanted ranges, as they are no loss; without any, the oldest one's gaps."""
        if self._not_wanted:
            by_epoch = self._not_wanted.pop(next(iter(self._not_wanted)))
            self._count -= sum(map(len, by_epoch.values()))
        else:
            self._count -= len(self._of.pop(next(iter(self._of))))


def _join(ranges: list[OffsetRange], begin: int, end: int) -> int:
    """Join a range to ascending, disjoint ranges; return by how many their number grows."""
    first = bisect_left(ranges, (begin, begin))
    if first and ranges[first - 1][1] >= begin:
        first -= 1
    behind = first
    while behind < len(ranges) and ranges[behind][0] <= end:
        begin, end = min(begin, ranges[behind][0]), max(end, ranges[behind][1])
        behind += 1
    ranges[first:behind] = [(begin, end)]
    return 1 - (behind - first)
