"""What agents have declared about offsets that are in no object: gaps, and where the upload of a log began.

Theory. A declaration is of the log as its leader of some epoch had it: the offsets [from, to) that the log has in that
epoch or an older one. Should the log be cut off below, and written anew in a newer epoch, it says nothing of these
records; so it counts up to where an epoch newer than the declarer's begins. It never speaks against what is stored: who
looks for gaps looks for what no object holds first.

A join of all that was declared, so order and repetition do not matter; but for the bound on how many are kept, by which
the oldest go. What was not wanted is declared piece by piece, and kept as one where pieces touch.

Not thread-safe.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kafka_log.topic_partition import TopicIdPartition
from metadata_topic.records.leader_epochs import LeaderEpochChain
from metadata_topic.records.offset_ranges import OffsetRange

KEPT_MAX: Final = 500_000


class GapReason(IntEnum):
    """Why records are in no object. The number is in the metadata topic."""

    BEFORE_UPLOAD = 0
    """They were in the log before its upload began, with the active segment: nobody wanted them stored."""
    RETENTION = 1
    """Retention, or a deletion of records, removed them from the log before they were stored."""
    UNREADABLE = 2
    """They stood behind a damaged batch of a closed segment."""
    RELEASED = 3
    """Nobody wants them any more, as records above went with their objects: so says a rebuild of the topic. The store
    holds it as `metadata_topic.store.released_offsets`, and never as a gap.
    """

    NOT_WANTED = 4
    """They went to the followers inline, and nothing else wants them stored: so by the policy by cost, of topics whose
    objects are for links alone.
    """
    LOST_LOCALLY = 5
    """The only replica, or the broker that leads again, lost them; objects of older leader epochs still hold them. The
    store holds it as `metadata_topic.store.held_records`, and never as a gap.
    """

    LOG_START = 7
    """The log begins behind them: its retention or somebody who deletes records took them. The store holds it as
    `ReleasedOffsets` of their own, and never as a gap.
    """

    COMPACTED = 6
    """The log has no records there any more, as compaction took them: each has a newer one of its key behind."""

    @property
    def is_loss(self) -> bool:
        """Whether records are missing that were to be stored."""
        return self in (GapReason.RETENTION, GapReason.UNREADABLE)

    @property
    def is_hole(self) -> bool:
        """Whether the log goes on in objects behind records that are in none: a loss, not wanted, or compacted."""
        return self.is_loss or self in (GapReason.NOT_WANTED, GapReason.COMPACTED)


@dataclass(frozen=True, slots=True, order=True)
class DeclaredGap:
    """Offsets [from_offset, to_offset) of a log that are not to be had from object storage; none, if both are equal."""

    topic_id_partition: TopicIdPartition
    from_offset: int
    to_offset: int
    leader_epoch: int
    """The newest that the log had when this was declared."""
    reason: GapReason

    def end_in(self, leader_epochs: LeaderEpochChain) -> int:
        """Up to where it counts for a log with these epochs."""
        newer = leader_epochs.end_offset_for(self.leader_epoch)
        return self.to_offset if newer is None else min(self.to_offset, newer)


class DeclaredGaps:
    """All that is known, by partition."""

    def __init__(self, known: Iterable[DeclaredGap] = (), kept_max: int = KEPT_MAX) -> None:
        self._kept_max = kept_max
        self._of: dict[TopicIdPartition, dict[DeclaredGap, None]] = {}
        self._not_wanted: dict[TopicIdPartition, dict[int, list[OffsetRange]]] = {}
        """By leader epoch: ascending, and apart."""
        self._count = 0
        self.add(known)

    def add(self, gaps: Iterable[DeclaredGap]) -> None:
        """Take declarations in."""
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
        """By their offsets."""
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
        """Of a partition; what was not wanted first, as it is no loss."""
        if self._not_wanted:
            by_epoch = self._not_wanted.pop(next(iter(self._not_wanted)))
            self._count -= sum(map(len, by_epoch.values()))
        else:
            self._count -= len(self._of.pop(next(iter(self._of))))


def _join(ranges: list[OffsetRange], begin: int, end: int) -> int:
    """Add one to ranges that are ascending and apart, as one with those that it touches; how many more there are."""
    first = bisect_left(ranges, (begin, begin))
    if first and ranges[first - 1][1] >= begin:
        first -= 1
    behind = first
    while behind < len(ranges) and ranges[behind][0] <= end:
        begin, end = min(begin, ranges[behind][0]), max(end, ranges[behind][1])
        behind += 1
    ranges[first:behind] = [(begin, end)]
    return 1 - (behind - first)
